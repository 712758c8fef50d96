"""Two data sets for the loading experiments: one that costs CPU time, and one that only keeps you
waiting.

They are in a module of their own because a worker that is spawned imports the module of its data
set: a class that is defined in a notebook's cell cannot be found there. Drawing from the item's
index makes every item the same in any worker, and in none.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from amp_course.kit import data


class AugmentedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Handwritten digits, enlarged to size × size, turned, and bent by an elastic field: about a
    millisecond of CPU each.

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
        """Return picture and label; IndexError past the end, which stops a plain loop."""
        if not 0 <= index < self.length:
            raise IndexError(f"item {index} of {self.length}")
        generator = torch.Generator().manual_seed(index)
        angle = 0.5 * torch.randn((), generator=generator)
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([cos, -sin, angle * 0, sin, cos, angle * 0]).view(1, 2, 3)
        field = torch.randn(1, 2, self.size, self.size, generator=generator)
        for _ in range(6):  # a blur, done several times, is close to a Gaussian
            field = F.avg_pool2d(field, 9, stride=1, padding=4)
        place = index % len(self.pictures)
        large = F.interpolate(
            self.pictures[place][None],
            (self.size, self.size),
            mode="bicubic",
            align_corners=False,
        )
        grid = F.affine_grid(turn, list(large.shape), align_corners=False)
        bent = F.grid_sample(large, grid + field.permute(0, 2, 3, 1), align_corners=False)
        return bent[0], self.labels[place]


class SlowSource(Dataset[tuple[Tensor, Tensor]]):
    """Pictures from a source that makes you wait, as a network disk does: `seconds` each."""

    def __init__(self, length: int, seconds: float, *, size: int = 64) -> None:
        self.length, self.seconds, self.size = length, seconds, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Wait, then return picture and label; IndexError past the end."""
        if not 0 <= index < self.length:
            raise IndexError(f"item {index} of {self.length}")
        time.sleep(self.seconds)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1, self.size, self.size, generator=generator), torch.tensor(index % 10)
