"""Bias attention by distance (ALiBi), exactly and with position ids that are rounded.

The bias of a key is −slope · distance: zero for the token itself, lower the further back it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.bits.rounding import round_to


def alibi_slopes(heads: int) -> Tensor:
    """Return the slope of each head, (heads,) float32: 8 → 1/2, 1/4, … 1/256.

    For a power of two, the geometric sequence that starts at 2^(−8/heads) with the same ratio. For
    other numbers, that of the next lower power of two, then every second slope of the next higher.

    Raises ValueError for fewer than one head.
    Source: Press et al. 2022 (arXiv:2108.12409), section 3, and the authors' code for other
            numbers.
    """
    if heads < 1:
        raise ValueError(f"ALiBi needs at least 1 head, not {heads}")
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32)


def alibi_bias(slopes: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Return −slope · (query − key), (heads, queries, keys) float32; exact for slopes 2^−k.

    slopes (heads,); queries and keys: positions, (queries,) and (keys,) integers
    Distances are between integers, so that only the product is rounded. The bias is positive where
    a key comes after its query: causal attention masks those.

    Raises TypeError for positions that are not integers.
    """
    for positions in (queries, keys):
        if positions.is_floating_point():
            raise TypeError(
                f"positions have to be integers, not {positions.dtype}: pass torch.arange(n)"
            )
    distance = queries[:, None] - keys[None, :]
    return -slopes.float()[:, None, None] * distance


def bias_from_cast_ids(slopes: Tensor, queries: Tensor, keys: Tensor, fmt: FloatFormat) -> Tensor:
    """Return `alibi_bias` with the fault: position ids are rounded before they are subtracted."""
    distance = round_to(queries.float(), fmt)[:, None] - round_to(keys.float(), fmt)[None, :]
    return -slopes.float()[:, None, None] * distance
