"""The experiments of an audit, as a list: what each runs and judges, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from amp_course.audit import gradient_experiments as gradients
from amp_course.audit.fp32 import AgainstFp32
from amp_course.audit.overflow import check_overflow, check_scale_growth
from amp_course.audit.protocol import STEPS_WRONG, UPDATES_WRONG, State, StopAudit
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
from amp_course.diagnosis.rules.given import check_strangers, check_unusual
from amp_course.watching.records import Region, Update

_FIX_FIRST = "fix the faults above first"
_FOREIGN = {
    "foreign-model", "foreign-optimizer", "foreign-parameters", "fp16-parameters", "not-finite",
}  # fmt: skip


def run_all(state: State) -> None:
    """Do all experiments that make sense after what the earlier ones found."""
    protocol = state.protocol
    try:
        for run, tells in EXPERIMENTS:
            if tells(state):
                run(state)
    except TimeUp:
        why = f"a call of the step did not finish within {state.run.seconds:g} seconds"
        slow = "if it is just slow, pass a larger `seconds=`"
        protocol.leave_out("everything else", f"{why}: {slow}")
    except StopAudit as over:
        protocol.leave_out("everything else", str(over))


# ---- the first update ----


def _first_update(state: State) -> None:
    """Run and judge one update; raise StopAudit if nothing after it can be judged."""
    run, protocol = state.run, state.protocol
    first = run.first()
    state.updates, training = [first], run.training
    _can_be_repeated(state)
    protocol.judge("backward" if first.backwards else "", check_passes(first, training))
    protocol.judge("", _broken(first, state))
    ended = first.error is not None or first.left_open or not first.finite
    if ended or protocol.names & {"no-backward", "frozen-optimizer"}:
        raise StopAudit(_FIX_FIRST)
    if run.adopted and not run.given:
        said = "The step uses a `GradScaler` that you did not pass; the audit used it."
        protocol.observations.append(said)
    protocol.judge("", check_strangers(first, training, run.given, run.calls_the_model))
    protocol.judge("", check_weights(first, training))
    if protocol.names & _FOREIGN:
        raise StopAudit(_FIX_FIRST)
    if not first.steps() and (caught := run.swallowed()):
        cause = f"no optimizer stepped, and the step catches an exception: {caught}"
        protocol.judge("", [finding("step-raises", cause)])
        raise StopAudit(_FIX_FIRST)
    if not first.backwards and not first.steps():
        nothing = f"in {first.calls} calls the step ran no `backward()` and no optimizer stepped"
        if first.returned in ("function", "generator", "coroutine", "method"):
            cause = f"{nothing}: it returned a {first.returned}, and nothing in that was run"
            protocol.judge("", [finding("no-backward", cause)])
            raise StopAudit(_FIX_FIRST)
        raise StopAudit(f"{nothing}: does it wait for more batches?")
    protocol.judge("steps", never_stepped(first, training, run.window))


def _can_be_repeated(state: State) -> None:
    """Raise StopAudit for a step that is not the same step when it is run again."""
    if state.run.training.has_other_parameters():
        raise StopAudit(
            "the step gives its optimizer or its model other parameters than those that they had"
        )


def _broken(first: Update, state: State) -> Iterator[Finding]:
    training = state.run.training
    if first.error is not None:
        yield from check_precision(first, None, training)
        if first.scalers_made and isinstance(first.error, AssertionError):
            made = first.scalers_made
            yield finding("scaler-inside-step", scalers_made_in_one_update=made)
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
    run, protocol, training = state.run, state.protocol, state.run.training
    state.rates = run.rates()
    second = run.following()
    state.updates.append(second)
    _can_be_repeated(state)
    first, updates = state.first, state.updates
    protocol.judge("", check_precision(first, second, training))
    if next(first.of(Region), None) is not None or first.called("scale"):
        protocol.judge("autocast")
    else:
        protocol.leave_out("autocast", "the step enters no autocast region")
    protocol.judge("steps", check_steps(updates, training, run.accumulate))
    clearing = list(check_clearing(updates, training))
    if training.scalers and first.called("scaler.step"):
        cleared = not any(one.name == "never-cleared" for one in clearing)
        protocol.judge("updates", check_updates(updates, training, run.accumulate, cleared=cleared))
    if second.error is not None:
        if not protocol.names & (STEPS_WRONG | UPDATES_WRONG):
            protocol.judge("", [check_error(updates, training, run.accumulate)])
        return
    if training.schedulers and first.steps():
        protocol.judge("scheduler", check_schedule(updates, training, run.accumulate))
        for told in overwritten_rates(updates, training, state.rates):
            protocol.judge("", [f"Something else sets the learning rate: {told}."])
            protocol.leave_out("scheduler", told)
    if not protocol.names & STEPS_WRONG:
        protocol.judge("clearing", clearing)
        _without_gradients(state)
        if mixes_weights(updates, training):
            why = "a step adds up gradients from before and after the weights changed"
            protocol.leave_out("clearing", f"{why}: is that meant?")
    protocol.judge("", check_zeros(updates, training))
    protocol.judge("", check_unusual(updates, training))


def _without_gradients(state: State) -> None:
    """Give optimizers that stepped without a gradient some more updates to get one."""
    run, training = state.run, state.run.training
    empty = without_gradients(state.updates, training)
    if not empty:
        return
    more = [run.update() for _ in range(max(PATIENCE // run.window - 2, 0))]
    for number in sorted(set(empty) & set(without_gradients([*state.updates, *more], training))):
        evidence = {"updates": (2 + len(more)) * run.window, "gradients_that_arrived": 0}
        state.protocol.judge("", [frozen_optimizer(training, number, **evidence)])


# ---- what comes after ----


def _against_fp32(state: State) -> None:
    AgainstFp32(state).judge(state.first)


def _update_missing(state: State) -> None:
    cause = (
        "the loss is scaled, and `scaler.update()` never ran: the scale stays as it is, whatever "
        "overflows"
    )
    steps = sum(len(one.steps()) for one in state.updates)
    fault = finding("update-missing", cause, updates=0, steps=steps)
    state.protocol.judge("updates", [fault])


def _calls_are_right(state: State) -> bool:
    return not state.protocol.names & (STEPS_WRONG | UPDATES_WRONG) and bool(state.first.steps())


def _is_steady(state: State) -> bool:
    return _calls_are_right(state) and not state.unsteady


def _is_right_so_far(state: State) -> bool:
    return _is_steady(state) and len(state.protocol.found) == state.known


def _never_updates(state: State) -> bool:
    called, sound = state.first.called, not state.protocol.found
    return bool(called("scale")) and not called("update") and not called("scaler.step") and sound


def _second_ran(state: State) -> bool:
    return state.updates[1].error is None


def _scale_can_grow(state: State) -> bool:
    used = state.run.training.scalers and state.first.called("update")
    return _second_ran(state) and bool(used) and not state.protocol.found


# What runs the step and judges what it did, and whether that tells something of this step
EXPERIMENTS: tuple[tuple[Callable[[State], None], Callable[[State], bool]], ...] = (
    (_first_update, lambda state: True),
    (_second_update, lambda state: True),
    (gradients.same_again, _calls_are_right),
    (gradients.enlarged, _is_steady),
    (gradients.two_scales, _is_steady),
    (gradients.clipping, _is_steady),
    (gradients.without_scaler, _calls_are_right),
    (_against_fp32, _is_right_so_far),
    (_update_missing, _never_updates),
    (check_overflow, _second_ran),
    (check_scale_growth, _scale_can_grow),
)
