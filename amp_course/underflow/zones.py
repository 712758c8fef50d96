"""Sort a tensor's numbers by what becomes of them in a format: lost, subnormal, normal, overflow.

Rounding decides on the zone: half of the smallest subnormal is lost, a little more is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.bits.rounding import work_dtype

ZONES = ("lost", "subnormal", "normal", "overflow")
_NONE = -1  # a zero or NaN: in no zone


@dataclass(frozen=True)
class ZoneFractions:
    """What becomes of a tensor's numbers in a format.

    lost, subnormal, normal, overflow: fractions of the `counted` numbers; they add up to 1, or are
             all 0 if nothing was counted
    counted: how many numbers were neither 0 nor NaN before rounding
    zeros:   how many were 0: rounding loses nothing there
    nans:    how many were NaN
    """

    lost: float
    subnormal: float
    normal: float
    overflow: float
    counted: int
    zeros: int
    nans: int

    def __str__(self) -> str:
        """Return "lost 25.0%, subnormal 25.0%, normal 25.0%, overflow 25.0%; zeros 1"."""
        text = ", ".join(f"{zone} {getattr(self, zone):.1%}" for zone in ZONES)
        others = {"zeros": self.zeros, "NaN": self.nans}
        rest = ", ".join(f"{name} {count}" for name, count in others.items() if count)
        return f"{text}; {rest}" if rest else text


def zone_fractions(tensor: Tensor, fmt: FloatFormat, loss_scale: float = 1.0) -> ZoneFractions:
    """Return what fraction of a tensor, times a loss scale, is in each zone of a format.

    tensor:     any shape, any floating dtype; float64 is rounded exactly
    loss_scale: what the numbers are multiplied by first, as the scaler does with gradients

    `lost` is rounded to 0. `subnormal` and `normal` are kinds of the rounded number. `overflow` is
    rounded past the largest number, whether the format then makes it inf or the largest number
    again; inf is counted there too.

    Raises TypeError for a tensor that is not of real floating-point numbers; ValueError for one
    that is empty or all NaN, and for a loss scale that is not positive and finite.
    Example: zone_fractions(torch.tensor([0.0, 1e-8, 1e-5, 1.0, 1e5]), FP16) → a quarter each,
             zeros=1
    """
    zones = zones_of(tensor, fmt, loss_scale)
    if zones.numel() == 0:
        raise ValueError(
            "the tensor is empty: it has no numbers to sort. Was its gradient ever computed?"
        )
    nans = int(tensor.isnan().sum())
    if nans == tensor.numel():
        raise ValueError(
            "the tensor holds nothing but NaN: find the op that made it; there is no range to look "
            "at"
        )
    counts = torch.bincount(zones.flatten().long() + 1, minlength=len(ZONES) + 1).tolist()
    counted = sum(counts[1:])
    lost, subnormal, normal, overflow = (count / max(counted, 1) for count in counts[1:])
    return ZoneFractions(lost, subnormal, normal, overflow, counted, counts[0] - nans, nans)


def zones_of(tensor: Tensor, fmt: FloatFormat, loss_scale: float = 1.0) -> Tensor:
    """Return each number's place in `ZONES`: int8 of the tensor's shape, −1 for zero and NaN.

    Raises TypeError and ValueError as `zone_fractions` does, except for tensors that are empty or
    all NaN.
    Example: zones_of(torch.tensor([1e-8, 0.0, 1.0]), FP16) → tensor([0, -1, 2])
    """
    if not (math.isfinite(loss_scale) and loss_scale > 0):
        raise ValueError(
            f"the loss scale is {loss_scale}: a scale is positive and finite, such as 2.0**16"
        )
    dtype = work_dtype(tensor, fmt)
    numbers = tensor.detach().to(dtype).abs().contiguous()
    absent = (numbers == 0) | numbers.isnan()
    exact = torch.tensor(starts(fmt), dtype=torch.float64)
    near = exact.to(dtype)  # to be rounded up: the smallest number at or past each start
    near = torch.where(near < exact, near.nextafter(near.new_tensor(math.inf)), near)
    zones = torch.bucketize(numbers * loss_scale, near.to(numbers.device), right=True)
    return zones.to(torch.int8).masked_fill_(absent, _NONE)


def starts(fmt: FloatFormat) -> tuple[float, float, float]:
    """Return the smallest float64 numbers that are rounded to subnormal, normal and overflow.

    `edges` is for pictures.
    """
    # ties go to the even neighbour: half of the smallest number to 0, half a step below the
    # smallest normal number up to it
    half = fmt.smallest_subnormal / 2
    subnormal = math.nextafter(half, 1.0)
    normal = max(subnormal, fmt.smallest_normal - half)
    # overflow starts half a step past the largest number; that tie itself is included if the
    # largest is odd
    step = 2.0 ** (fmt.max_exponent - fmt.significand_bits)
    middle = fmt.max + step / 2
    return subnormal, normal, middle if fmt.max / step % 2 else math.nextafter(middle, math.inf)


@dataclass(frozen=True)
class ZoneHistogram:
    """How many numbers lie in each binade, by zone.

    exponents: consecutive; e means the numbers from 2^e up to 2^(e+1), scaled but not rounded
    counts:    zone → one count for each exponent
    infinite:  how many numbers are inf, and so in no binade
    """

    exponents: tuple[int, ...]
    counts: dict[str, tuple[int, ...]]
    infinite: int

    @property
    def heights(self) -> list[int]:
        """How many numbers of all zones each exponent has."""
        return [sum(column) for column in zip(*self.counts.values(), strict=True)]

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return sum(self.heights) + self.infinite

    def share(self, zone: str) -> float:
        """Return the fraction of the numbers in a zone, as `zone_fractions` does."""
        count = sum(self.counts[zone]) + (self.infinite if zone == "overflow" else 0)
        return count / max(self.total, 1)


def edges(fmt: FloatFormat) -> tuple[float, float, float]:
    """Return where subnormal, normal and overflow begin, as log2: FP16 → about (−25, −14, 16).

    A number at or below the first is lost; the second and third are half a step too high, which no
    picture shows.
    """
    first = fmt.min_exponent - fmt.significand_bits - 1
    return float(first), float(fmt.min_exponent), math.log2(fmt.max)


def count_zones(
    below: Callable[[float], int], fmt: FloatFormat, exponents: range, infinite: int = 0
) -> ZoneHistogram:
    """Count positive numbers, of which only ranks are known, by exponent and zone.

    below:     cut → how many of the numbers are smaller
    exponents: of all finite numbers; empty if there are none
    """
    zone_starts = starts(fmt)
    columns = []
    for exponent in exponents:
        low, high = 2.0**exponent, 2.0 ** (exponent + 1)
        cuts = [low, *(min(max(start, low), high) for start in zone_starts), high]
        columns.append([last - first for first, last in pairwise(map(below, cuts))])
    rows = zip(*columns, strict=True) if columns else [()] * len(ZONES)
    return ZoneHistogram(tuple(exponents), dict(zip(ZONES, rows, strict=True)), infinite)


def zone_histogram(tensor: Tensor, fmt: FloatFormat, loss_scale: float = 1.0) -> ZoneHistogram:
    """Count a tensor's numbers, times a loss scale, by exponent and zone, without zeros and NaN.

    Raises as `zones_of` does.
    Example: zone_histogram(torch.tensor([1.0, 1.5, 2.0]), FP16).counts["normal"] → (2, 1)
    """
    zones = zones_of(tensor, fmt, loss_scale)
    scaled = tensor.detach().to(work_dtype(tensor, fmt)) * loss_scale
    counted = (zones != _NONE) & scaled.isfinite() & (scaled != 0)
    infinite = int((zones != _NONE).sum() - counted.sum())
    # frexp's fraction lies in [1/2, 1)
    exponents = torch.frexp(scaled[counted]).exponent.long() - 1
    if exponents.numel() == 0:
        return ZoneHistogram((), {zone: () for zone in ZONES}, infinite)
    low, high = int(exponents.min()), int(exponents.max())
    width = high - low + 1
    places = zones[counted].long() * width + (exponents - low)
    table = torch.bincount(places, minlength=len(ZONES) * width).view(len(ZONES), width).tolist()
    counts = {zone: tuple(row) for zone, row in zip(ZONES, table, strict=True)}
    return ZoneHistogram(tuple(range(low, high + 1)), counts, infinite)
