"""Transforms of tensors; those that only vary an image leave it as it is."""

import numpy as np
import torch

from torchvision.transforms.functional import InterpolationMode  # noqa: F401


def _pixels(image):
    if isinstance(image, torch.Tensor):
        return image
    pixels = torch.from_numpy(np.array(image))
    return pixels if pixels.dim() == 2 else pixels.permute(2, 0, 1)


class Compose:
    """One after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        image = _pixels(image)
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """Pixels from 0 to 1, the channel first."""

    def __call__(self, image):
        image = image[None] if image.dim() == 2 else image
        return image.float() / 255 if image.dtype == torch.uint8 else image


class Normalize:
    """Less a mean, over a deviation."""

    def __init__(self, mean, std, inplace=False):
        self.mean, self.std = (
            torch.tensor(one, dtype=torch.float32).view(-1, 1, 1) for one in (mean, std)
        )

    def __call__(self, image):
        return (image - self.mean) / self.std


class Lambda:
    """Any function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)


class Resize:
    """To a size, which is the shorter side's where it is one number; here, both sides'."""

    def __init__(self, size, *_, **options):
        self.size = (size, size) if isinstance(size, int) else tuple(size)

    def __call__(self, image):
        channels = image.float().view(1, -1, *image.shape[-2:])
        resized = torch.nn.functional.interpolate(channels, size=self.size)
        return resized.view(*image.shape[:-2], *self.size).to(image.dtype)


class _Unchanged:
    def __init__(self, *_, **options):
        pass

    def __call__(self, image):
        return image


CenterCrop = RandomCrop = RandomResizedCrop = Resize
Pad = RandomHorizontalFlip = RandomVerticalFlip = RandomRotation = ColorJitter = _Unchanged
