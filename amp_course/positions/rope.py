"""Turn queries and keys by their position (RoPE): the right way, or with one of the faults that
real libraries shipped.

A head of size d is d/2 pairs of channels. Channel pair c turns by the angle position ·
base^(−2c/d), so that the score of a query and a key depends on how far they are apart and on
nothing else. Faults are made by rounding a step into a format; everything else stays float32, as in
the right version.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FloatFormat
from amp_course.bits.rounding import round_to

Fault = Literal["ids", "frequencies", "angles", "matmul", "none"]

FAULTS: dict[Fault, str] = {
    "ids": "position ids cast",
    "frequencies": "inverse frequencies cast",
    "angles": "angles cast",
    "matmul": "outer product as a matmul under autocast",
    "none": "float32 throughout, cast last",
}


@dataclass(frozen=True)
class Rope:
    """A rotary position embedding; one of its steps may be done in a low format.

    head_size: an even number of channels
    base:      the longest wavelength is about 2π · base tokens
    fault:     which step is low, "none" for the right one; FAULTS says what each is
    fmt:       the low format, and the one that cos and sin are cast to last

    Raises TypeError for a head size that is not an int, ValueError for one that is odd or not
    positive, a base of 1 or less, an unknown fault, or autocast's fault in a format that torch
    cannot autocast to.
    Source: Su et al. 2021 (arXiv:2104.09864); channels in two halves, as GPT-NeoX and Llama lay
            them out.
    """

    head_size: int
    base: float = 10_000.0
    fault: Fault = "none"
    fmt: FloatFormat = BF16

    def __post_init__(self) -> None:
        check_head_size(self.head_size)
        if not (self.base > 1 and math.isfinite(self.base)):
            raise ValueError(
                f"the base has to be above 1, such as 10,000, not {self.base}: the frequencies "
                f"fall with it"
            )
        if self.fault not in FAULTS:
            raise ValueError(f"unknown fault {self.fault!r}: choose one of {', '.join(FAULTS)}")
        if self.fault == "matmul" and self.fmt.bits != 16:
            raise ValueError(f"autocast has no {self.fmt.name} on a CPU: it casts to bf16 or fp16")

    def inverse_frequencies(self) -> Tensor:
        """Return by how many radians a step of one position turns each channel pair,
        (d/2,) float32: 1 … about 1/base.
        """
        frequencies = self.base ** (
            -torch.arange(0, self.head_size, 2, dtype=torch.float32) / self.head_size
        )
        return round_to(frequencies, self.fmt) if self.fault == "frequencies" else frequencies

    def angles(self, positions: Tensor) -> Tensor:
        """Return the angles in radians, (n, d/2) float32, of positions (n,) of any dtype."""
        ids, frequencies = positions.float(), self.inverse_frequencies().to(positions.device)
        if self.fault == "ids":
            ids = round_to(ids, self.fmt)
        if self.fault == "matmul":
            with torch.autocast(ids.device.type, dtype=self.fmt.dtype):
                return (ids[:, None] @ frequencies[None, :]).float()
        angles = ids[:, None] * frequencies
        return round_to(angles, self.fmt) if self.fault == "angles" else angles

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (n, d/2): float32 that holds values of the low format,
        to which they are cast last.
        """
        angles = self.angles(positions)
        return round_to(angles.cos(), self.fmt), round_to(angles.sin(), self.fmt)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn queries or keys (…, n, d) by their positions (n,); the dtype of x is kept."""
        cos, sin = self.tables(positions)
        return turned(x, cos, sin)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (c, c + d/2) of x (…, n, d) by angles given as cos and sin (n, d/2);
    keep the dtype of x.
    """
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def exact_angles(positions: Tensor, head_size: int, base: float = 10_000.0) -> Tensor:
    """Return the angles in float64, (n, d/2): what every other version is held against.
    Raises as `Rope` does.
    """
    check_head_size(head_size)
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    return positions.double()[:, None] * frequencies


def turn_error(rope: Rope, positions: Tensor) -> Tensor:
    """Return how far each channel pair really turns from where it should, (n, d/2) radians from 0
    to π.

    The turn is read off cos and sin as they come out, so that their own rounding counts too.
    """
    cos, sin = (table.double() for table in rope.tables(positions))
    right = exact_angles(positions, rope.head_size, rope.base)
    # The angle between (cos, sin) and (cos right, sin right), by the differences of angles.
    across, along = sin * right.cos() - cos * right.sin(), cos * right.cos() + sin * right.sin()
    return torch.atan2(across, along).abs()


def fixed_offset_scores(rope: Rope, starts: Tensor, offset: int, seed: int = 0) -> Tensor:
    """Return q·k of one drawn query and key, `offset` apart, at each start: (n,), all equal if the
    RoPE is right.

    starts: (n,) positions of the key; the query is `offset` further on. Scaled so that q·k unturned
            is 1.
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(rope.head_size, generator=generator)
    k = q + 0.5 * torch.randn(rope.head_size, generator=generator)  # a key that the query looks for
    queries, keys = q.expand(len(starts), -1), k.expand(len(starts), -1)
    scores = (rope.rotate(queries, starts + offset) * rope.rotate(keys, starts)).sum(dim=-1)
    return scores / (q @ k)


def similarity(ids: Sequence[float], head_size: int, base: float = 10_000.0) -> list[list[float]]:
    """Return how alike RoPE makes the same vector at two positions: a row for each id, 1 where they
    are alike.

    The score of a query and an equal key of ones, over its largest value: the mean over channel
    pairs of cos(angle_i − angle_j). ids that are inf give NaN. Raises as `Rope` does for the head
    size. Needs no torch.
    """
    check_head_size(head_size)
    frequencies = [base ** (-channel / head_size) for channel in range(0, head_size, 2)]

    @functools.cache  # many pairs of tokens are as far apart
    def at(distance: float) -> float:
        if not math.isfinite(distance):
            return math.nan
        return sum(math.cos(distance * one) for one in frequencies) / len(frequencies)

    return [[at(abs(query - key)) for key in ids] for query in ids]


def check_head_size(head_size: Any) -> None:
    """Raise TypeError for a head size that is not an int,
    ValueError for one that is odd or not positive.
    """
    if type(head_size) is not int:
        raise TypeError(
            f"a head size has to be an int, not {head_size!r}: pass the number of channels of one "
            f"head"
        )
    if head_size < 2 or head_size % 2:
        raise ValueError(
            f"{head_size} channels cannot be rotated in pairs: RoPE needs an even head size of at "
            f"least 2, such as {max(2, head_size + head_size % 2)}"
        )
