"""Random images and labels under the names of public datasets."""

import torch


class _Random(torch.utils.data.Dataset):
    shape, classes, length = (28, 28), 10, 2048

    def __init__(self, root=None, train=True, transform=None, **options):
        source = torch.Generator().manual_seed(0)
        self.transform = transform
        self.data = torch.randint(
            0, 256, (self.length, *self.shape), generator=source, dtype=torch.uint8
        )
        self.targets = torch.randint(0, self.classes, (self.length,), generator=source)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = self.data[index]
        return self.transform(image) if self.transform else image, int(self.targets[index])


class MNIST(_Random):
    """28 by 28 grey pixels, ten classes."""


class CIFAR10(_Random):
    """32 by 32 pixels of three colours, ten classes."""

    shape = (3, 32, 32)


class CIFAR100(CIFAR10):
    """As CIFAR10, with a hundred classes."""

    classes = 100


class ImageFolder(CIFAR10):
    """64 by 64 pixels of three colours."""

    shape = (3, 64, 64)

    def __init__(self, root=None, transform=None, **options):
        super().__init__(transform=transform)


class FakeData(_Random):
    """As many images as asked for, of the size asked for."""

    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None):
        self.length, self.shape, self.classes = min(size, 256), image_size, num_classes
        super().__init__(transform=transform)


FashionMNIST = KMNIST = MNIST


class CelebA(CIFAR10):
    """64 by 64 pixels of three colours."""

    shape = (3, 64, 64)

    def __init__(self, root=None, split="train", transform=None, **options):
        super().__init__(transform=transform)
