"""Experiments on what the optimizers get: again, at two loss scales, large, without a scaler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from amp_course.audit.results import State, StopAudit
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import along, near
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import in_fp16_unscaled
from amp_course.diagnosis.rules.exceptions import describe_error
from amp_course.diagnosis.rules.gradients import (
    Pair,
    arrived,
    arrived_for_masters,
    by_calls,
    carries_scale,
    check_scale,
    divided_twice,
    first_use,
    tolerance_for,
)
from amp_course.diagnosis.rules.stress import check_clipping, check_early_clipping
from amp_course.watching.records import Intervention, Update
from amp_course.watching.uses import StepUse

_RATIO = 4.0  # between two loss scales: few more gradients underflow at the lower one
_FAR = 1000.0  # how far above max_norm gradients are brought to see clipping
_LARGE = 1e4  # the norm that gradients are brought to where max_norm is not known
_SMALL = 1e-4  # the norm, loss scale included, of gradients that no clip touches
_SCALE = 128.0  # a loss multiplied by a power of 2, this one or a higher, is scaled by hand


def repeat_first(state: State) -> None:
    """Run the first update again: are the gradients the same?"""
    run, results = state.run, state.results
    again = run.repeat()
    if again.error is not None:
        raise StopAudit(
            "the step ran once, and run again from the same state it raised "
            f"{describe_error(again.error)}"
        )
    state.noise, state.known = _noise(state, again), len(results.found)
    if drawn := sorted(run.snapshot.iterators - {"batches"}):
        state.unsteady = (
            f"the step draws from an iterator that cannot be put back (`{drawn[0]}`), so no two "
            "runs of it are the same"
        )
    elif state.noise >= 0.1:
        state.unsteady = (
            "two runs of the step on the same batch gave different gradients (relative distance "
            f"{state.noise:.2g})"
        )
    for behaviour in ("loss scale", "clipping", "gradient") if state.unsteady else ():
        results.leave_out(behaviour, state.unsteady)


def _noise(state: State, again: Update) -> float:
    """Return the largest relative distance between the gradients of two runs of an update."""
    worst = 0.0
    for one, other in _uses(state, again):
        if one is None or other is None:
            worst = max(worst, 0.0 if one is other else math.inf)
            continue
        factor, distance = along(one.step.gradient.values, other.step.gradient.values)
        worst = max(worst, distance, abs(factor - 1))
    return worst


def _uses(state: State, other: Update) -> Iterator[tuple[StepUse | None, StepUse | None]]:
    """Yield what each optimizer used first in the first update and in another run of it."""
    for number in state.run.optimizers:
        yield first_use(state.first, number), first_use(other, number)


def enlarge(state: State) -> None:
    """Run the first update with gradients far above any limit, if that is possible."""
    if not state.run.training.scalers and state.max_norm is None:
        return
    norms, largest = [], 0.0
    for number in state.run.optimizers:
        used, values = first_use(state.first, number), _arrivals(state, state.first, number)
        if used is not None and values is not None and bool(values.any()):
            total, scale = arrived(used, number), state.run.scale_of(number)
            norms.append(used.step.gradient.norm if total is None else total.norm / scale)
            largest = max(largest, float(values.abs().max()))
    if not norms:
        return
    wanted = _FAR * state.max_norm if state.max_norm else _LARGE
    factor = max(wanted, _FAR * max(norms)) / min(norms)
    if any(p.dtype == torch.float16 for p in state.run.training.parameters):
        factor = min(factor, 2.0**14 / largest)
    if factor >= (4 if state.max_norm else 30):
        large = state.run.repeat(Intervention(factor))
        state.large, state.factor = (large if large.error is None else None), factor


def compare_scales(state: State) -> None:
    """Run the first update at another loss scale: is what the optimizers get the same?"""
    run, results, first, large = state.run, state.results, state.first, state.large
    if not run.training.scalers:
        return results.leave_out("loss scale", "there is no `GradScaler` that is enabled")
    if not first.called("scale") and not first.called("scaler.step"):
        return results.leave_out("loss scale", "the scaler that was passed is never used")
    # Each scaler has its own ratio: that shows which one has scaled a loss.
    ratios = [_RATIO * 2**n for n in range(len(run.scales))]
    each = list(zip(run.scales, ratios, strict=True))
    other = [scale / ratio if scale >= 16 else scale * ratio for scale, ratio in each]
    low = run.repeat(scales=other)
    if low.error is None and not low.finite and other[0] > run.scales[0]:
        other = [scale / ratio for scale, ratio in each]
        low = run.repeat(scales=other)
    if low.error is not None or not low.finite:
        return results.leave_out("loss scale", "the step did not run at another loss scale")
    pair_large = None
    if large is not None:
        large_low = run.repeat(Intervention(state.factor), other)
        pair_large = (large, large_low) if large_low.error is None else None
    results.add(judged="loss scale")
    tolerance = max(tolerance_for(run.dtypes), 1e-3, 3 * state.noise)
    for number in run.optimizers:
        owner = run.owners.get(number, 0)
        pair = Pair(first, low, (run.scales[owner], other[owner]), tolerance, pair_large)
        results.add(_confirmed(state, check_scale(pair, number), pair, number, other), number)
        if not carries_scale(pair, number):
            state.unscaled.add(number)
    return None


def _confirmed(
    state: State, found: Iterable[Finding], pair: Pair, number: int, other: Sequence[float]
) -> list[Finding]:
    """Run the two scales again with small gradients: is it a clip, or are they divided twice?"""
    named = list(found)
    norm = _norm_that_arrived(pair.high, number)
    if not norm or all(one.name != "clipped-while-scaled" for one in named):
        return named
    small, run = Intervention(_SMALL / norm), state.run
    small_pair = Pair(run.repeat(small), run.repeat(small, other), pair.scales, 1.0)
    if not divided_twice(small_pair, number):
        return named
    cause = "the gradients are divided by the loss scale twice: by hand, and by the scaler"
    return [replace(finding("unscaled-twice", cause), evidence=named[0].evidence)]


def judge_clipping(state: State) -> None:
    """Look at what is left of large gradients."""
    first, large, factor, results = state.first, state.large, state.factor, state.results
    if large is None:
        if state.max_norm is not None:
            results.leave_out("clipping", "gradients could not be brought far above max_norm")
        return
    if state.max_norm is not None:
        found: list[Any] = []
        if len(results.found) == state.known:  # no fault of the loss scale
            found += check_clipping(first, large, factor, state.max_norm, state.run.training)
        wrong = any(isinstance(one, Finding) and one.name == "clipped-wrong" for one in found)
        early = _clipped_while_scaled_by_hand(state, large, state.max_norm) if wrong else None
        results.add(found if early is None else [early], judged="clipping")
    for number in state.run.optimizers:
        results.add(check_early_clipping(first, large, factor, number), number)


def _clipped_while_scaled_by_hand(state: State, large: Update, max_norm: float) -> Finding | None:
    """Learn from small gradients what the step divides by: was the norm max_norm before that?"""
    for number in state.run.optimizers if not state.run.training.scalers else ():
        cut, total = first_use(large, number), _arrivals(state, large, number)
        if cut is None or total is None:
            continue
        norm, length = cut.step.gradient.norm, 0.5 * max_norm
        whole = first_use(state.run.repeat(Intervention(length / float(total.norm()))), number)
        scale = length / whole.step.gradient.norm if whole is not None else 0.0
        if scale > 2 and near(norm * scale, max_norm):
            cause = (
                "the gradients were clipped before they were divided by the loss scale: their norm "
                "comes out that much too small"
            )
            shown = {"norm_at_the_step": norm, "max_norm": max_norm, "loss_scale": scale}
            return finding("clipped-while-scaled", cause, variant="by-hand", **shown)
    return None


def _arrivals(state: State, update: Update, number: int) -> torch.Tensor | None:
    """Return what arrived for an optimizer's first step, or at the weights its masters copy."""
    used = first_use(update, number)
    total = used and arrived(used, number)
    if used and not total:
        return arrived_for_masters(update, state.run.training, number)
    return total.values if total else None


def _norm_that_arrived(update: Update, number: int) -> float:
    """Return the norm of what arrived for an optimizer's first step, 0 if it is not known."""
    used = first_use(update, number)
    total = used and arrived(used, number)
    return total.norm if total else 0.0


def judge_without_scaler(state: State) -> None:
    """Judge fp16 autocast without a scaler: is the loss scaled by hand, or not at all?"""
    first, run = state.first, state.run
    if not in_fp16_unscaled(first, run.training):
        return
    shares = []
    factor = max(event.graph.factor for event in first.backwards)
    for number in run.optimizers:
        used, norm = first_use(first, number), _norm_that_arrived(first, number)
        if used is None or not norm:
            return
        shares.append(used.step.gradient.norm / norm)
        if shares[-1] > 0.5 and factor >= _SCALE and math.log2(factor).is_integer():
            return state.results.add([finding("still-scaled", loss_scale=factor)])
        if len(first.references) == first.calls:
            wanted = sum(first.references[call][number].norm for call in by_calls(used, number))
            if wanted and norm / wanted > 8:
                return _scaled_by_hand(state, f"by about {norm / wanted:.3g}")
    if factor > 8:
        return _scaled_by_hand(state, f"by {factor:.6g}")
    if max(shares) < 1 / 8 and _is_divided(state):
        divided = f"and the gradients are divided by {1 / max(shares):.4g} before the step"
        return _scaled_by_hand(state, divided)
    unused = "the scaler that was passed is never used"
    why = unused if run.passed else "no scaler is used, or a disabled one"
    cause = (
        f"the forward pass runs in fp16 and the loss is not scaled ({why}): gradients below 3e-8 "
        "become 0"
    )
    values = [one.values for event in first.backwards for one in event.arrived.values()]
    zeros = f"{(torch.cat(values) == 0).float().mean().item():.1%}"
    found = finding("fp16-without-scaler", cause, gradients_that_are_exactly_0=zeros)
    return state.results.add([found])


def _scaled_by_hand(state: State, how: str) -> None:
    state.scaled_by_hand = True
    state.results.observe(f"The loss is scaled by hand, {how}.")


def _is_divided(state: State) -> bool:
    """Return True if the step divides gradients and does not cut them: half of them give half."""
    return all(
        one and other and near(other.step.gradient.norm / one.step.gradient.norm, 0.5, 0.05)
        for one, other in _uses(state, state.run.repeat(Intervention(0.5)))
    )
