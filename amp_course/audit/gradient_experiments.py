"""Experiments on what the optimizers get: the same update twice, at two loss scales, with large gradients, without a scaler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from amp_course.audit.protocol import Over, State
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import along, near
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import in_fp16_unscaled
from amp_course.diagnosis.rules.exceptions import described
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
from amp_course.watching.records import Meddling, Update

_RATIO = 4.0  # between two loss scales: few more gradients underflow at the lower one
_FAR = 1000.0  # how far above max_norm gradients are brought to see clipping
_TALL = 1e4  # the norm that gradients are brought to where max_norm is not known
_SCALE = 128.0  # a power of 2 from here on, by which a loss is multiplied, is meant as a loss scale
_TINY = 1e-4  # the norm, loss scale included, of gradients that no clip touches


def same_again(state: State) -> None:
    """Run the first update again: are the gradients the same?"""
    run, protocol = state.run, state.protocol
    again = run.repeat()
    if again.error is not None:
        why = f"it raised {described(again.error)}"
        raise Over(f"the step ran once, and run again from the same state {why}")
    state.noise, state.known = _noise(state, again), len(protocol.found)
    if drawn := sorted(run.snapshot.iterators - {"batches"}):
        state.unsteady = (
            f"the step draws from an iterator that cannot be put back (`{drawn[0]}`), so no two runs of it are the same"
        )
    elif state.noise >= 0.1:
        distance = f"relative distance {state.noise:.2g}"
        state.unsteady = f"two runs of the step on the same batch gave different gradients ({distance})"


def enlarged(state: State) -> None:
    """Run the first update with gradients far above any limit, if that can be."""
    state.large, state.factor = _large(state)


def _noise(state: State, again: Update) -> float:
    """Return how far two runs of the same update are from each other, at most."""
    worst = 0.0
    for number in state.run.optimizers:
        one, other = first_use(state.first, number), first_use(again, number)
        if one is None or other is None:
            worst = max(worst, 0.0 if one is other else math.inf)
            continue
        factor, distance = along(one.step.gradient.values, other.step.gradient.values)
        worst = max(worst, distance, abs(factor - 1))
    return worst


def _large(state: State) -> tuple[Update | None, float]:
    """Run the update with gradients far above any limit, if the scale or a norm is to be judged; return their factor too."""
    if not state.run.training.scalers and state.max_norm is None:
        return None, 1.0
    norms, largest = [], 0.0
    for number in state.run.optimizers:
        used, values = first_use(state.first, number), _arrivals(state, state.first, number)
        if used is None or values is None or not bool(values.any()):
            continue
        total = arrived(used, number)
        norms.append(used.step.gradient.norm if total is None else total.norm / state.run.scale_of(number))
        largest = max(largest, float(values.abs().max()))
    if not norms:
        return None, 1.0
    factor = max(_FAR * state.max_norm if state.max_norm else _TALL, _FAR * max(norms)) / min(norms)
    if any(p.dtype == torch.float16 for slot in state.run.training.slots for p in slot.parameters):
        factor = min(factor, 2.0**14 / largest)
    if factor < (4 if state.max_norm else 30):
        return None, 1.0
    large = state.run.repeat(Meddling(factor))
    return (large if large.error is None else None), factor


def two_scales(state: State) -> None:
    """Run the first update at another loss scale: is what the optimizers get the same?"""
    run, protocol, first, large = state.run, state.protocol, state.first, state.large
    tolerance = max(tolerance_for(run.dtypes), 1e-3, 3 * state.noise)
    if not run.training.scalers:
        return protocol.leave_out("loss scale", "there is no scaler")
    if not first.called("scale") and not first.called("scaler.step"):
        return protocol.leave_out("loss scale", "the scaler that was passed is never used")
    # Each scaler has a ratio of its own: a loss that another one scales is seen by it.
    ratios = [_RATIO * 2**n for n in range(len(run.scales))]
    each = list(zip(run.scales, ratios, strict=True))
    other = [scale / ratio if scale >= 16 else scale * ratio for scale, ratio in each]
    low = run.repeat(scales=other)
    if low.error is None and not low.finite and other[0] > run.scales[0]:
        other = [scale / ratio for scale, ratio in each]
        low = run.repeat(scales=other)
    if low.error is not None or not low.finite:
        return protocol.leave_out("loss scale", "the step did not run at another loss scale")
    pair_large = None
    if large is not None:
        large_low = run.repeat(Meddling(state.factor), other)
        pair_large = (large, large_low) if large_low.error is None else None
    protocol.judge("loss scale")
    for number in run.optimizers:
        owner = run.owners.get(number, 0)
        pair = Pair(first, low, (run.scales[owner], other[owner]), tolerance, pair_large)
        protocol.judge("", _confirmed(state, check_scale(pair, number), pair, number, other), run.which(number))
        if not carries_scale(pair, number):
            state.unscaled.add(number)
    return None


def _confirmed(
    state: State, found: Iterable[Finding], pair: Pair, number: int, other: Sequence[float]
) -> list[Finding]:
    """Run the two scales again with gradients that no clip touches: is it the clip, or are they divided twice?"""
    named = list(found)
    used = first_use(pair.high, number)
    total = None if used is None else arrived(used, number)
    if total is None or not total.norm or not any(one.name == "clipped-while-scaled" for one in named):
        return named
    meddling = Meddling(_TINY / total.norm)
    tiny = Pair(state.run.repeat(meddling), state.run.repeat(meddling, other), pair.scales, 1.0)
    if not divided_twice(tiny, number):
        return named
    cause = "the gradients are divided by the loss scale twice: by hand, and by the scaler"
    return [replace(finding("unscaled-twice", cause), evidence=named[0].evidence)]


def clipping(state: State) -> None:
    """Look at what is left of large gradients."""
    first, large, factor = state.first, state.large, state.factor
    scale_is_right = len(state.protocol.found) == state.known
    if large is None:
        if state.max_norm is not None:
            state.protocol.leave_out("clipping", "gradients could not be brought far above max_norm")
        return
    training = state.run.training
    if state.max_norm is not None:
        found = list(check_clipping(first, large, factor, state.max_norm, training)) if scale_is_right else []
        wrong = any(isinstance(one, Finding) and one.name == "clipped-wrong" for one in found)
        early = _clipped_while_scaled_by_hand(state, large) if wrong else None
        state.protocol.judge("clipping", found if early is None else [early])
    for number in state.run.optimizers:
        state.protocol.judge("", check_early_clipping(first, large, factor, number), state.run.which(number))


def _clipped_while_scaled_by_hand(state: State, large: Update) -> Finding | None:
    """Learn from short gradients, which no clip touches, what a step divides by: is the norm before that max_norm?"""
    assert state.max_norm is not None
    for number in state.run.optimizers if not state.run.training.scalers else ():
        cut, total = first_use(large, number), _arrivals(state, large, number)
        if cut is None or total is None:
            continue
        length = 0.5 * state.max_norm
        whole = first_use(state.run.repeat(Meddling(length / float(total.norm()))), number)
        if whole is None:
            continue
        scale = length / whole.step.gradient.norm
        if scale > 2 and near(cut.step.gradient.norm * scale, state.max_norm):
            evidence = {"norm_at_the_step": cut.step.gradient.norm, "max_norm": state.max_norm, "loss_scale": scale}
            cause = (
                "the gradients were clipped before they were divided by the loss scale: their norm comes out that much too "
                "small"
            )
            return finding("clipped-while-scaled", cause, variant="by-hand", **evidence)
    return None


def _arrivals(state: State, update: Update, number: int) -> torch.Tensor | None:
    """Return what arrived for an optimizer's first step, at its parameters or those that its masters are copies of."""
    used = first_use(update, number)
    if used is None:
        return None
    total = arrived(used, number)
    return arrived_for_masters(update, state.run.training, number) if total is None else total.values


def without_scaler(state: State) -> None:
    """Judge fp16 autocast without a scaler: is the loss scaled by hand, or not at all?"""
    first = state.first
    if not in_fp16_unscaled(first, state.run.training):
        return
    shares = []
    factor = max(event.graph.factor for event in first.backwards)
    for number in state.run.optimizers:
        used = first_use(state.first, number)
        total = None if used is None else arrived(used, number)
        if used is None or total is None or not total.norm:
            return
        shares.append(used.step.gradient.norm / total.norm)
        if shares[-1] > 0.5 and factor >= _SCALE and math.log2(factor).is_integer():
            return state.protocol.judge("", [finding("still-scaled", loss_scale=factor)])
        if len(first.references) == first.calls:
            wanted = sum(first.references[call][number].norm for call in by_calls(used, number))
            if wanted and total.norm / wanted > 8:
                return _say_by_hand(state, f"by about {total.norm / wanted:.3g}")
    if not shares:
        return
    if factor > 8:
        return _say_by_hand(state, f"by {factor:.6g}")
    if max(shares) < 1 / 8 and _is_divided(state):
        return _say_by_hand(state, f"and the gradients are divided by {1 / max(shares):.4g} before the step")
    given = "the scaler that was passed is never used" if state.run.given else "no scaler is used, or a disabled one"
    cause = f"the forward pass runs in fp16 and the loss is not scaled ({given}): gradients below 3e-8 become 0"
    values = torch.cat([one.values for event in first.backwards for one in event.arrived.values()])
    zeros = (values == 0).float().mean().item()
    state.protocol.judge("", [finding("fp16-without-scaler", cause, gradients_that_are_exactly_0=f"{zeros:.1%}")])


def _say_by_hand(state: State, how: str) -> None:
    state.scaled_by_hand = True
    state.protocol.observations.append(f"The loss is scaled by hand, {how}.")


def _is_divided(state: State) -> bool:
    """Tell whether the gradients are divided before the step, and not cut: half the gradient, half the step."""
    half = state.run.repeat(Meddling(0.5))
    for number in state.run.optimizers:
        one, other = first_use(state.first, number), first_use(half, number)
        if one is None or other is None or not near(other.step.gradient.norm / one.step.gradient.norm, 0.5, 0.05):
            return False
    return True
