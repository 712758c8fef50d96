"""Add up many numbers in few bits: the way that stagnates, and three that do not.

All additions are torch's, on tensors of the dtype in question. `torch.sum` itself is not used: it
accumulates fp16 and bf16 in float32 and rounds once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor


def running_sum(terms: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Add terms one after the other in a dtype, and return the total after each: (n,) → (n,).

    dtype: of the running total; by default the terms' own. torch.float32 is what "fp32
           accumulation" means.

    Raises ValueError unless the terms are one row of at least one number, TypeError for integers.
    Example: running_sum(torch.ones(10_000, dtype=torch.float16))[-1] → 2048
    """
    terms = _row(terms).to(dtype or terms.dtype)
    total = torch.zeros((), dtype=terms.dtype, device=terms.device)
    totals = []
    for term in terms:
        total = total + term
        totals.append(total)
    return torch.stack(totals)


def kahan_running_sum(terms: Tensor) -> Tensor:
    """Add terms one after the other, carrying what each addition rounded away: (n,) → (n,).

    Raises as `running_sum` does.
    Example: kahan_running_sum(torch.ones(10_000, dtype=torch.float16))[-1] → 10000
    Source: Kahan 1965, "Further remarks on reducing truncation errors".
    """
    terms = _row(terms)
    total = carried = torch.zeros((), dtype=terms.dtype, device=terms.device)
    totals = []
    for term in terms:
        wanted = term + carried
        grown = total + wanted
        carried = wanted - (grown - total)  # what should have been added, minus what was
        total = grown
        totals.append(total)
    return torch.stack(totals)


def pairwise_sum(terms: Tensor) -> Tensor:
    """Add neighbours, then the sums of neighbours, until one number is left: (n,) → ().

    Numbers of similar size are added, and each goes through log2(n) roundings instead of n.

    Raises as `running_sum` does.
    Example: pairwise_sum(torch.ones(10_000, dtype=torch.float16)) → 10000
    """
    terms = _row(terms)
    while len(terms) > 1:
        if len(terms) % 2:
            terms = torch.cat([terms, terms.new_zeros(1)])
        terms = terms[0::2] + terms[1::2]
    return terms[0]


def _row(terms: Tensor) -> Tensor:
    if not terms.is_floating_point():
        raise TypeError(
            f"these functions add floating-point numbers, and the tensor is {terms.dtype}: convert "
            "it first"
        )
    if terms.dim() != 1 or len(terms) == 0:
        raise ValueError(
            f"the terms have shape {tuple(terms.shape)}: pass a row of at least one, such as "
            "x.flatten()"
        )
    return terms
