"""The experiments that put an inf into the gradients, and let the scale grow."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from amp_course.audit.results import FIX_FIRST, HIDES_OVERFLOW, Results, State
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
    misses_some_inf,
    pass_for_inf,
)
from amp_course.watching.records import Intervention, Update

_USED_UP = (
    "the optimizer uses each gradient up during `backward()`, so no inf could be put into one"
)
_BY_GRAD = (
    "the gradients come from `torch.autograd.grad`, and an inf can only be put into those of "
    "`backward()`"
)
_BAD = (  # what is put into the gradients of a loop that scales by hand
    "an inf in the first parameter's gradient",
    "an inf in the last parameter's gradient",
    "a NaN in the first parameter's gradient",
)
_ALONE = 4  # if there are more optimizers, only all of them at once get an inf


def check_overflow(state: State) -> None:
    """Put an inf into the gradients of each optimizer in turn, and of all at once."""
    run, results, first = state.run, state.results, state.first
    if state.scaled_by_hand and not first.called("scale"):
        return _check_skipping_by_hand(run, results, first)
    if not run.training.scalers or not first.called("scale"):
        return results.leave_out("overflow", "there is no scaler in use, so nothing is skipped")
    if results.names & HIDES_OVERFLOW:
        return results.leave_out("overflow", FIX_FIRST)
    judged = [n for n in run.optimizers if n not in state.unscaled]
    passes = [(n, pass_for_inf(first, n, run.training)) for n in judged]
    places = {n: place for n, place in passes if place is not None}
    if not places:
        by_grad = first.differentiated > len(first.backwards)
        return results.leave_out("overflow", _BY_GRAD if by_grad else _USED_UP)
    rounds: list[tuple[int, ...]] = [(n,) for n in places] if len(places) <= _ALONE else []
    if len(places) != 1:
        rounds.append(tuple(places))
    for numbers in rounds:
        chosen = [places[n] for n in numbers]
        with_inf = _inject(run, *chosen)
        steps = [step for n in numbers for step in with_inf.steps(n)]
        if any(step.gradient.finite and not step.by_scaler for step in steps):
            with_inf = _inject(run, *chosen, bad=math.nan)  # `clip_grad_value_` makes inf finite
        if with_inf.error is not None:
            return _add_error(run, results, [with_inf])
        results.add(judged="overflow")
        clean = run.following(until=numbers)
        for number in numbers:
            results.add(check_skipping(with_inf, clean, first, number), number)
        scheduled = any(name.startswith("scheduler") for name in results.names)
        if len(numbers) == len(places) and not scheduled:
            results.add(check_waiting(with_inf, run.training))
        if clean.error is not None and not results.found:
            return _add_error(run, results, [with_inf, clean])
        if results.names & {"overflow-not-skipped", "no-update-after-skip", "kept-after-skip"}:
            return None
    for number, place in places.items() if not results.found else ():
        outcomes = []
        for last in (False, True):
            outcomes.append(_inject(run, place, last=last))
            hidden = list(check_hidden(outcomes, number))
            if not hidden:
                break
        results.add(hidden, number)
    for number in run.optimizers:
        earlier = earlier_pass(first, number)
        if earlier is not None:
            with_inf = _inject(run, earlier)
            found = check_skipping(with_inf, with_inf, first, number)
            results.add(one for one in found if one.name == "overflow-not-skipped")
    return None


def _inject(
    run: Runner, *places: tuple[int, int], bad: float = math.inf, last: bool = False
) -> Update:
    """Run the first update again, with something that is not finite in its gradients."""
    return run.repeat(Intervention(inject_inf=frozenset(places), bad=bad, last=last))


def _add_error(run: Runner, results: Results, updates: list[Update]) -> None:
    """Report what the step raised at an inf: a fault only if torch raised it, else maybe meant."""
    found = check_error(updates, run.training, run.accumulate)
    if found.name != "step-raises":
        return results.add([found], judged="overflow")
    cause = found.cause.removeprefix("the step raised ")
    results.observe(
        f"With an inf in its gradients the step raises {cause}: training ends where the scaler "
        "would have skipped."
    )
    return results.leave_out("overflow", "the step raises at an inf")


def _check_skipping_by_hand(run: Runner, results: Results, first: Update) -> None:
    """Look at a loop that scales by hand: if it looks for inf itself, does it find every one?"""
    for number in run.optimizers:
        place = pass_for_inf(first, number, run.training)
        if place is None:
            continue
        taken = finding("overflow-not-skipped", optimizer=number, variant="by-hand")
        cases = ((math.inf, False), (math.inf, True), (math.nan, False))
        outcomes = [_inject(run, place, bad=bad, last=last) for bad, last in cases]
        if misses_some_inf(outcomes, number):
            missed = [
                what
                for what, one in zip(_BAD, outcomes, strict=True)
                if one.steps(number) and one.corrupted[number]
            ]
            cause = (
                f"the loop's own check misses {' and '.join(missed)}: the update was made, and the "
                "weights are not finite from then on"
            )
            results.add([replace(taken, cause=cause)], judged="overflow")
        elif not all(one.steps(number) for one in outcomes):
            with_inf = _inject(run, place)
            found = check_kept(with_inf, run.following(until=(number,)), number)
            results.add(found, judged="overflow")
        elif _skips_a_loss_that_is_not_finite(run, number):
            cause = (
                "the step is skipped if the loss is inf or NaN, but taken with inf in the "
                "gradients, which can overflow while the loss is finite"
            )
            results.add([replace(taken, cause=cause)], judged="overflow")
        elif all(one.corrupted[number] for one in outcomes) and _lowers_its_scale(run, place):
            cause = (
                "the loss scale falls after an inf in the gradients, and the step is taken anyway, "
                "so the inf is in the weights"
            )
            results.add([replace(taken, cause=cause)], judged="overflow")
        else:
            results.observe(
                "The loss is scaled by hand, and an update with inf in its gradients is not "
                "skipped."
            )


def _skips_a_loss_that_is_not_finite(run: Runner, number: int) -> bool:
    run.restart()
    with torch.no_grad():
        for p in run.training.model_parameters.values():
            if p.is_floating_point():
                p.fill_(math.nan)
    update = run.update()
    return update.error is None and not update.steps(number)


def _lowers_its_scale(run: Runner, place: tuple[int, int]) -> bool:
    """Return True if an update with an inf makes the scaled loss smaller, at the same weights."""
    losses = []
    for places in ((), (place,)):
        run.restart()
        parameters = list(run.training.model_parameters.values())
        before = [p.detach().clone() for p in parameters]
        run.update(intervention=Intervention(inject_inf=frozenset(places)))
        with torch.no_grad():
            for p, was in zip(parameters, before, strict=True):
                p.copy_(was)
        losses.append(next((one.value for one in run.following().backwards), math.nan))
    return losses[1] / losses[0] < 0.9 if losses[0] else False


def check_scale_growth(state: State) -> None:
    """Let the scale grow: do schedulers take that for a skip, and which scale divides gradients?"""
    run = state.run
    run.restart()
    for scaler in run.training.scalers:
        values = scaler.state_dict()
        if "growth_interval" in values:
            interval = int(values["growth_interval"])
            scaler.load_state_dict({**values, "_growth_tracker": interval - 1})
    grown = run.update()
    if grown.error is None:
        steady = not state.unsteady and state.known is not None
        found = check_growth(grown, state.first, run.training, steady=steady)
        state.results.add(found)
