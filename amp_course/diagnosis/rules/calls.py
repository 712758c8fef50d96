"""Judge the calls: which ones there are, in which order, and which gradients each step used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.watching.records import Call, Region, Step, Training, Update
from amp_course.watching.uses import Used, steps_of


def check_passes(update: Update, training: Training) -> Iterator[Finding]:
    """Look at `backward()` and the autocast region."""
    if update.left_open:
        yield finding("autocast-left-open")
    elif any(one.in_autocast for one in update.backwards):
        yield finding("backward-in-autocast")
    if update.error is not None or update.backwards or any(not one.gradient.empty for one in update.steps()):
        return
    if not any(p.requires_grad for slot in training.slots for p in slot.parameters):
        yield finding("frozen-optimizer", gradients_that_arrived=0)
    elif update.differentiated and update.steps():
        return  # by `torch.autograd.grad`: see `check_zeros`
    elif update.steps() or update.called("scaler.step") or update.called("scale"):
        yield finding("no-backward", backward_passes=0)


def check_precision(update: Update, second: Update | None, training: Training) -> Iterator[Finding]:
    """Look at what runs in 16 bits, and whether a scaler that lasts goes with it."""
    regions = [one for one in update.of(Region) if one.device == training.device_type]
    on = [one for one in regions if one.enabled]
    passes = [one for one in update.backwards if one.arrived]
    if not passes:
        return
    off = [one for one in update.of(Region) if one.inside and one.casts and not one.enabled]
    others = [one for one in off if one.device != training.device_type]
    if others:
        yield finding("island-of-another-device", place=str(others[0].line or ""), made_for=others[0].device,
                      parameters_on=training.device_type)  # fmt: skip
    ran = [*(op for one in passes for op in one.graph.loss_ops), *update.losses_outside]
    outside = sorted({(name, str(dtype)[6:]) for name, dtype in ran})
    if on and outside:
        name, dtype = outside[0]
        yield finding("loss-outside-autocast", loss_function=name, ran_in=dtype)
    late = [op for one in passes for op in one.graph.late_ops if one.graph.casts]
    if on and late and not outside:
        name, dtype = late[0][0], str(late[0][1])[6:]
        cause = (
            f"a part of the loss (`{name}`) was computed in {dtype} after the region had ended; inside it, autocast on a GPU "
            "runs that in fp32"
        )
        yield finding("loss-outside-autocast", cause, such_operations=len(late))
    if second is not None and second.scalers_made and second.called("scale"):
        yield finding("scaler-inside-step", scalers_made_in_two_updates=update.scalers_made + second.scalers_made)
    in_fp32 = not any(one.graph.low or one.graph.opaque for one in passes)
    matmuls = sum(one.graph.fp32_matmuls for one in passes)
    if on and in_fp32 and matmuls:
        cause = (
            "an autocast region was entered, and nothing in it runs in 16 bits: the layers of the model run outside of it, or in "
            "an inner region that switches autocast off"
        )
        yield finding("no-autocast", cause, matrix_products_and_convolutions_in_fp32=matmuls)
    if update.called("scale") and not on and in_fp32:
        elsewhere = {one.device for one in update.of(Region) if one.enabled}
        evidence = {"regions_entered": len(regions), "backward_passes": len(passes)}
        if elsewhere:
            cause = (
                f"the loss is scaled, and nothing runs in 16 bits: autocast was entered for {' and '.join(sorted(elsewhere))}, "
                f"and the parameters are on {training.device_type}"
            )
            yield finding("no-autocast", cause, **evidence)
        else:
            yield finding("no-autocast", **evidence)


def check_zeros(updates: Sequence[Update], training: Training) -> Iterator[Finding | str]:
    """Look for optimizers that only ever step with gradients of 0: in fp16 they have underflowed."""
    for number in range(len(training.optimizers)):
        steps = [one for update in updates for one in update.steps(number)]
        if not steps or not all(any(one.gradient.present) and one.gradient.empty for one in steps):
            continue
        came = [one.arrived[number] for u in updates for one in u.backwards if number in one.arrived]
        by_grad = any(update.differentiated > len(update.backwards) for update in updates)
        if any(not one.empty for one in came) or not (came or by_grad):
            continue
        regions = [one for update in updates for one in update.of(Region) if one.enabled]
        if any(one.dtype == torch.float16 for one in regions) and not updates[0].called("scale"):
            yield finding("fp16-without-scaler", gradients_that_are_exactly_0="100%")
        else:
            yield f"Every gradient that {_owner(training, number)} stepped with is 0."


def _owner(training: Training, number: int) -> str:
    return "the optimizer" if len(training.optimizers) == 1 else f"optimizer {number}"


def check_weights(update: Update, training: Training) -> Iterator[Finding]:
    """Look for weights that are inf or NaN after a step whose gradients are finite."""
    for number, slot in enumerate(training.slots[:-1]):
        steps = update.steps(number)
        if not steps or not update.spoilt[number] or not all(one.gradient.finite for one in steps):
            continue
        if any(p.dtype == torch.float16 for p in slot.parameters):
            cause = (
                "the gradients are finite, and after one step weights are inf or NaN: the optimizer computes in fp16, where "
                "Adam's eps of 1e-8 is 0 and the squares of small gradients are too"
            )
            yield finding("fp16-parameters", cause, optimizer=number)
        else:
            cause = "the gradients are finite, and after one step weights are inf or NaN"
            yield finding("not-finite", cause, optimizer=number, learning_rate=steps[0].rate)


def mixes_weights(updates: Sequence[Update], training: Training) -> bool:
    """Return True if a step adds up gradients of one call that belong to different weights, as SAM's would uncleared."""
    events = [event for update in updates[:1] for event in update.events]
    for number in range(len(training.optimizers)):
        for used in steps_of(events, number):
            here = [one.moved for one in used.parts if one.call == used.step.call]
            if len(set(here)) > 1:
                return True
    return False


def in_fp16_unscaled(update: Update, training: Training) -> bool:
    """Tell whether gradients come out of fp16 autocast, and no scaler was called."""
    on = [one for one in update.of(Region) if one.enabled and one.device == training.device_type]
    halves = [one for one in update.backwards if one.arrived and torch.float16 in one.graph.low and one.graph.casts]
    return any(one.dtype == torch.float16 for one in on) and bool(halves) and not update.called("scale")


def check_steps(updates: Sequence[Update], training: Training, accumulate: int) -> Iterator[Finding]:
    """Look for steps that used gradients twice, or came in every micro-batch."""
    events = [event for update in updates for event in update.events]
    for number in range(len(training.optimizers)):
        used = steps_of(events, number)
        in_group = {one.call for one in updates[0].steps(number) if one.call < accumulate and not one.gradient.empty}
        if accumulate > 1 and len(in_group) > 1:
            cause = f"the optimizer stepped {len(in_group)} times in a group of {accumulate} micro-batches"
            every = len(in_group) >= accumulate
            yield finding(
                "stepped-every-micro-batch", "" if every else cause, steps=len(in_group), micro_batches=accumulate
            )
            continue
        for before, after in itertools.pairwise(used):
            again = [one for one in after.parts if one in before.parts]
            same = torch.equal(before.step.gradient.values, after.step.gradient.values)
            if again and len(again) == len(after.parts) and same and not after.step.gradient.empty:
                yield finding("stepped-twice", steps=2, backward_passes_between=0)
                break


def without_gradients(updates: Sequence[Update], training: Training) -> list[int]:
    """Return the optimizers that stepped, and to whose parameters no gradient ever came."""
    found = []
    for number in range(len(training.optimizers)):
        steps = [one for update in updates for one in update.steps(number)]
        reached = any(number in one.arrived for update in updates for one in update.backwards)
        if steps and not reached and not any(any(one.gradient.present) for one in steps):
            found.append(number)
    return found


def frozen_optimizer(training: Training, number: int, **evidence: float | str) -> Finding:
    """Make the finding of an optimizer without gradients: are its parameters frozen, or does the loss not reach them?"""
    cause = ""
    if any(p.requires_grad for p in training.slots[number].parameters):
        evidence["variant"] = "detached"
        cause = (
            "not one parameter of this optimizer gets a gradient: the loss does not depend on them, or `.item()`, `.detach()` or "
            "`no_grad()` cuts it off"
        )
    return finding("frozen-optimizer", cause, optimizer=number, **evidence)


def never_stepped(update: Update, training: Training, groups: int) -> Iterator[Finding]:
    """Look for optimizers that took no step in several groups of batches."""
    steps = [len(update.steps(number)) for number in range(len(training.optimizers))]
    if not any(steps):
        yield finding("never-stepped", updates=groups, steps=0)
    elif not all(steps):
        yield finding("optimizer-not-stepped", optimizer=steps.index(0), updates=groups, steps=str(steps))


def check_updates(
    updates: Sequence[Update], training: Training, accumulate: int, *, cleared: bool = True
) -> Iterator[Finding]:
    """Look for one update of the scaler after the steps, and one unscaling after the backward passes.

    cleared: the gradients are, so that it can be told when those of a step began to arrive
    """
    events = [event for update in updates for event in update.events]
    calls = [event for event in events if isinstance(event, Call)]
    steps = [one for one in calls if one.name == "scaler.step"]
    if steps and not any(one.name == "update" for one in calls):
        yield finding("update-missing", updates=0, steps=len(steps))
    place = {id(event): n for n, event in enumerate(events)}
    for before, after in itertools.pairwise(one for one in calls if one.name != "scheduler"):
        if before.name == after.name == "update" and before.scaler == after.scaler:
            yield finding("updated-twice", updates=2, steps_between=0)
            return
    for number in range(len(training.optimizers)) if cleared else ():
        for used in steps_of(events, number):
            fresh = [one for one in used.parts if one not in used.stale]
            if not fresh or not used.step.by_scaler:
                continue
            begin, end = place[id(fresh[0])], place[id(used.step)]
            between_updates = [one for one in calls if one.name == "update" and begin < place[id(one)] < end]
            if between_updates:
                yield _misplaced_update(between_updates, used, training, accumulate)
                return
            since = max(
                (place[id(one)] for one in calls if one.name == "update" and place[id(one)] < begin), default=-1
            )
            unscaled = [
                one for one in calls if one.name == "unscale" and one.number == number and since < place[id(one)] < end
            ]
            if unscaled and place[id(fresh[-1])] > place[id(unscaled[0])]:
                early = accumulate > 1 and unscaled[0].call < fresh[-1].call
                name = "unscaled-every-micro-batch" if early else "unscaled-before-backward"
                yield finding(
                    name, backward_passes_after_it=sum(place[id(one)] > place[id(unscaled[0])] for one in fresh)
                )
                return


def _misplaced_update(updates: Sequence[Call], used: Used, training: Training, accumulate: int) -> Finding:
    if accumulate > 1 and updates[0].call < used.step.call:
        return finding("update-every-micro-batch", updates_before_the_step=len(updates), micro_batches=accumulate)
    if len(training.optimizers) > 1:
        return finding("update-per-optimizer", optimizer=used.step.number, updates_before_its_step=len(updates))
    return finding("update-before-step", updates_before_the_step=len(updates))


def check_schedule(updates: Sequence[Update], training: Training, accumulate: int) -> Iterator[Finding]:
    """Look for one move of each scheduler for each step of its optimizer, after it."""
    calls = sum(update.calls for update in updates)
    for number, scheduler in enumerate(training.schedulers):
        owner = next((n for n, o in enumerate(training.optimizers) if o is getattr(scheduler, "optimizer", None)), 0)
        moves = [len(update.called("scheduler", number)) for update in updates]
        steps = [max(len(update.steps(owner)), len(update.called("scaler.step", owner))) for update in updates]
        if not any(moves):
            yield finding("scheduler-never-moved", steps_of_its_optimizer=sum(steps), moves=0)
            continue
        if sum(moves) > sum(steps) > 0:
            every = accumulate > 1 and sum(moves) >= calls
            name = "scheduler-every-micro-batch" if every else "scheduler-moved-twice"
            yield finding(name, moves=sum(moves), steps_of_its_optimizer=sum(steps))
            continue
        if all(_moved_first(update, number, owner) for update in updates):
            yield finding("scheduler-before-optimizer")


def overwritten_rates(updates: Sequence[Update], training: Training, rates: Sequence[float]) -> Iterator[str]:
    """Yield where the second update steps with other rates than the scheduler left after the first."""
    for number, scheduler in enumerate(training.schedulers):
        of = next(
            (n for n, one in enumerate(training.optimizers) if one is getattr(scheduler, "optimizer", None)), None
        )
        if of is None or not updates[0].called("scheduler", number) or not updates[1].steps(of):
            continue
        used = updates[1].steps(of)[0].rate
        if not math.isclose(used, rates[of], rel_tol=1e-6) and not _moved_first(updates[1], number, of):
            yield f"the rate of the step is {used:g}, and the scheduler's is {rates[of]:g}"


def _moved_first(update: Update, scheduler: int, owner: int) -> bool:
    order = [
        event
        for event in update.events
        if (isinstance(event, Step) and event.number == owner)
        or (isinstance(event, Call) and event.name == "scheduler" and event.number == scheduler)
    ]
    return bool(order) and isinstance(order[0], Call) and any(isinstance(event, Step) for event in order)


def check_clearing(updates: Sequence[Update], training: Training) -> Iterator[Finding]:
    """Look for gradients that were used twice, or thrown away before a step; for steps that changed nothing."""
    events = [event for update in updates for event in update.events]
    for number in range(len(training.optimizers)):
        used = steps_of(events, number)
        stale = [one for one in used if one.stale and len(one.stale) < len(one.parts)]
        if stale:
            old = stale[0].parts[len(stale[0].stale)].before[number].norm
            yield finding("never-cleared", norm_of_gradients_left_over=old)
        if used and all(one.step.gradient.empty for one in used) and any(_arrived(one, number) for one in used):
            yield finding("cleared-before-step", optimizer=number)
        moved = any(update.changed[number] for update in updates)
        with_gradients = [
            one for one in used if not one.step.gradient.empty and one.step.gradient.finite and one.step.rate > 0
        ]
        if (
            not moved
            and len(with_gradients) > 1
            and _ought_to_move(with_gradients[0], training.slots[number].parameters)
        ):
            yield finding("weights-unchanged", steps=len(with_gradients), learning_rate=with_gradients[0].step.rate)


def _ought_to_move(used: Used, parameters: Sequence[Tensor]) -> bool:
    """Tell whether weights that did not move ought to have: those in 16 bits, or others by a rate that is not next to nothing."""
    low = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters)
    largest = max((float(p.detach().abs().max()) for p in parameters if p.numel()), default=0.0)
    if used.step.closure and not low:
        return False  # LBFGS stops once it has converged
    return low or used.step.rate * float(used.step.gradient.values.abs().max()) > 1e-6 * largest


def _arrived(used: Used, number: int) -> bool:
    came = [one.arrived[number] for one in [*used.parts, *used.cleared] if number in one.arrived]
    return any(not one.empty and one.finite for one in came)  # inf and NaN may have been replaced by 0
