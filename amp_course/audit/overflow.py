"""The experiments that put an inf into the gradients, and let the scale grow."""

from __future__ import annotations

import math

import torch

from amp_course.audit.protocol import MENDED_FIRST, Protocol, State
from amp_course.audit.runner import Runner
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.diagnosis.rules.stress import (
    check_growth,
    check_hidden,
    check_kept,
    check_skipping,
    check_waiting,
    earlier_pass,
    leaky_check,
    poisoned_pass,
)
from amp_course.watching.records import Intervention, Update

_USED_UP = (
    "the optimizer uses each gradient up during `backward()`, so no inf could be put into one"
)
_BY_GRAD = (
    "the gradients come from `torch.autograd.grad`, and an inf can only be put into those of "
    "`backward()`"
)
_ALONE = 4  # of more optimizers only all at once get an inf


def check_overflow(state: State) -> None:
    """Put an inf into the gradients of each optimizer in turn, and of all at once."""
    run, protocol, first = state.run, state.protocol, state.first
    if state.scaled_by_hand and not first.called("scale"):
        return _look_at_own_check(run, protocol, first)
    if not run.training.scalers or not first.called("scale"):
        return protocol.leave_out("overflow", "there is no scaler in use, so nothing is skipped")
    if protocol.names & MENDED_FIRST:
        return protocol.leave_out("overflow", "fix the faults above first")
    judged = [n for n in run.optimizers if n not in state.unscaled]
    passes = [(n, poisoned_pass(first, n, run.training)) for n in judged]
    known = {n: place for n, place in passes if place is not None}
    if not known:
        by_grad = first.differentiated > len(first.backwards)
        return protocol.leave_out("overflow", _BY_GRAD if by_grad else _USED_UP)
    rounds: list[tuple[int, ...]] = [(n,) for n in known] if len(known) <= _ALONE else []
    if len(known) != 1:
        rounds.append(tuple(known))
    for numbers in rounds:
        poisoned = _poisoned(run, *(known[n] for n in numbers))
        if poisoned.error is not None:
            return _raised(run, protocol, [poisoned])
        protocol.judge("overflow")
        clean = run.following(until=numbers)
        for number in numbers:
            protocol.judge("", check_skipping(poisoned, clean, first, number), number)
        scheduled = any(name.startswith("scheduler") for name in protocol.names)
        if len(numbers) == len(known) and not scheduled:
            protocol.judge("", check_waiting(poisoned, run.training))
        if clean.error is not None and not protocol.found:
            return _raised(run, protocol, [poisoned, clean])
        if protocol.names & {"overflow-not-skipped", "no-update-after-skip", "kept-after-skip"}:
            return None
    for number, place in known.items() if not protocol.found else ():
        outcomes = []
        for last in (False, True):
            outcomes.append(_poisoned(run, place, last=last))
            hidden = list(check_hidden(outcomes, number))
            if not hidden:
                break
        protocol.judge("", hidden, number)
    for number in run.optimizers:
        earlier = earlier_pass(first, number)
        if earlier is not None:
            poisoned = _poisoned(run, earlier)
            found = check_skipping(poisoned, poisoned, first, number)
            protocol.judge("", [one for one in found if one.name == "overflow-not-skipped"])
    return None


def _poisoned(
    run: Runner, *places: tuple[int, int], bad: float = math.inf, last: bool = False
) -> Update:
    """Run the first update again, with something that is not finite in its gradients."""
    return run.repeat(Intervention(inject_inf=frozenset(places), bad=bad, last=last))


def _raised(run: Runner, protocol: Protocol, updates: list[Update]) -> None:
    """Tell what an inf made the step raise: a fault if torch says so; else it may be meant to."""
    found = check_error(updates, run.training, run.accumulate)
    if found.name != "step-raises":
        return protocol.judge("overflow", [found])
    cause = found.cause.removeprefix("the step raised ")
    protocol.observations.append(
        f"With an inf in its gradients the step raises {cause}: training ends where the scaler "
        "would have skipped."
    )
    return protocol.leave_out("overflow", "the step raises at an inf")


def _look_at_own_check(run: Runner, protocol: Protocol, first: Update) -> None:
    """Look at a loop that scales by hand: if it looks for inf itself, does it find every one?"""
    for number in run.optimizers:
        place = poisoned_pass(first, number, run.training)
        if place is None:
            continue
        ways = ((math.inf, False), (math.inf, True), (math.nan, False))
        outcomes = [_poisoned(run, place, bad=bad, last=last) for bad, last in ways]
        if leaky_check(outcomes, number):
            protocol.judge("overflow", [finding("overflow-not-skipped", optimizer=number)])
        elif not all(one.steps(number) for one in outcomes):
            poisoned = _poisoned(run, place)
            protocol.judge("overflow", check_kept(poisoned, run.following(until=(number,)), number))
        elif _skips_a_loss_that_is_not_finite(run, number):
            cause = (
                "the step is skipped if the loss is inf or NaN, but taken with inf in the "
                "gradients, which can overflow while the loss is finite"
            )
            protocol.judge("overflow", [finding("overflow-not-skipped", cause, optimizer=number)])
        elif all(one.spoilt[number] for one in outcomes) and _lowers_its_scale(run, place):
            cause = (
                "the loss scale falls after an inf in the gradients, and the step is taken anyway, "
                "so the inf is in the weights"
            )
            protocol.judge("overflow", [finding("overflow-not-skipped", cause, optimizer=number)])
        else:
            skipped = "an update with inf in its gradients is not skipped"
            protocol.judge("", [f"The loss is scaled by hand, and {skipped}."])


def _skips_a_loss_that_is_not_finite(run: Runner, number: int) -> bool:
    run.restart()
    with torch.no_grad():
        for p in run.training.model_parameters.values():
            if p.is_floating_point():
                p.fill_(math.nan)
    update = run.update()
    return update.error is None and not update.steps(number)


def _lowers_its_scale(run: Runner, place: tuple[int, int]) -> bool:
    """Return True if the scaled loss is smaller after an update with an inf,
    at the same weights.
    """
    losses = []
    for inject_inf in (frozenset[tuple[int, int]](), frozenset([place])):
        run.restart()
        parameters = list(run.training.model_parameters.values())
        kept = [p.detach().clone() for p in parameters]
        run.update(intervention=Intervention(inject_inf=inject_inf))
        with torch.no_grad():
            for p, was in zip(parameters, kept, strict=True):
                p.copy_(was)
        losses.append(next((one.value for one in run.following().backwards), math.nan))
    return losses[1] / losses[0] < 0.9 if losses[0] else False


def check_scale_growth(state: State) -> None:
    """Let the scale grow: do schedulers take that for a skip, which scale divides gradients?"""
    run = state.run
    run.restart()
    for scaler in run.training.scalers:
        now = scaler.state_dict()
        if "growth_interval" in now:
            scaler.load_state_dict({**now, "_growth_tracker": int(now["growth_interval"]) - 1})
    grown = run.update()
    if grown.error is None:
        steady = not state.unsteady and state.known is not None
        found = check_growth(grown, state.first, run.training, steady=steady)
        state.protocol.judge("", found)
