"""The three op lists that a small autocast is handed, and single ops to ask it about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# What a mode is asked about, by the function that it is handed; `a @ b` arrives as Tensor.matmul.
LOWER_OPS = frozenset(
    {
        *(F.linear, F.conv2d, F.scaled_dot_product_attention, torch.addmm, torch.einsum),
        *(torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__),
    }
)
FP32_OPS = frozenset(
    {F.mse_loss, F.l1_loss, F.nll_loss, F.cross_entropy, F.binary_cross_entropy_with_logits, torch.cdist, torch.prod}
)
WIDEST_OPS = frozenset({torch.cat, torch.stack, torch.index_copy, Tensor.index_copy})

LOWERED = "its op is on the lower list, so every float32 argument is cast before it runs"


@dataclass(frozen=True)
class Case:
    """One op: its code as shown, what it does, and why torch.autocast does with it what it does."""

    shown: str
    run: Callable[[], Tensor]
    why: str


def cases(a: Tensor, b: Tensor, dtype: torch.dtype) -> list[Case]:
    """Give the cases for two float32 matrices, drawn; h is low, d is float64, i holds integers."""
    h, d, i, mask = a.to(dtype), a.double(), torch.arange(64).view(8, 8) % 8, torch.ones(8, 8).tril().bool()
    integers = "integer tensors are ids, masks and counts: cast only where `is_floating_point()` holds"
    widest = "it is on the widest list: all its tensors go to the widest dtype among them"
    nested = (
        "look for tensors in keyword arguments and inside lists and tuples too; `torch.utils._pytree.tree_map` does"
    )
    unlisted = "its op is on none of the three lists, and then nothing is cast"
    return [
        Case("i @ i", lambda: i @ i, integers),
        Case("d @ d", lambda: d @ d, "autocast leaves float64 alone: cast float32 and the 16-bit dtypes only"),
        Case("torch.mm(a, b)", lambda: torch.mm(a, b), LOWERED),
        Case("a @ b", lambda: a @ b, LOWERED),
        Case("h @ b", lambda: h @ b, LOWERED),
        Case("F.linear(a, weight=b, bias=b[0])", lambda: F.linear(a, weight=b, bias=b[0]), nested),
        Case('torch.einsum("ij,jk->ik", [a, b])', lambda: torch.einsum("ij,jk->ik", [a, b]), nested),
        Case("attention with a mask", lambda: F.scaled_dot_product_attention(a, b, a, attn_mask=mask), integers),
        Case("F.mse_loss(h, h)", lambda: F.mse_loss(h, h), "it is on the fp32 list: 16-bit arguments are cast up"),
        Case("F.cross_entropy(h, i[0])", lambda: F.cross_entropy(h, i[0]), integers),
        Case("torch.cat([a, h])", lambda: torch.cat([a, h]), widest),
        Case("torch.cat([h, h])", lambda: torch.cat([h, h]), widest),
        Case("torch.index_copy(h, 0, i[0, :1], a[:1])", lambda: torch.index_copy(h, 0, i[0, :1], a[:1]), widest),
        Case("torch.stack(tensors=(h, a))", lambda: torch.stack(tensors=(h, a)), nested),
        Case("torch.stack([i, i])", lambda: torch.stack([i, i]), integers),
        Case("h.exp()", lambda: h.exp(), unlisted),
        Case("a.exp()", lambda: a.exp(), unlisted),
        Case("h + a", lambda: h + a, unlisted),
    ]
