"""Change gradients on purpose: make them larger or smaller, put an inf into them."""

from __future__ import annotations

import torch
from torch import Tensor

from amp_course.watching.records import Intervention, Layout


def added(now: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return what was added to a gradient; None if nothing was."""
    if now is None:
        return None
    now = now.detach()
    if before is None:
        return now
    strided = now.layout == before.layout == torch.strided
    if strided and torch.equal(now, before):  # False for another shape, and for NaN
        return None
    if strided and before.isnan().any() and torch.equal(now.nan_to_num(), before.nan_to_num()):
        return None
    added = now - before
    return added if added.layout != torch.strided or bool((added != 0).any()) else None


def enlarge(p: Tensor, before: Tensor | None, added: Tensor, factor: float) -> None:
    """Multiply what was added to a gradient by a factor, in place if possible."""
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        p.grad = added * factor if before is None else added * factor + before
    elif before is None:
        p.grad.detach().mul_(factor)
    else:
        p.grad.detach().copy_(before + added * factor)


def inject_inf(slot: Layout, intervention: Intervention) -> None:
    """Put an inf or NaN into one gradient of a slot."""
    for p in reversed(slot.parameters) if intervention.last else slot.parameters:
        grad = None if p.grad is None else p.grad.detach()
        if grad is None or not grad.numel():
            continue
        if grad.layout == torch.strided:
            grad[(0,) * grad.dim()] = intervention.bad
            return
        if grad._nnz():
            grad._values().view(-1)[0] = intervention.bad
            return
