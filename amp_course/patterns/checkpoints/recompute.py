"""Check activation checkpointing under autocast: is a block recomputed with the same dtypes,
values and gradients?
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.audit.snapshot import Snapshot
from amp_course.checking.explain import explain
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.report import Report
from amp_course.kit.dtypes import dtype_name


def check_checkpointing(
    model: nn.Module,
    batch: tuple[Any, ...],
    *,
    plain: Callable[..., Tensor],
    checkpointed: Callable[..., Tensor],
    dtype: torch.dtype | None = torch.bfloat16,
) -> Report:
    """Compare two ways to compute the loss of one model: `plain(*batch)` and
    `checkpointed(*batch)`, to the last bit.

    Both run under autocast to `dtype` (None: neither does), from the same weights, buffers and
    random state, which are put back.
    Example: check_checkpointing(model, (x,), plain=f, checkpointed=g).names →
             ("recomputed-in-another-dtype",)
    """
    snapshot = Snapshot([model], {})
    with sandbox():
        warnings.simplefilter("ignore")  # torch warns of what is found here anyway
        try:
            one = _Pass(model, snapshot, plain, batch, dtype)
            two = _Pass(model, snapshot, checkpointed, batch, dtype)
            found = tuple(
                finding(name, **({"where": where} if where else {}))
                for name, where in two.against(one)
            )
        except Exception as error:
            found = (finding("checkpointing-raises", where=explain(error)),)
        finally:
            snapshot.restore()
    checked = ("recomputation", "dtypes", "values", "gradients", "statistics")
    return Report(found, checked, subject="the checkpointed pass")


class _Pass:
    """One forward and backward pass, with what every layer gave out, each time it ran."""

    def __init__(
        self,
        model: nn.Module,
        snapshot: Snapshot,
        loss: Callable[..., Tensor],
        batch: Any,
        dtype: torch.dtype | None,
    ) -> None:
        snapshot.restore()
        for p in model.parameters():
            p.grad = None
        self.outputs: dict[str, list[Tensor]] = {}
        hooks = [
            module.register_forward_hook(self._left(name))
            for name, module in model.named_modules()
            if not any(module.children())
        ]
        device = next(model.parameters()).device.type
        try:
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                value = loss(*batch)
            value.backward()
        finally:
            for hook in hooks:
                hook.remove()
        self.gradients = {
            n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        }
        self.buffers = {n: b.clone() for n, b in model.named_buffers()}

    def _left(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.outputs.setdefault(name, []).append(output.detach().clone())

        return hook

    def against(self, plain: _Pass) -> list[tuple[str, str]]:
        """Return (fault, where) for all that differs from the pass without checkpointing."""
        found = []
        twice = [
            name
            for name, outputs in self.outputs.items()
            if len(outputs) > len(plain.outputs.get(name, ()))
        ]
        if not twice:
            found.append(("nothing-recomputed", ""))
        for name in twice:
            first, again = self.outputs[name][0], self.outputs[name][-1]
            if first.dtype != again.dtype:
                found.append(
                    (
                        "recomputed-in-another-dtype",
                        f"{name}: {dtype_name(first.dtype)}, then {dtype_name(again.dtype)}",
                    )
                )
                break
            if not torch.equal(first, again):
                found.append(("recomputed-with-other-values", name))
                break
        missing = [
            name
            for name, g in self.gradients.items()
            if g is None and plain.gradients[name] is not None
        ]
        if missing:
            found.append(("gradients-missing", missing[0]))
        elif len(found) == 0 or found[0][0] == "nothing-recomputed":
            other = [
                n
                for n, g in self.gradients.items()
                if g is not None and not _equal(g, plain.gradients[n])
            ]
            found += [("gradients-differ", other[0])] if other else []
        moved = [
            name
            for name, buffer in self.buffers.items()
            if not torch.equal(buffer, plain.buffers[name])
        ]
        return found + ([("statistics-moved-twice", moved[0])] if moved else [])


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)
