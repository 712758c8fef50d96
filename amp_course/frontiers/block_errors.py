"""Measure what block formats do to a row of numbers, to one block, and to whole tensors.

Tensors are rounded by `quantize`, rows exactly and without torch, so that a page without torch can
show them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from torch import Tensor

from amp_course.bits.formats import FP8_E4M3, FloatFormat
from amp_course.bits.scalar import decode
from amp_course.frontiers.block_formats import BLOCK_FORMATS, BlockFormat, ScaleRounding
from amp_course.frontiers.reference import block_scale, fp32_scale, quantize_block
from amp_course.kit.threads import one_thread

# The integers from −127 to 127: with a single exponent bit, the spacing is the same everywhere.
INT8 = FloatFormat("int8", 1, 6, -5, "finite")
# in millionths, drawn once with the standard deviation of GPT-2's initial weights, 0.02
_WEIGHTS = """
    -46208 -7465 -21216 19990 -17681 -25511 -12464 -17329 -25913 30473 6473 40355 22715 -24538 1428
    6760 3070 -12665 -25218 -14539 -399 4206 3544 -16610 20224 -4854 -15460 -31904 -13740 29761
    -8968 -17820 -1835 11126 -189 -24354 -25309 -22391 23330 18525 13078 2964 -22922 37456 -6198
    4804 -26975 4888 -62906 -2275 33924 -13304 -11744 56642 18080 18957 -27619 -41095 952 -7711
    -5501 17732 29715 -157
"""


@dataclass(frozen=True)
class RowErrors:
    """A row of numbers, rounded to a block format.

    scales: of each number's block, multiplied by the tensor's scale
    """

    block_format: BlockFormat
    values: Sequence[float]
    rounded: Sequence[float]
    scales: Sequence[float]

    @cached_property
    def errors(self) -> list[float]:
        """The relative error of each number: 1.0 if it became 0, 0.0 for a 0."""
        pairs = zip(self.values, self.rounded, strict=True)
        return [abs(after - before) / abs(before or 1.0) for before, after in pairs]

    @cached_property
    def zeroed(self) -> list[bool]:
        """Which numbers became 0, and were not 0 before."""
        pairs = zip(self.values, self.rounded, strict=True)
        return [after == 0 != before for before, after in pairs]

    @cached_property
    def clipped(self) -> list[bool]:
        """Which numbers are too large for their block, by more than half a step."""
        element = self.block_format.element
        room = element.max + 2.0**element.max_exponent * element.eps / 2
        parts = zip(self.values, self.rounded, self.scales, strict=True)
        return [abs(before) > room * scale and after != 0 for before, after, scale in parts]

    @cached_property
    def filled(self) -> list[float]:
        """The largest number of each block, as a share of the largest that the block could hold."""
        shares = []
        for start in range(0, len(self.values), self.block_format.size):
            room = self.block_format.element.max * self.scales[start]
            shares.append(self._largest(self.block(start)) / room if room else 0.0)
        return shares

    @cached_property
    def grid(self) -> list[float]:
        """All numbers that the first block can hold with its scale, ascending."""
        element = self.block_format.element
        numbers = [decode(n, element) * self.scales[0] for n in range(element.max_pattern + 1)]
        return [*(-number for number in numbers[:0:-1]), *numbers]

    def block(self, place: int) -> range:
        """Return the places that share a scale with a place: 9 in blocks of 8 → range(8, 16)."""
        size = self.block_format.size
        start = place // size * size
        return range(start, min(start + size, len(self.values)))

    def sets_scale(self, place: int) -> bool:
        return abs(self.values[place]) >= self._largest(self.block(place))

    def error(self, without: int | None = None) -> float:
        """Return the relative root-mean-square error of the row, or of all its numbers but one."""
        places = [place for place in range(len(self.values)) if place != without]
        exact, rounded = ([of[place] for place in places] for of in (self.values, self.rounded))
        norm = math.hypot(*exact)
        return math.dist(exact, rounded) / norm if norm else 0.0

    def zeroed_neighbours(self, place: int) -> int:
        """Return how many of the other numbers in a number's block became 0."""
        return sum(self.zeroed[other] for other in self.block(place) if other != place)

    def _largest(self, places: range) -> float:
        return max(abs(self.values[place]) for place in places)


def row_errors(
    values: Sequence[float],
    block_format: BlockFormat,
    draw: Callable[[], float] | None = None,
) -> RowErrors:
    """Round a row of numbers to a block format.

    draw: as in `quantize_block`

    Raises ValueError for inf, NaN, and an empty row.
    Example: row_errors([6.0, 0.2], MXFP4).zeroed → [False, True]
    """
    row = [*map(float, values)]
    if not row or not all(map(math.isfinite, row)):
        raise ValueError("a row has at least one number, and no inf or NaN")
    whole, size = fp32_scale(row, block_format), block_format.size
    rounded, scales = [], []
    for start in range(0, len(row), size):
        block = row[start : start + size]
        rounded += quantize_block(block, block_format, whole, draw)
        scales += [float(block_scale(block, block_format, whole))] * len(block)
    return RowErrors(block_format, row, rounded, scales)


def weight_row(count: int = 64) -> list[float]:
    """Return up to 64 numbers drawn like the weights of a layer, always the same."""
    return [int(number) / 1e6 for number in _WEIGHTS.split()[:count]]


def with_outlier(values: Sequence[float], place: int, size: float) -> list[float]:
    """Return a row with the number at `place` set to `size` standard deviations of the others."""
    return [*values[:place], size * spread(values, place), *values[place + 1 :]]


def spread(values: Sequence[float], place: int) -> float:
    """Return the standard deviation of all numbers of a row but one."""
    return statistics.pstdev([*values[:place], *values[place + 1 :]])


def block_line(values: Sequence[float], block_format: BlockFormat) -> RowErrors:
    """Round numbers as one block, whatever the format's own size."""
    return row_errors(values, block_format.with_size(len(values)))


@dataclass(frozen=True)
class FormatError:
    """How well a format holds a tensor.

    tensor:   its name, "weights"
    format:   "MXFP4"; "int8 per tensor" where the whole tensor shares one scale
    rounding: of the scale; None if it is not a power of two, and so is rounded to nearest
    bits:     per number, scales included
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
    tensors: Mapping[str, Tensor],
) -> tuple[FormatError, ...]:
    """Round tensors to BLOCK_FORMATS, with each rounding of the scale, and to fp8 E4M3 and int8
    with one scale for a tensor.

    tensors: name → numbers of any shape; blocks lie along the last dimension, so pass a
             convolution's weight as (out channels, the rest)
    returns: for each tensor, in the order of the formats; "down", "nearest", "up" where the scale
             is a power of two

    Raises ValueError for inf and NaN, TypeError for integers.
    """
    found = []
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"{name} holds inf or NaN, and no error can be measured: find them with "
                f"x.isfinite() first"
            )
        exact = tensor.detach()
        for fmt in BLOCK_FORMATS:
            if fmt.two_level:
                found.append(_format_error(name, exact, fmt, None))
                continue
            for rounding in get_args(ScaleRounding):
                found.append(_format_error(name, exact, fmt.rounding_scale(rounding), rounding))
        for element in (FP8_E4M3, INT8):
            whole = one_scale(element, exact.numel())
            found.append(_format_error(name, exact.reshape(-1), whole, None))
    return tuple(found)


def relative_error(exact: Tensor, rounded: Tensor) -> float:
    """Return ‖rounded − exact‖ / ‖exact‖, or 0.0 for zeros: [3, 4], [3, 3] → 0.2."""
    norm = float(exact.double().norm())
    return float((rounded.double() - exact.double()).norm()) / norm if norm else 0.0


def one_scale(element: FloatFormat, count: int) -> BlockFormat:
    """Return a format in which all `count` numbers of a tensor share one scale: amax / the largest
    element.

    The single block's scale is always E4M3's largest number, so the tensor's fp32 scale decides.
    """
    return BlockFormat(f"{element.name} per tensor", element, count, FP8_E4M3)


def _format_error(
    name: str, exact: Tensor, fmt: BlockFormat, rounding: ScaleRounding | None
) -> FormatError:
    from amp_course.frontiers.quantizing import quantize  # needs torch, which a page lacks

    rounded, nonzero = quantize(exact, fmt), exact != 0
    zeroed = int(((rounded == 0) & nonzero).sum()) / max(1, int(nonzero.sum()))
    error, bits = relative_error(exact, rounded), float(fmt.bits)
    return FormatError(name, fmt.name, fmt.element.name, rounding, bits, error, zeroed)
