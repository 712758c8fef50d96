"""Average gradients over simulated ranks in 16 bits, one addition at a time.

The arithmetic is real: torch's additions and divisions in fp16 or bf16, in the order of a ring or a
tree, each rounded. The ranks are simulated: they are rows of a tensor, and nothing is sent. A real
ring rounds in the same places, because it passes on partial sums in the gradients' dtype; computing
each sum of two in fp32 changes nothing (NVIDIA/nccl#1026). Which algorithm NCCL picks depends on
its version, the size and the links; ring and tree are two of several.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Order = Literal["ring", "tree"]
Divide = Literal["before", "after", "both"]


def reduce_mean(
    shards: Tensor,
    dtype: torch.dtype,
    order: Order = "ring",
    divide: Divide = "before",
    accumulate: torch.dtype | None = None,
) -> Tensor:
    """Average gradients (ranks, elements) over the ranks as an all-reduce in a 16-bit dtype would:
    → (elements,), in the dtype.

    dtype:      the gradients are cast to it, and travel in it
    order:      "ring": each piece goes round the ring, n−1 additions in a row; "tree": pairs, then
                pairs of pairs
    divide:     "before": divide by n, then add: only the cast can overflow; `fp16_compress_hook`
                does so since pytorch#57410; "after": add, then divide by n; "both": by about √n
                before and the rest after, see `predivide_factor`; FSDP2 does so in fp16
    accumulate: the dtype of the additions and of the division after them; by default `dtype`. With
                torch.float32 the terms still travel in 16 bits, but a rank that receives a piece
                from each of the others adds them up, and rounds once

    Example: reduce_mean(torch.full((4, 1), 30_000.0), torch.float16, divide="after") →
             tensor([inf]); 30,000 with "before"
    """
    ranks = len(shards)
    before = {"before": ranks, "after": 1, "both": predivide_factor(ranks)}[divide]
    terms = shards.to(dtype)
    if before > 1:
        terms = terms / before
    terms = terms.to(accumulate or dtype)
    total = {"ring": _ring_sum, "tree": _tree_sum}[order](terms)
    after = ranks / before
    return (total / after if after > 1 else total).to(dtype)


def predivide_factor(ranks: int) -> int:
    """Return the power of two to divide by before the sum, about √ranks: 2 → 2, 3 → 2, 64 → 8.

    Source: fairscale#565, now in torch/distributed/algorithms/_comm_hooks/default_hooks.py.
    """
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return factor


def _ring_sum(terms: Tensor) -> Tensor:
    """Add up (ranks, elements): the piece that ends on rank r begins on rank r+1."""
    ranks, elements = terms.shape
    columns = torch.arange(elements, device=terms.device)
    # the rank on which an element's sum begins
    first = columns // max(1, -(-elements // ranks)) + 1
    total = terms[first % ranks, columns]
    for hop in range(1, ranks):
        total = total + terms[(first + hop) % ranks, columns]
    return total


def _tree_sum(terms: Tensor) -> Tensor:
    """Add up (ranks, elements) pair by pair; an odd row waits for the next round."""
    while len(terms) > 1:
        paired = len(terms) // 2 * 2
        terms = torch.cat([terms[0:paired:2] + terms[1:paired:2], terms[paired:]])
    return terms[0]
