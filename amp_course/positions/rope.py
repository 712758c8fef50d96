"""Rotate queries and keys by their position (RoPE): correctly, or with a fault of real libraries.

A head of size d is d/2 pairs of channels. Channel pair c turns by the angle position ·
base^(−2c/d), so that the score of a query and a key depends only on the distance between them. A
fault rounds one step to a low format; everything else stays float32, as in the right version.
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
    fault:     which step is low, "none" for the right one; FAULTS describes each
    fmt:       the low format, to which cos and sin are always cast last

    Raises TypeError for a head size that is not an int; ValueError for one that is odd or not
    positive, a base of 1 or less, an unknown fault, or the fault "matmul" in a format that
    autocast lacks.
    Source: Su et al. 2021 (arXiv:2104.09864); channels in two halves, as in GPT-NeoX and Llama.
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
        """Return each channel pair's radians per position, (d/2,) float32: 1 … about 1/base."""
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
        """Return cos and sin, each (n, d/2): float32 tensors of values of the low format."""
        angles = self.angles(positions)
        return round_to(angles.cos(), self.fmt), round_to(angles.sin(), self.fmt)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys (…, n, d) by their positions (n,), in their own dtype."""
        return turned(x, *self.tables(positions))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the channel pairs (c, c + d/2) of x (…, n, d); cos and sin of the angles: (n, d/2)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def exact_angles(positions: Tensor, head_size: int, base: float = 10_000.0) -> Tensor:
    """Return the angles in float64, (n, d/2), to compare others with. Raises as `Rope` does."""
    check_head_size(head_size)
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    return positions.double()[:, None] * frequencies


def turn_error(rope: Rope, positions: Tensor) -> Tensor:
    """Return the angle between each channel pair and where it should be, (n, d/2), 0 to π.

    The angle is that of the final cos and sin, so that their own rounding counts too.
    """
    cos, sin = (table.double() for table in rope.tables(positions))
    right = exact_angles(positions, rope.head_size, rope.base)
    # sine and cosine of the difference of the two angles
    across, along = sin * right.cos() - cos * right.sin(), cos * right.cos() + sin * right.sin()
    return torch.atan2(across, along).abs()


def fixed_offset_scores(rope: Rope, starts: Tensor, offset: int, seed: int = 0) -> Tensor:
    """Return q·k of a random query and key at each start, (n,): all equal if the RoPE is right.

    starts: (n,) positions of the key; the query is `offset` further on. Scaled so that q·k without
            rotation is 1.
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(rope.head_size, generator=generator)
    k = q + 0.5 * torch.randn(rope.head_size, generator=generator)  # similar to the query
    queries, keys = q.expand(len(starts), -1), k.expand(len(starts), -1)
    scores = (rope.rotate(queries, starts + offset) * rope.rotate(keys, starts)).sum(dim=-1)
    return scores / (q @ k)


def similarity(ids: Sequence[float], head_size: int, base: float = 10_000.0) -> list[list[float]]:
    """Return how alike RoPE makes the same vector at two positions: a row for each id, at most 1.

    That is the score of a query and a key that are all ones, over its largest value: the mean over
    channel pairs of cos(angle_i − angle_j). An id of inf gives NaN. Raises as `Rope` does for the
    head size. Needs no torch.
    """
    check_head_size(head_size)
    frequencies = [base ** (-channel / head_size) for channel in range(0, head_size, 2)]

    @functools.cache  # many pairs of tokens have the same distance
    def at(distance: float) -> float:
        if not math.isfinite(distance):
            return math.nan
        return sum(math.cos(distance * frequency) for frequency in frequencies) / len(frequencies)

    return [[at(abs(query - key)) for key in ids] for query in ids]


def check_head_size(head_size: Any) -> None:
    """Raise TypeError for a head size that is not an int, ValueError if odd or below 2."""
    if type(head_size) is not int:
        raise TypeError(
            f"a head size has to be an int, not {head_size!r}: pass the number of channels of one "
            "head"
        )
    if head_size < 2 or head_size % 2:
        raise ValueError(
            f"{head_size} channels cannot be rotated in pairs: RoPE needs an even head size of at "
            f"least 2, such as {max(2, head_size + head_size % 2)}"
        )
