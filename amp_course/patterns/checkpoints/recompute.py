"""Check that activation checkpointing under autocast recomputes dtypes, values and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.audit.snapshot import Snapshot
from amp_course.checking.explain import explain
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
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
    """Compare a model's loss `plain(*batch)` with `checkpointed(*batch)`, to the last bit.

    Both run under autocast to `dtype` (without autocast if it is None), from the same weights,
    buffers and random state, which are restored.
    Example: check_checkpointing(model, (x,), plain=f, checkpointed=g).names →
             ("recomputed-in-another-dtype",)
    """
    snapshot = Snapshot([model], {})
    with sandbox():
        warnings.simplefilter("ignore")  # torch warns of what is reported here anyway
        try:
            base = _Pass(model, snapshot, plain, batch, dtype)
            found = tuple(_Pass(model, snapshot, checkpointed, batch, dtype).compare(base))
        except Exception as error:
            found = (finding("checkpointing-raises", where=explain(error)),)
        finally:
            snapshot.restore()
    checked = ("recomputation", "dtypes", "values", "gradients", "statistics")
    return Report(found, checked, subject="the checkpointed pass")


class _Pass:
    """One forward and backward pass, with every layer's output each time it ran."""

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
            module.register_forward_hook(self._note(name))
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

    def _note(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.outputs.setdefault(name, []).append(output.detach().clone())

        return hook

    def compare(self, plain: _Pass) -> Iterator[Finding]:
        """Yield a finding for every difference from the pass without checkpointing."""
        twice = [
            name
            for name, outputs in self.outputs.items()
            if len(outputs) > len(plain.outputs.get(name, ()))
        ]
        recomputed = self._recomputed(twice) if twice else finding("nothing-recomputed")
        if recomputed:
            yield recomputed
        pairs = [(n, g, plain.gradients[n]) for n, g in self.gradients.items()]
        missing = [n for n, g, wanted in pairs if g is None and wanted is not None]
        if missing:
            yield finding("gradients-missing", where=missing[0])
        elif recomputed is None or not twice:
            differ = [
                n
                for n, g, wanted in pairs
                if g is not None and (wanted is None or not torch.equal(g, wanted))
            ]
            if differ:
                yield finding("gradients-differ", where=differ[0])
        moved = [n for n, b in self.buffers.items() if not torch.equal(b, plain.buffers[n])]
        if moved:
            yield finding("statistics-moved-twice", where=moved[0])

    def _recomputed(self, twice: list[str]) -> Finding | None:
        """Return a finding for the first layer whose second output differs from its first."""
        for name in twice:
            first, again = self.outputs[name][0], self.outputs[name][-1]
            if first.dtype != again.dtype:
                where = f"{name}: {dtype_name(first.dtype)}, then {dtype_name(again.dtype)}"
                return finding("recomputed-in-another-dtype", where=where)
            if not torch.equal(first, again):
                return finding("recomputed-with-other-values", where=name)
        return None
