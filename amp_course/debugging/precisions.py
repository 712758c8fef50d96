"""Compute one loss and its gradients in fp64, fp32 and under autocast, and see which go wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from amp_course.diagnosis.report import listed
from amp_course.kit.compiled import uncompiled, uncompiled_run
from amp_course.kit.random_state import same_random_state
from amp_course.kit.report import Block, Page, Table
from amp_course.watching.calling import cloned

# The others are compared with fp64.
PRECISIONS = ("fp64", "fp32", "amp_bf16", "amp_fp16")
_SCALES = [2.0**power for power in range(16, -9, -4)]


@dataclass(frozen=True)
class Outcome:
    """A loss and its gradients, computed in one precision.

    precision: of PRECISIONS
    loss:      its value
    scale:     the loss was multiplied by this before the backward pass, so that fp16 gradients do
               not underflow
    nonfinite: names of the parameters whose gradient holds an inf or a NaN
    zero:      share of the gradients' elements that are 0 here and not in fp64
    error:     the norm of the difference from the fp64 gradient, divided by the norm of that; NaN
               if one is not finite
    worst:     the parameter whose gradient differs most, relative to its own norm
    raised:    what the computation raised, on one line; "" if nothing
    """

    precision: str
    loss: float = math.nan
    scale: float = 1.0
    nonfinite: tuple[str, ...] = ()
    zero: float = 0.0
    error: float = math.nan
    worst: str = ""
    raised: str = ""

    @property
    def finite(self) -> bool:
        """Return True if loss and gradients are finite, and nothing was raised."""
        return math.isfinite(self.loss) and not self.nonfinite and not self.raised


@dataclass(frozen=True, repr=False)
class Precisions(Page):
    """The outcomes, and what they mean together."""

    outcomes: tuple[Outcome, ...]

    def __getitem__(self, precision: str) -> Outcome:
        return next(one for one in self.outcomes if one.precision == precision)

    @property
    def verdict(self) -> str:
        """What the comparison says, in a sentence or two."""
        raised = [one for one in self.outcomes if one.raised]
        if not raised:
            return self._verdict()
        if len(raised) == len(self.outcomes):
            return f"It runs in none of them ({raised[0].raised}): `loss(model, *batch)` has to."
        where = _listed(one.precision for one in raised)
        return (
            f"It does not run in {where} ({raised[0].raised}), so that says nothing. "
            f"{self._verdict()}"
        )

    def _verdict(self) -> str:
        fine = {one.precision: one.finite for one in self.outcomes if not one.raised}
        bad = [name for name in PRECISIONS if not fine.get(name, True)]
        if "fp64" in bad:
            return (
                "Not finite in fp64 either: no format is to blame. Look for the formula (a "
                "division by 0, the log of 0, a whole row masked) or for inf or NaN in data and "
                "weights; `first_nonfinite` names the op."
            )
        if "fp32" in bad:
            return (
                f"{'Finite in fp64 and not' if 'fp64' in fine else 'Not finite'} in fp32: a value "
                "leaves the range of fp32, or a difference of close numbers becomes 0. Rewrite the "
                "formula, for example subtract the maximum before `exp`; AMP has no part in it."
            )
        if bad == ["amp_fp16"]:
            return (
                "Finite in fp32 and bf16, not in fp16: a value leaves the range of fp16, which "
                "ends at 65,504. Keep that part in fp32 (`torch.autocast(…, enabled=False)`), "
                "scale it down, or train in bf16."
            )
        if bad:
            return (
                f"Finite in fp32, not under autocast in {_listed(bad)}: rounding to few bits makes "
                "something 0 that is divided by or whose log is taken. Keep that part in fp32."
            )
        far = {one.precision: f"{one.error:.0%}" for one in self.outcomes if one.error > 0.5}
        if far:
            return (
                f"All finite, but the gradients in {_listed(far)} are off by {listed(far.values())}"
                " of the norm of those in fp64: look at what is lost there."
            )
        if "fp64" not in fine:
            return (
                "All others are finite; without fp64 there is nothing to compare their gradients "
                "with."
            )
        return (
            "All finite, and close to the gradients in fp64: this step is not where the trouble "
            "begins."
        )

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        head = "computed in|loss|gradients not finite|became 0|error of the gradient|most in"
        rows = [head.split("|")]
        for one in self.outcomes:
            if one.raised:
                rows.append([one.precision, one.raised, "", "", "", ""])
                continue
            first = f"{len(one.nonfinite)}, {one.nonfinite[0]} first" if one.nonfinite else "none"
            error = "not finite" if math.isnan(one.error) else f"{one.error:.2g}"
            if one.precision == "fp64":
                error = "-"
            zero = f"{100 * one.zero:.2g} %"
            rows.append([one.precision, f"{one.loss:.6g}", first, zero, error, one.worst])
        return rows

    def blocks(self) -> Iterator[Block]:
        yield Table(self.rows())
        yield self.verdict


def compare_precisions(
    loss: Callable[..., Tensor], model: nn.Module, batch: Any = ()
) -> Precisions:
    """Compute `loss(model, *batch)` and its gradients in several precisions, on copies of `model`.

    loss:  takes the model and the batch, and returns the loss; it opens no autocast region of its
           own
    batch: a tuple, or one object; float tensors in it are cast to fp64 or fp32 as the model is

    In fp16 the loss is scaled by 65,536, or less if a gradient overflows; the gradients are
    unscaled again. Each precision gets the same random numbers. Raises TypeError if `model` is no
    module.
    Example: compare_precisions(lambda model, x, y: cross_entropy(model(x), y), model, (x, y))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}, not a torch.nn.Module: the order is "
            "compare_precisions(loss, model, batch)."
        )
    args = batch if isinstance(batch, (tuple, list)) else (batch,)
    reference: dict[str, Tensor] = {}
    outcomes = []
    with uncompiled_run():
        for precision in PRECISIONS:
            for scale in _SCALES if precision == "amp_fp16" else (1.0,):
                found = _compute(loss, uncompiled(model), args, precision, scale, reference)
                if not found.nonfinite or not math.isfinite(found.loss):
                    break
            outcomes.append(found)
    return Precisions(tuple(outcomes))


def _compute(
    loss: Callable[..., Tensor],
    model: nn.Module,
    args: Any,
    precision: str,
    scale: float,
    reference: dict[str, Tensor],
) -> Outcome:
    """Compute one outcome; reference: the fp64 gradients, filled by the first call."""
    base = torch.float64 if precision == "fp64" else torch.float32
    with same_random_state():
        own = copy.deepcopy(model).to(base)
        own.zero_grad()
        device = next((weight.device.type for weight in own.parameters()), "cpu")
        batch = pytree.tree_map(lambda leaf: _cast(leaf, base), cloned(tuple(args)))
        dtype = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(precision)
        try:
            with torch.enable_grad(), torch.autocast(device, enabled=False):  # a caller's is off
                with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                    value = loss(own, *batch)
                (value * scale).backward()
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            return Outcome(precision, raised=f"{type(error).__name__}: {first_line}")
    grads = {
        name: weight.grad.detach().double() / scale
        for name, weight in own.named_parameters()
        if weight.grad is not None
    }
    if precision == "fp64":
        reference.update(grads)
    nonfinite = tuple(name for name, grad in grads.items() if not grad.isfinite().all())
    shared = [name for name in grads if name in reference]
    off = {name: float((grads[name] - reference[name]).norm()) for name in shared}
    norms = {name: float(reference[name].norm()) for name in shared}
    whole = math.sqrt(sum(norm**2 for norm in norms.values()))
    share = math.sqrt(sum(part**2 for part in off.values())) / whole if whole else math.nan
    worst = max(shared, key=lambda name: off[name] / (norms[name] or math.inf), default="")
    zeros = sum(int(((grads[name] == 0) & (reference[name] != 0)).sum()) for name in shared)
    count = sum(grad.numel() for grad in grads.values())
    return Outcome(
        precision,
        float(value.detach()),
        scale,
        nonfinite,
        zeros / count if count else 0.0,
        0.0 if precision == "fp64" and not nonfinite else share,
        "" if precision == "fp64" or nonfinite else worst,
    )


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _listed(precisions: Iterable[str]) -> str:
    return listed(name.removeprefix("amp_") for name in precisions)
