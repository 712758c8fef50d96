"""Find the loss scales that suit some gradients: few are lost, and none overflow.

A loss scale that is a power of two shifts every gradient by whole exponents and rounds nothing. So
gradients are counted once, between all the sizes at which a zone of one of `FORMATS` begins at one
of these scales. The shares at any scale in any format can then be looked up: ten million gradients
take no longer than ten, and need not be stored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FloatFormat
from amp_course.underflow.zones import ZONES, ZoneHistogram, count_zones, starts

FORMATS = (FP16, BF16, FP8_E5M2, FP8_E4M3)
EXPONENTS = range(-10, 41)  # of the loss scales, powers of two
SPARE = 0.001  # the share of gradients that a useful scale may lose
# the sizes between which gradients are counted; the last is for inf alone
CUTS = sorted(
    {math.ldexp(start, -scale) for fmt in FORMATS for start in starts(fmt) for scale in EXPONENTS}
    | {math.ldexp(1.0, exponent) for exponent in range(-149, 129)}  # the binades of float32
    | {math.inf}
)
Sweep = Mapping[int, Mapping[str, float]]  # exponent of the loss scale → zone → share


@dataclass(frozen=True)
class Window:
    """The useful loss scales, 2^lowest to 2^highest: at most `SPARE` is lost, none overflows."""

    lowest: int
    highest: int


def count_sizes(tensor: Tensor) -> list[int]:
    """Count a tensor's numbers by size, for `Gradients`: one count for each of `CUTS`.

    Zeros and NaN are left out, as in `zone_fractions`; float64 is rounded to float32.

    Raises TypeError for anything but real floating-point numbers.
    Example: count_sizes(torch.tensor([0.0, 1.0, -1.0]))[CUTS.index(1.0)] → 2
    """
    if not tensor.is_floating_point():
        raise TypeError(f"gradients are of real floating-point numbers, and these {tensor.dtype}")
    sizes = tensor.detach().flatten().to("cpu", torch.float32).abs()
    cuts = torch.tensor(CUTS, dtype=torch.float64)
    cells = torch.bucketize(sizes[sizes > 0].double(), cuts, right=True) - 1
    return torch.bincount(cells, minlength=len(CUTS)).tolist()


class Gradients:
    """How many gradients there are of each size.

    counts: of each layer, for each of `CUTS`: how many are at least as large, but smaller than the
            next

    Raises ValueError if there are none.
    Example: Gradients(count_sizes(torch.tensor([1e-8, 0.5]))).fractions(FP16, 0)["lost"] → 0.5
    """

    def __init__(self, *counts: Sequence[int]) -> None:
        together = [sum(cell) for cell in zip(*counts, strict=True)]
        if not any(together):
            raise ValueError("all gradients here are 0 or NaN: was backward() called before this?")
        self.infinite = together[-1]
        self._ranks = [0, *accumulate(together)]  # how many are smaller than each of CUTS
        pairs = zip(CUTS[:-1], together[:-1], strict=True)
        filled = [math.frexp(cut)[1] - 1 for cut, count in pairs if count]
        self._binades = range(filled[0], filled[-1] + 1) if filled else range(0)

    def __len__(self) -> int:
        return self._ranks[-1]

    def fractions(self, fmt: FloatFormat, exponent: int) -> dict[str, float]:
        """Return the share of each zone of `fmt` at a loss scale of 2^exponent."""
        ranks = [0, *(self._below(start, exponent) for start in starts(fmt)), len(self)]
        return {
            zone: (end - start) / len(self)
            for zone, (start, end) in zip(ZONES, pairwise(ranks), strict=True)
        }

    def sweep(self, fmt: FloatFormat) -> Sweep:
        """Return the shares at every loss scale."""
        return {exponent: self.fractions(fmt, exponent) for exponent in EXPONENTS}

    def histogram(self, fmt: FloatFormat, exponent: int) -> ZoneHistogram:
        """Count the scaled sizes by exponent and zone, as `underflow.zone_histogram` does."""
        binades = range(self._binades.start + exponent, self._binades.stop + exponent)
        return count_zones(lambda cut: self._below(cut, exponent), fmt, binades, self.infinite)

    def _below(self, cut: float, exponent: int) -> int:
        return self._ranks[bisect_left(CUTS, math.ldexp(cut, -exponent))]


def find_window(sweep: Sweep) -> Window | None:
    """Return the useful scales; None if at every scale too many are lost or any overflow."""
    useful = [e for e, share in sweep.items() if share["lost"] <= SPARE and not share["overflow"]]
    return Window(min(useful), max(useful)) if useful else None
