"""Judge the calls of an update: are they there, in the right order, and what do steps use?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings, ordinal
from amp_course.diagnosis.report import listed
from amp_course.watching.graphs import LOW_DTYPES
from amp_course.watching.records import Call, Region, Training, Update, index_of
from amp_course.watching.uses import StepUse, steps_of


def check_passes(update: Update, training: Training) -> Findings:
    """Check `backward()` and the autocast region."""
    if update.left_open:
        yield finding("autocast-left-open")
    elif any(one.in_autocast for one in update.backwards):
        yield finding("backward-in-autocast")
    by_hand = any(not one.gradient.empty for one in update.steps())
    if update.error is not None or update.backwards or by_hand:
        return
    if not any(p.requires_grad for slot in training.slots for p in slot.parameters):
        yield finding("frozen-optimizer", gradients_that_arrived=0)
    elif update.differentiated and update.steps():
        return  # by `torch.autograd.grad`: see `check_zeros`
    elif update.steps() or update.called("scaler.step") or update.called("scale"):
        yield finding("no-backward", backward_passes=0)


def check_precision(update: Update, second: Update | None, training: Training) -> Findings:
    """Check what runs in 16 bits, and that the scaler lasts."""
    regions, device = list(update.of(Region)), training.device_type
    passes = [one for one in update.backwards if one.arrived]
    if not passes:
        return
    off = (one for one in regions if not one.enabled and one.device != device)
    island = next((one for one in off if one.inside and one.casts), None)
    if island is not None:
        devices = {"made_for": island.device, "parameters_on": device}
        yield finding("island-of-another-device", place=str(island.line or ""), **devices)
    entered = [one for one in regions if one.device == device]
    on = any(one.enabled for one in entered)
    ran = [*(op for one in passes for op in one.graph.loss_ops), *update.losses_outside]
    late = [op for one in passes for op in one.graph.late_ops if one.graph.casts]
    if on and ran:
        name, dtype = min((name, str(dtype)[6:]) for name, dtype in ran)
        yield finding("loss-outside-autocast", loss_function=name, ran_in=dtype)
    elif on and late:
        name, dtype = late[0][0], str(late[0][1])[6:]
        cause = (
            f"a part of the loss (`{name}`) was computed in {dtype} after the region had ended; "
            "inside it, autocast on a GPU runs that in fp32"
        )
        yield finding("loss-outside-autocast", cause, such_operations=len(late))
    if second is not None and update.scalers_made and second.scalers_made:
        made = update.scalers_made + second.scalers_made
        if second.called("scale"):
            yield finding("scaler-inside-step", scalers_made_in_two_updates=made)
    if any(one.graph.low or one.graph.opaque for one in passes):
        return
    matmuls = sum(one.graph.fp32_matmuls for one in passes)
    place = next((str(one.line or "") for one in entered if not one.enabled), "")
    if on and matmuls:
        cause = (
            "an autocast region was entered, and nothing that the backward pass uses runs in 16 "
            "bits: the layers of the model run outside of it, or in a region that switches "
            "autocast off"
        )
        counts = {"matrix_products_and_convolutions_in_fp32": matmuls}
        yield finding("no-autocast", cause, place=place, **counts)
    elif update.called("scale") and not on:
        elsewhere = listed(sorted({one.device for one in regions if one.enabled}))
        cause = "the loss is scaled, and nothing that the backward pass uses runs in 16 bits: "
        if entered:
            cause += "the region was entered with `enabled=False`"
        elif elsewhere:
            cause += f"autocast was entered for {elsewhere}, and the parameters are on {device}"
        else:
            cause = ""
        counts = {"regions_entered": len(entered), "backward_passes": len(passes)}
        yield finding("no-autocast", cause, place=place, **counts)


def in_fp16_unscaled(update: Update, training: Training) -> bool:
    """Return True if gradients come from fp16 autocast, and no scaler was called."""
    device, half = training.device_type, torch.float16
    on = {one.dtype for one in update.of(Region) if one.enabled and one.device == device}
    graphs = (one.graph for one in update.backwards if one.arrived)
    casts = any(half in one.low and one.casts for one in graphs)
    return half in on and casts and not update.called("scale")


def check_zeros(updates: Sequence[Update], training: Training) -> Iterator[Finding | str]:
    """Look for optimizers whose gradients are all 0 in every step: in fp16 they underflowed."""
    for number in training.numbers:
        steps = [one.gradient for update in updates for one in update.steps(number)]
        if not steps or not all(any(one.present) and one.empty for one in steps):
            continue
        arrived = [one for update in updates for one in update.arrivals(number)]
        by_grad = any(update.differentiated > len(update.backwards) for update in updates)
        if any(not one.empty for one in arrived) or not (arrived or by_grad):
            continue
        on = [one.dtype for update in updates for one in update.of(Region) if one.enabled]
        if torch.float16 in on and not updates[0].called("scale"):
            yield finding("fp16-without-scaler", gradients_that_are_exactly_0="100%")
        else:
            owner = "the optimizer" if len(training.optimizers) == 1 else f"optimizer {number}"
            yield f"Every gradient that {owner} stepped with is 0."


def check_weights(update: Update, training: Training) -> Findings:
    """Look for weights that are inf or NaN after a step whose gradients are finite."""
    for number, slot in enumerate(training.slots[:-1]):
        steps = update.steps(number)
        finite = all(one.gradient.finite for one in steps)
        if not steps or not update.corrupted[number] or not finite:
            continue
        cause = "the gradients are finite, and after one step weights are inf or NaN"
        if any(p.dtype == torch.float16 for p in slot.parameters):
            cause += (
                ": the optimizer computes in fp16, where Adam's eps of 1e-8 is 0 and the "
                "squares of small gradients are too"
            )
            yield finding("fp16-parameters", cause, optimizer=number)
        else:
            yield finding("not-finite", cause, optimizer=number, learning_rate=steps[0].rate)


# ---- which gradients each step used ----


def _uses(updates: Sequence[Update], training: Training) -> Iterator[tuple[int, list[StepUse]]]:
    """Yield each optimizer's number, and its steps."""
    events = [event for update in updates for event in update.events]
    for number in training.numbers:
        yield number, steps_of(events, number)


def mixes_weights(updates: Sequence[Update], training: Training) -> bool:
    """Return True if a step uses gradients from before and after the weights moved.

    SAM does if it does not clear them in between.
    """
    return any(
        len({one.moved for one in used.parts if one.call == used.step.call}) > 1
        for _, steps in _uses(updates[:1], training)
        for used in steps
    )


def check_steps(updates: Sequence[Update], training: Training, accumulate: int) -> Findings:
    """Look for steps that used gradients twice, or ran in every micro-batch."""
    for number, steps in _uses(updates, training):
        used = (one for one in updates[0].steps(number) if not one.gradient.empty)
        times = len({one.call for one in used if one.call < accumulate})
        if accumulate > 1 and times > 1:
            cause = f"the optimizer stepped {times} times in a group of {accumulate} micro-batches"
            counts = {"steps": times, "micro_batches": accumulate}
            name = "stepped-every-micro-batch"
            yield finding(name, cause if times < accumulate else "", **counts)
            continue
        for first, second in itertools.pairwise(steps):
            same_passes = second.parts and all(one in first.parts for one in second.parts)
            before, after = first.step.gradient, second.step.gradient
            if same_passes and not after.empty and torch.equal(before.values, after.values):
                yield finding("stepped-twice", steps=2, backward_passes_between=0)
                break


def check_clearing(updates: Sequence[Update], training: Training) -> Findings:
    """Look for gradients that were used twice or lost, and for steps that changed nothing."""
    for number, steps in _uses(updates, training):
        for used in [one for one in steps if one.stale and len(one.stale) < len(one.parts)][:1]:
            old = used.parts[len(used.stale)].before[number].norm
            yield finding("never-cleared", norm_of_gradients_left_over=old)
        filled = [one for one in steps if not one.step.gradient.empty]
        if steps and not filled:
            passes = [one for used in steps for one in [*used.parts, *used.cleared]]
            arrived = (one.arrived[number] for one in passes if number in one.arrived)
            # The step may have replaced an inf by 0.
            if any(not one.empty and one.finite for one in arrived):
                yield finding("cleared-before-step", optimizer=number)
        moving = [one for one in filled if one.step.gradient.finite and one.step.rate > 0]
        if len(moving) < 2 or any(update.changed[number] for update in updates):
            continue
        if _should_move(moving[0], training.slots[number].parameters):
            yield finding("weights-unchanged", steps=len(moving), learning_rate=moving[0].step.rate)


def _should_move(used: StepUse, parameters: Sequence[Tensor]) -> bool:
    """Return True for 16-bit weights, and for others if the rate is not tiny."""
    if any(p.dtype in LOW_DTYPES for p in parameters):
        return True
    largest = max((float(p.detach().abs().max()) for p in parameters if p.numel()), default=0.0)
    move = used.step.rate * float(used.step.gradient.values.abs().max())
    return move > 1e-6 * largest and not used.step.closure  # LBFGS stops once it has converged


# ---- optimizers without gradients, or without a step ----


def without_gradients(updates: Sequence[Update], training: Training) -> list[int]:
    """Return the optimizers that stepped, and whose parameters never got a gradient."""
    found = []
    for number in training.numbers:
        steps = [one for update in updates for one in update.steps(number)]
        reached = any(update.arrivals(number) for update in updates)
        if steps and not reached and not any(any(one.gradient.present) for one in steps):
            found.append(number)
    return found


def frozen_optimizer(training: Training, number: int, **evidence: float | str) -> Finding:
    """Make the finding of an optimizer without gradients: frozen, or not reached by the loss."""
    cause = ""
    if any(p.requires_grad for p in training.slots[number].parameters):
        evidence["variant"] = "detached"
        cause = (
            "not one parameter of this optimizer gets a gradient: the loss does not depend on "
            "them, or `.item()`, `.detach()` or `no_grad()` cuts it off"
        )
    return finding("frozen-optimizer", cause, optimizer=number, **evidence)


def never_stepped(update: Update, training: Training, groups: int) -> Iterator[Finding | str]:
    """Look for optimizers that took no step in several groups of batches."""
    steps = [len(update.steps(number)) for number in training.numbers]
    missing = [number for number in training.numbers if not steps[number]]
    reached = [number for number in missing if update.arrivals(number)]
    if not any(steps):
        yield finding("never-stepped", updates=groups, steps=0)
    elif reached:
        yield finding(
            "optimizer-not-stepped", optimizer=reached[0], updates=groups, steps=str(steps)
        )
    elif missing:
        yield (
            f"Of the optimizers, {ordinal(missing[0])} took no step in {groups} updates, and no "
            "gradient reached its parameters: does its turn come later?"
        )


# ---- the scaler, and the schedule ----


def check_updates(
    updates: Sequence[Update], training: Training, accumulate: int, *, cleared: bool = True
) -> Findings:
    """Check that `scaler.update` comes after the steps, and `unscale_` after the backward passes.

    cleared: the gradients are cleared, which shows the first backward pass of each step
    """
    events = [event for update in updates for event in update.events]
    place = {id(event): n for n, event in enumerate(events)}
    calls = [event for event in events if isinstance(event, Call) and event.name != "scheduler"]
    steps = [one for one in calls if one.name == "scaler.step"]
    scaler_updates = [one for one in calls if one.name == "update"]
    if steps and not scaler_updates:
        yield finding("update-missing", updates=0, steps=len(steps))
    for before, after in itertools.pairwise(calls):
        if before.name == after.name == "update" and before.scaler == after.scaler:
            yield finding("updated-twice", updates=2, steps_between=0)
            return
    for number, uses in _uses(updates, training) if cleared else ():
        for used in uses:
            fresh = [place[id(one)] for one in used.parts if one not in used.stale]
            if not fresh or not used.step.by_scaler:
                continue
            begin, end = fresh[0], place[id(used.step)]
            between = [one for one in scaler_updates if begin < place[id(one)] < end]
            if between:
                yield _misplaced_update(between, used, training, accumulate)
                return
            since = max(
                (at for one in scaler_updates if (at := place[id(one)]) < begin), default=-1
            )
            unscaled = [one for one in calls if one.name == "unscale" and one.number == number]
            for first in [one for one in unscaled if since < place[id(one)] < end][:1]:
                after_it = sum(one > place[id(first)] for one in fresh)
                if after_it:
                    early = accumulate > 1 and first.call < events[fresh[-1]].call
                    name = "unscaled-every-micro-batch" if early else "unscaled-before-backward"
                    yield finding(name, backward_passes_after_it=after_it)
                    return


def _misplaced_update(
    updates: Sequence[Call], used: StepUse, training: Training, accumulate: int
) -> Finding:
    number = len(updates)
    if accumulate > 1 and updates[0].call < used.step.call:
        counts = {"updates_before_the_step": number, "micro_batches": accumulate}
        return finding("update-every-micro-batch", **counts)
    if len(training.optimizers) > 1:
        shown = {"optimizer": used.step.number, "updates_before_its_step": number}
        return finding("update-per-optimizer", **shown)
    return finding("update-before-step", updates_before_the_step=number)


def _owner_of(scheduler: object, training: Training) -> int:
    return index_of(getattr(scheduler, "optimizer", None), training.optimizers)


def check_schedule(updates: Sequence[Update], training: Training, accumulate: int) -> Findings:
    """Check that each scheduler moves once for each step of its optimizer, after it."""
    calls = sum(update.calls for update in updates)
    for number, scheduler in enumerate(training.schedulers):
        owner = max(_owner_of(scheduler, training), 0)
        moves = sum(len(update.called("scheduler", number)) for update in updates)
        steps = sum(
            max(len(update.steps(owner)), len(update.called("scaler.step", owner)))
            for update in updates
        )
        if not moves:
            yield finding("scheduler-never-moved", steps_of_its_optimizer=steps, moves=0)
        elif moves > steps > 0:
            every = accumulate > 1 and moves >= calls
            name = "scheduler-every-micro-batch" if every else "scheduler-moved-twice"
            yield finding(name, moves=moves, steps_of_its_optimizer=steps)
        elif all(_moved_first(update, number, owner) for update in updates):
            yield finding("scheduler-before-optimizer")


def overwritten_rates(
    updates: Sequence[Update], training: Training, rates: Sequence[float]
) -> Iterator[str]:
    """Yield where the second update's learning rates are not those that the scheduler left."""
    first, second = updates
    for number, scheduler in enumerate(training.schedulers):
        owner = _owner_of(scheduler, training)
        if owner < 0 or not first.called("scheduler", number) or not second.steps(owner):
            continue
        used, left = second.steps(owner)[0].rate, rates[owner]
        if not math.isclose(used, left, rel_tol=1e-6) and not _moved_first(second, number, owner):
            yield f"the rate of the step is {used:g}, and the scheduler's is {left:g}"


def _moved_first(update: Update, scheduler: int, owner: int) -> bool:
    moves, steps = update.called("scheduler", scheduler), update.steps(owner)
    return bool(moves and steps) and update.events.index(moves[0]) < update.events.index(steps[0])
