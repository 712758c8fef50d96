"""The experiments of an audit, as a list: what each runs and judges, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from amp_course.audit import gradient_experiments as gradients
from amp_course.audit.fp32 import AgainstFp32
from amp_course.audit.overflow import check_overflow, check_scale_growth
from amp_course.audit.results import CALLS_WRONG, FIX_FIRST, STEPS_WRONG, State, StopAudit
from amp_course.audit.runner import PATIENCE
from amp_course.checking.limit import TimeUp
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import (
    check_clearing,
    check_passes,
    check_precision,
    check_schedule,
    check_steps,
    check_updates,
    check_weights,
    check_zeros,
    frozen_optimizer,
    mixes_weights,
    never_stepped,
    overwritten_rates,
    without_gradients,
)
from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.diagnosis.rules.given import check_unknown_objects, check_unusual
from amp_course.diagnosis.rules.micro_batches import check_mixed_passes
from amp_course.kit.tensors import has_device
from amp_course.watching.records import Region, Training, Update
from amp_course.watching.weights import highest_rate

_STOPS = {
    "foreign-model",
    "foreign-optimizer",
    "foreign-parameters",
    "fp16-parameters",
    "not-finite",
}


def run_all(state: State) -> None:
    """Run all experiments that make sense after what the earlier ones found."""
    try:
        for run, makes_sense in EXPERIMENTS:
            if makes_sense(state):
                run(state)
    except TimeUp:
        why = f"a call of the step did not finish within {state.run.seconds:g} seconds"
        slow = "if it is just slow, pass a larger `seconds=`"
        state.results.leave_out("everything else", f"{why}: {slow}")
    except StopAudit as reason:
        state.results.leave_out("everything else", str(reason))


# ---- the first update ----


def _first_update(state: State) -> None:
    """Run and judge one update; raise StopAudit if nothing after it can be judged."""
    run, results = state.run, state.results
    first = run.first()
    state.updates, training = [first], run.training
    _stop_unless_repeatable(state)
    results.add(check_passes(first, training), judged="backward" if first.backwards else "")
    results.add(_check_errors(first, state))
    ended = first.error is not None or first.left_open or not first.finite
    if ended or results.names & {"no-backward", "frozen-optimizer"}:
        raise StopAudit(FIX_FIRST)
    if run.registered and not run.passed:
        results.observe("The step uses a `GradScaler` that you did not pass; the audit used it.")
    results.add(check_unknown_objects(first, training, run.passed, run.calls_the_model))
    results.add(check_weights(first, training))
    if results.names & _STOPS:
        raise StopAudit(FIX_FIRST)
    if not first.steps() and (caught := run.swallowed()):
        cause = f"no optimizer stepped, and the step catches an exception: {caught}"
        results.add([finding("step-raises", cause)])
        raise StopAudit(FIX_FIRST)
    if not first.backwards and not first.steps():
        nothing = f"in {first.calls} calls the step ran no `backward()` and no optimizer stepped"
        if first.returned in ("function", "generator", "coroutine", "method"):
            cause = f"{nothing}: it returned a {first.returned}, and nothing in that was run"
            results.add([finding("no-backward", cause)])
            raise StopAudit(FIX_FIRST)
        raise StopAudit(f"{nothing}: does it wait for more batches?")
    if run.accumulate == 1 and _adds_up(first, training):
        raise StopAudit(
            f"in {first.calls} calls no optimizer stepped, and each call added its gradients to "
            "those before: does the step wait for more batches (then pass `accumulate`), or is "
            "its `optimizer.step()` missing?"
        )
    results.add(never_stepped(first, training, run.window), judged="steps")


def _adds_up(first: Update, training: Training) -> bool:
    """Return True if no optimizer steps, and gradients are not cleared between the calls."""
    if first.steps() or first.called("scaler.step") or first.called("update"):
        return False
    passes = [one for one in first.backwards if any(n in one.arrived for n in training.numbers)]
    begun = [one for one in passes if one.call > passes[0].call]
    return bool(begun) and not any(one.before[n].empty for one in begun for n in one.arrived)


def _stop_unless_repeatable(state: State) -> None:
    if state.run.training.has_other_parameters():
        raise StopAudit(
            "the step gives its optimizer or its model other parameters than those that they had"
        )


def _check_errors(first: Update, state: State) -> Iterator[Finding]:
    """Look whether the first update raised, or never came to finite gradients."""
    training = state.run.training
    if first.error is not None:
        yield from check_precision(first, None, training)
        if first.scalers_made and isinstance(first.error, AssertionError):
            yield finding("scaler-inside-step", scalers_made_in_one_update=first.scalers_made)
        else:
            yield check_error([first], training, state.run.accumulate)
    elif not first.finite:
        values = [one.value for one in first.backwards]
        loss = next((v for v in values if not math.isfinite(v)), values[-1] if values else math.nan)
        evidence: dict[str, float | str] = {"loss_at_backward": f"{loss:g}"}
        if first.scales:
            evidence["lowest_loss_scale"] = first.scales[0]
        yield finding("not-finite", **evidence)


# ---- the update after it ----


def _second_update(state: State) -> None:
    """Run the update after the first, and judge both by their calls."""
    run, results, training = state.run, state.results, state.run.training
    rates = list(map(highest_rate, training.optimizers))
    second = run.following()
    state.updates.append(second)
    _stop_unless_repeatable(state)
    first, updates = state.first, state.updates
    results.add(check_precision(first, second, training))
    devices = {one.device for one in first.of(Region)}
    missing = sorted(device for device in devices if not has_device(device))
    if missing and devices == set(missing) and not first.called("scale"):
        why = f"every region is for {missing[0]}, which this machine lacks: none is on"
        results.leave_out("autocast", why)
    elif devices or first.called("scale"):
        results.add(judged="autocast")
    else:
        results.leave_out("autocast", "the step enters no autocast region")
    results.add(check_steps(updates, training, run.accumulate), judged="steps")
    clearing = list(check_clearing(updates, training))
    clearing = clearing or list(check_mixed_passes(updates, training))
    if training.scalers and first.called("scaler.step"):
        cleared = not any(one.name == "never-cleared" for one in clearing)
        found = check_updates(updates, training, run.accumulate, cleared=cleared)
        results.add(found, judged="updates")
    if second.error is not None:
        if not results.names & CALLS_WRONG:
            results.add([check_error(updates, training, run.accumulate)])
        return
    if training.schedulers and first.steps():
        results.add(check_schedule(updates, training, run.accumulate), judged="scheduler")
        for why in overwritten_rates(updates, training, rates):
            results.observe(f"Something else sets the learning rate: {why}.")
            results.leave_out("scheduler", why)
    if not results.names & STEPS_WRONG:
        results.add(clearing, judged="clearing")
        _wait_for_gradients(state)
        if mixes_weights(updates, training):
            why = "a step adds up gradients from before and after the weights changed"
            results.leave_out("clearing", f"{why}: is that meant?")
    results.add(check_zeros(updates, training))
    results.add(check_unusual(updates, training))


def _wait_for_gradients(state: State) -> None:
    """Give optimizers that stepped without a gradient some more updates to get one."""
    run, training = state.run, state.run.training
    empty = without_gradients(state.updates, training)
    if not empty:
        return
    more = [run.update() for _ in range(max(PATIENCE // run.window - 2, 0))]
    for number in sorted(set(empty) & set(without_gradients([*state.updates, *more], training))):
        evidence = {"updates": (2 + len(more)) * run.window, "gradients_that_arrived": 0}
        state.results.add([frozen_optimizer(training, number, **evidence)])


# ---- what comes after ----


def _update_missing(state: State) -> None:
    cause = (
        "the loss is scaled, and `scaler.update()` never ran: the scale stays as it is, whatever "
        "overflows"
    )
    steps = sum(len(one.steps()) for one in state.updates)
    fault = finding("update-missing", cause, updates=0, steps=steps)
    state.results.add([fault], judged="updates")


def _calls_are_right(state: State) -> bool:
    return not state.results.names & CALLS_WRONG and bool(state.first.steps())


def _is_steady(state: State) -> bool:
    return _calls_are_right(state) and not state.unsteady


def _is_right_so_far(state: State) -> bool:
    return _is_steady(state) and len(state.results.found) == state.known


def _never_updates(state: State) -> bool:
    called, sound = state.first.called, not state.results.found
    return bool(called("scale")) and not called("update") and not called("scaler.step") and sound


def _second_ran(state: State) -> bool:
    return state.updates[1].error is None


def _scale_can_grow(state: State) -> bool:
    used = state.run.training.scalers and state.first.called("update")
    return _second_ran(state) and bool(used) and not state.results.found


# Each experiment, and a function that returns True if it makes sense for this step
EXPERIMENTS: tuple[tuple[Callable[[State], None], Callable[[State], bool]], ...] = (
    (_first_update, lambda state: True),
    (_second_update, lambda state: True),
    (gradients.repeat_first, _calls_are_right),
    (gradients.enlarge, _is_steady),
    (gradients.compare_scales, _is_steady),
    (gradients.judge_clipping, _is_steady),
    (gradients.judge_without_scaler, _calls_are_right),
    (lambda state: AgainstFp32(state).judge(), _is_right_so_far),
    (_update_missing, _never_updates),
    (check_overflow, _second_ran),
    (check_scale_growth, _scale_can_grow),
)
