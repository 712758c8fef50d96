"""Find the loss scales that suit given gradients: large enough that few are lost, small enough that
none overflows.

A loss scale that is a power of two shifts every gradient by whole exponents and rounds nothing. So
the sizes are sorted once, and any scale and format is then a matter of looking up where its zones
begin: ten million gradients take no longer than ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.underflow.zones import ZONES, ZoneHistogram, starts

EXPONENTS = range(-10, 41)  # the loss scales that are looked at, as powers of two
SPARE = 0.001  # the share of gradients that a useful scale may lose


@dataclass(frozen=True)
class Window:
    """The useful loss scales, 2^lowest to 2^highest: at most a share of `SPARE` is lost,
    and nothing overflows.
    """

    lowest: int
    highest: int

    def __str__(self) -> str:
        """Return "2^4 to 2^20"."""
        return f"2^{self.lowest} to 2^{self.highest}"


class Gradients:
    """The sizes of some gradients, sorted.

    tensors: any number of tensors of any shape and floating dtype, taken together; zeros and NaN
             are left out, as in `zone_fractions`. float32 sizes are kept unchanged, float64 is
             rounded to float32.

    Raises TypeError for anything but float tensors, ValueError if they hold nothing but 0 and NaN.
    Example: Gradients(torch.tensor([1e-8, 0.5])).fractions(FP16, 0)["lost"] → 0.5, and 0.0 at an
             exponent of 16
    """

    def __init__(self, *tensors: Tensor) -> None:
        """Sort the sizes, in time n log n."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(
                    f"gradients are float tensors, and this is {kind}: pass parameter.grad, or a "
                    f"recording."
                )
        flat = [tensor.detach().flatten().to("cpu", torch.float32).abs() for tensor in tensors]
        sizes = torch.cat(flat) if flat else torch.empty(0)
        self.sizes = sizes[sizes > 0].sort().values
        self.infinite = int(self.sizes.isinf().sum())
        if not len(self.sizes):
            raise ValueError("all gradients here are 0 or NaN: was backward() called before this?")

    def __len__(self) -> int:
        return len(self.sizes)

    def fractions(self, fmt: FloatFormat, exponent: int) -> dict[str, float]:
        """Return the share of each zone of `ZONES` at a loss scale of 2^exponent,
        rounded as the format rounds.
        """
        below = [0, *self._below(starts(fmt), exponent), len(self)]
        return {
            zone: (end - start) / len(self)
            for zone, (start, end) in zip(ZONES, pairwise(below), strict=True)
        }

    def sweep(
        self, fmt: FloatFormat, exponents: Sequence[int] = EXPONENTS
    ) -> dict[int, dict[str, float]]:
        """Return the shares at many loss scales: exponent → zone → share."""
        return {exponent: self.fractions(fmt, exponent) for exponent in exponents}

    def window(
        self, fmt: FloatFormat, spare: float = SPARE, exponents: Sequence[int] = EXPONENTS
    ) -> Window | None:
        """Return the useful scales among `exponents`, or None if there is none: what is not lost
        then overflows.

        Raises ValueError for a `spare` that is no share.
        """
        if not 0 <= spare < 1:
            raise ValueError(
                f"spare is {spare}: it is the share that may be lost, from 0 to below 1, such as "
                f"0.001."
            )
        shares = self.sweep(fmt, exponents)
        fitting = [
            e for e, share in shares.items() if share["lost"] <= spare and share["overflow"] == 0
        ]
        return Window(min(fitting), max(fitting)) if fitting else None

    def histogram(self, fmt: FloatFormat, exponent: int) -> ZoneHistogram:
        """Count the scaled sizes by exponent and zone, as `underflow.zone_histogram` does."""
        finite = self.sizes[: len(self) - self.infinite]
        if not len(finite):
            return ZoneHistogram((), {zone: () for zone in ZONES}, len(self))
        low, high = (math.frexp(float(end))[1] - 1 + exponent for end in (finite[0], finite[-1]))
        exponents = range(low, high + 1)
        zone_starts = starts(fmt)
        cuts = sorted({*(2.0**e for e in exponents), 2.0 ** (high + 1), *zone_starts})
        below = self._below(cuts, exponent)
        counts = {zone: [0] * len(exponents) for zone in ZONES}
        for cut, (start, end) in zip(cuts, pairwise(below), strict=False):
            place = math.frexp(cut)[1] - 1 - low
            if 0 <= place < len(exponents):
                counts[ZONES[sum(cut >= first for first in zone_starts)]][place] += end - start
        return ZoneHistogram(
            tuple(exponents), {zone: tuple(row) for zone, row in counts.items()}, self.infinite
        )

    def _below(self, cuts: Sequence[float], exponent: int) -> list[int]:
        """Return how many sizes are below each cut after scaling."""
        at = torch.tensor([cut * 2.0**-exponent for cut in cuts], dtype=torch.float64)
        # Up to the next float32, as no size lies between: a float64 copy of the sizes would take
        # twice their memory.
        floor = at.to(torch.float32)
        floor = torch.where(floor.double() < at, floor.nextafter(torch.tensor(math.inf)), floor)
        return torch.searchsorted(self.sizes, floor).tolist()
