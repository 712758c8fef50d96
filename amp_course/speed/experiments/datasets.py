"""Two data sets for the loading experiments: one that costs CPU time, and one that only waits.

A spawned worker imports the module of its data set, so it cannot find a class that is defined in a
notebook's cell. Each item is drawn from its index, so it is the same with and without workers.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from amp_course.kit import data


class AugmentedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Handwritten digits, enlarged to size × size, rotated, and bent by an elastic field: about a
    millisecond of CPU time each.

    An item is (1, size, size) float32 and its label. Source of the field: Simard, Steinkraus and
    Platt (2003).
    Example: AugmentedDigits(96, size=64)[3][0].shape → (1, 64, 64)
    """

    def __init__(self, length: int, size: int = 64) -> None:
        digits = data.digits()
        self.pictures, self.labels = digits.train_x, digits.train_y
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return picture and label; IndexError past the end, which ends a plain loop."""
        generator = _generator_of(self, index)
        angle = 0.5 * torch.randn((), generator=generator)
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([cos, -sin, angle * 0, sin, cos, angle * 0]).view(1, 2, 3)
        field = torch.randn(1, 2, self.size, self.size, generator=generator)
        for _ in range(6):  # a blur, done several times, is close to a Gaussian
            field = F.avg_pool2d(field, 9, stride=1, padding=4)
        place = index % len(self.pictures)
        size = (self.size, self.size)
        large = F.interpolate(self.pictures[place][None], size, mode="bicubic", align_corners=False)
        grid = F.affine_grid(turn, list(large.shape), align_corners=False)
        bent = F.grid_sample(large, grid + field.permute(0, 2, 3, 1), align_corners=False)
        return bent[0], self.labels[place]


class SlowSource(Dataset[tuple[Tensor, Tensor]]):
    """Pictures from a slow source, such as a network disk: each takes `seconds` of waiting."""

    def __init__(self, length: int, seconds: float, *, size: int = 64) -> None:
        self.length, self.seconds, self.size = length, seconds, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Wait, then return picture and label; IndexError past the end."""
        generator = _generator_of(self, index)
        time.sleep(self.seconds)
        return torch.randn(1, self.size, self.size, generator=generator), torch.tensor(index % 10)


def _generator_of(dataset: AugmentedDigits | SlowSource, index: int) -> torch.Generator:
    """Return an item's own random generator; IndexError past the end."""
    if not 0 <= index < len(dataset):
        raise IndexError(f"item {index} of {len(dataset)}")
    return torch.Generator().manual_seed(index)
