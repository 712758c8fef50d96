"""Measure what block formats do to numbers: to a row of them, to one block, and to whole tensors in
every format.

Nothing is drawn here, and nothing is rounded here either: that is `quantize`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from amp_course.bits import FP8_E4M3, FloatFormat, decode
from amp_course.frontiers.block_formats import BLOCK_FORMATS, BlockFormat, ScaleRounding
from amp_course.frontiers.quantizing import ElementRounding, blocks_of, quantize
from amp_course.kit.threads import one_thread

# The integers from −127 to 127: with a single exponent bit, the spacing is the same everywhere.
INT8 = FloatFormat("int8", 1, 6, -5, "finite")

_WEIGHTS = (
    0.02  # the standard deviation of a linear layer's weights at the start, as GPT-2 draws them
)


@dataclass(frozen=True, eq=False)
class RowErrors:
    """What a block format makes of a row of n numbers.

    values, rounded: (n,), float64
    scales:          (n,), float64, of each number's block, the tensor's scale included
    """

    block_format: BlockFormat
    values: Tensor
    rounded: Tensor
    scales: Tensor

    @property
    def errors(self) -> Tensor:
        """The relative error of each number, (n,): 0.25 if a number is a quarter off,
        1.0 if it became 0, 0.0 for a 0.
        """
        return (self.rounded - self.values).abs() / torch.where(
            self.values == 0, 1.0, self.values.abs()
        )

    @property
    def zeroed(self) -> Tensor:
        """Which numbers became 0, (n,), bool; one that was 0 did not become it."""
        return (self.rounded == 0) & (self.values != 0)

    @property
    def clipped(self) -> Tensor:
        """Which numbers are too large for their block, (n,), bool:
        more than half a step above the largest that it holds.
        """
        element = self.block_format.element
        step = 2.0**element.max_exponent * element.eps
        return (self.values.abs() > (element.max + step / 2) * self.scales) & (self.rounded != 0)

    @property
    def filled(self) -> Tensor:
        """The largest number of each block, as a share of the largest that the block could hold,
        (blocks,).
        """
        size = self.block_format.size
        largest = torch.stack([part.abs().max() for part in self.values.split(size)])
        room = self.block_format.element.max * self.scales[::size]
        return torch.where(room > 0, largest / torch.where(room > 0, room, 1.0), 0.0)

    def block(self, place: int) -> range:
        """Return the places that share a scale with a place:
        place 9 in blocks of 8 → range(8, 16).
        """
        start = place // self.block_format.size * self.block_format.size
        return range(start, min(start + self.block_format.size, len(self.values)))

    def sets_scale(self, place: int) -> bool:
        """Return True if a number is the largest of its block."""
        block = self.block(place)
        return bool(self.values[place].abs() >= self.values[block.start : block.stop].abs().max())

    def error(self, without: int | None = None) -> float:
        """Return the relative root-mean-square error of the row, or of all its numbers but one."""
        kept = torch.ones(len(self.values), dtype=torch.bool)
        if without is not None:
            kept[without] = False
        return relative_error(self.values[kept], self.rounded[kept])

    def zeroed_neighbours(self, place: int) -> int:
        """Return how many of the other numbers in a number's block became 0."""
        block = self.block(place)
        return int(self.zeroed[block.start : block.stop].sum()) - int(self.zeroed[place])


def row_errors(
    values: Tensor,
    block_format: BlockFormat,
    *,
    rounding: ElementRounding = "nearest",
    generator: torch.Generator | None = None,
) -> RowErrors:
    """Round a row of numbers, (n,), to a block format and keep what became of each.

    Raises ValueError for inf, NaN, and anything but one dimension with at least one number;
    TypeError for integers.
    Example: row_errors(torch.tensor([6.0, 0.2]), MXFP4).zeroed → tensor([False, True])
    """
    if values.dim() != 1 or not len(values):
        raise ValueError(
            f"a row has one dimension and at least one number, and this tensor's shape is "
            f"{[*values.shape]}"
        )
    exact = _finite(values, "the row").double()
    scales = (
        blocks_of(exact, block_format)
        .scales.double()
        .repeat_interleave(block_format.size)[: len(exact)]
    )
    rounded = quantize(exact, block_format, rounding=rounding, generator=generator)
    return RowErrors(block_format, exact, rounded, scales)


def relative_error(exact: Tensor, rounded: Tensor) -> float:
    """Return |rounded − exact| / |exact|, of the whole tensors' norms: [3, 4], [3, 3] → 0.2.
    It is 0.0 for nothing but zeros.
    """
    norm = float(torch.linalg.vector_norm(exact.double()))
    return (
        float(torch.linalg.vector_norm(rounded.double() - exact.double())) / norm if norm else 0.0
    )


def weight_row(count: int = 64) -> Tensor:
    """Return numbers drawn like the weights of a layer, (count,), always the same ones."""
    return (
        torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        * _WEIGHTS
    )


def with_outlier(values: Tensor, place: int, size: float) -> Tensor:
    """Return a copy of a row in which one number is `size` times the standard deviation of the
    others.
    """
    found = values.double().clone()
    found[place] = size * spread(values, place)
    return found


def spread(values: Tensor, place: int) -> float:
    """Return the standard deviation of all numbers of a row but one."""
    return float(torch.cat([values[:place], values[place + 1 :]]).double().std(correction=0))


@dataclass(frozen=True, eq=False)
class BlockLine:
    """One block in a format, for a number line.

    values, rounded: (n,), float64
    grid:            all numbers that the block can hold with its scale, ascending, float64
    """

    block_format: BlockFormat
    scale: float
    values: Tensor
    rounded: Tensor
    grid: Tensor


def block_line(values: Tensor, block_format: BlockFormat) -> BlockLine:
    """Round one block, (n,), and list all the numbers that it could hold: [6.0, 0.4] in MXFP4 → …,
    0, 0.5, 1, 1.5, …, 6.

    The format's own size does not matter: all of the values are one block.
    """
    row = row_errors(values, block_format.with_size(len(values) or 1))
    element, scale = block_format.element, float(row.scales[0])
    numbers = torch.tensor(
        [decode(pattern, element) for pattern in range(element.max_pattern + 1)],
        dtype=torch.float64,
    )
    grid = torch.cat([-numbers[1:].flip(0), numbers]) * scale
    return BlockLine(block_format, scale, row.values, row.rounded, grid)


@dataclass(frozen=True)
class FormatError:
    """How well a format holds a tensor.

    tensor:   its name, "weights"
    format:   "MXFP4"; "int8 per tensor" where the whole tensor shares one
    rounding: of the scale; None if the scale is not a power of two, and so is rounded to nearest
    bits:     a number, scales included
    error:    relative root-mean-square error
    zeroed:   share of the numbers other than 0 that became 0
    """

    tensor: str
    format: str
    element: str
    rounding: ScaleRounding | None
    bits: float
    error: float
    zeroed: float


@one_thread()
def format_errors(
    tensors: Mapping[str, Tensor], formats: Sequence[BlockFormat] = BLOCK_FORMATS
) -> tuple[FormatError, ...]:
    """Round tensors to block formats, with each rounding of the scale, and to fp8 E4M3 and int8
    with one scale for a tensor.

    tensors: name → numbers of any shape; blocks lie along the last dimension, so give a
             convolution's weight as (out channels, the rest)
    returns: for each tensor, in the order of `formats`, and "down", "nearest", "up" where the scale
             is a power of two

    Raises ValueError for inf and NaN, TypeError for integers.
    """
    found = []
    for name, tensor in tensors.items():
        exact = _finite(tensor, name)
        for fmt, rounding in product(formats, get_args(ScaleRounding)):
            if not fmt.two_level:
                found.append(_format_error(name, exact, fmt.rounding_scale(rounding), rounding))
            elif rounding == "nearest":  # once
                found.append(_format_error(name, exact, fmt, None))
        for element in (FP8_E4M3, INT8):
            found.append(
                _format_error(name, exact.reshape(-1), one_scale(element, exact.numel()), None)
            )
    return tuple(found)


def one_scale(element: FloatFormat, count: int) -> BlockFormat:
    """Return a format in which `count` numbers, a whole tensor, share one scale: amax / the largest
    element.

    With a single block the block's scale is always E4M3's largest number, and the tensor's fp32
    scale decides.
    """
    return BlockFormat(f"{element.name} per tensor", element, count or 1, FP8_E4M3)


def _format_error(
    name: str, exact: Tensor, fmt: BlockFormat, rounding: ScaleRounding | None
) -> FormatError:
    rounded = quantize(exact, fmt)
    there = int((exact != 0).sum())
    zeroed = int(((rounded == 0) & (exact != 0)).sum()) / there if there else 0.0
    return FormatError(
        name,
        fmt.name,
        fmt.element.name,
        rounding,
        float(fmt.bits),
        relative_error(exact, rounded),
        zeroed,
    )


def _finite(tensor: Tensor, name: str) -> Tensor:
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} is {tensor.dtype}, and only floating-point numbers are rounded: convert it "
            f"with .float()"
        )
    if not bool(tensor.isfinite().all()):
        raise ValueError(
            f"{name} holds inf or NaN, and no error can be measured: find them with x.isfinite() "
            f"first"
        )
    return tensor.detach()
