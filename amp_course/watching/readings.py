"""The range of one tensor: how large its values are, and which of them 16 bits would lose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from amp_course.kit.tensors import short

Kind = Literal["activation", "activation gradient", "weight", "weight gradient"]
KINDS: tuple[Kind, ...] = ("activation", "activation gradient", "weight", "weight gradient")
_SAMPLE = 2**14  # elements that are counted; the largest is found among all


@dataclass(frozen=True)
class Reading:
    """The values of one tensor at one moment.

    number:   of the forward pass, from 1
    module:   path of the module, "" for the model itself; of a weight, the path of the weight
    kind:     what the tensor is
    dtype:    "fp16"
    largest:  the largest magnitude, inf and NaN included
    smallest: the smallest magnitude above 0, in a sample of the elements; NaN if all are 0
    zero:     share of zeros in the sample
    lost:     share of the sample that is not 0 but rounds to 0 in the watched format
    headroom: doublings until the largest overflows in the watched format: 16 for 1.0 in fp16;
              negative if it already does; inf for a tensor of zeros, NaN for a NaN
    """

    number: int
    module: str
    kind: Kind
    dtype: str
    largest: float
    smallest: float
    zero: float
    lost: float
    headroom: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.largest)


class Ranges:
    """The readings of a model's values, in order.

    dtype: the format whose range counts, or the course's name of it
    every: forward passes from one that was measured to the next
    """

    def __init__(self, dtype: torch.dtype | str, every: int, readings: Sequence[Reading]) -> None:
        self.dtype, self.every, self.readings = dtype, every, readings

    def of(self, kind: Kind) -> dict[str, list[Reading]]:
        """Return the readings of one kind, module by module, in the order of their first run."""
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
        found: dict[str, list[Reading]] = {}
        for reading in self.readings:
            if reading.kind == kind:
                found.setdefault(reading.module, []).append(reading)
        return found


def read_range(
    tensor: Tensor, dtype: torch.dtype, number: int = 1, module: str = "", kind: Kind = "activation"
) -> Reading:
    """Read a tensor's range for the format `dtype`. Raises ValueError if either has none.

    Example: read_range(torch.tensor([1024.0, 2.0**-26]), torch.float16) → headroom 6.0, lost 0.5
    """
    if not (tensor.is_floating_point() and dtype.is_floating_point) or not tensor.numel():
        raise ValueError(
            "a range needs floats, at least one, and this is "
            f"{short(tensor.dtype)} × {tensor.numel()}."
        )
    limits = torch.finfo(dtype)
    values = tensor.detach()
    largest = max(abs(float(end)) for end in torch.aminmax(values))
    flat = values.reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].float().abs()
    above = sample > 0
    # Half of the smallest number, and less, rounds to 0.
    lost = (sample <= limits.smallest_normal * limits.eps / 2) & above
    smallest = float(sample.masked_fill(~above, math.inf).min())
    return Reading(
        number=number,
        module=module,
        kind=kind,
        dtype=short(tensor.dtype),
        largest=largest,
        smallest=smallest if math.isfinite(smallest) else math.nan,
        zero=1 - float(above.float().mean()),
        lost=float(lost.float().mean()),
        headroom=math.log2(limits.max) - math.log2(largest) if largest else math.inf,
    )
