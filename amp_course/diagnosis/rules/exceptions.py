"""Say what an exception from a training step means: torch's own messages, and what the step had done by then."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from amp_course.checking.explain import raised_in, short, where
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import frozen_optimizer
from amp_course.watching.calling import BatchError
from amp_course.watching.records import Backward, Call, Step, Training, Update
from amp_course.watching.uses import steps_of


def check_error(updates: Sequence[Update], training: Training, accumulate: int) -> Finding:
    """Turn the exception that ended the last of some updates into a finding; the calls before it tell what it means."""
    error = updates[-1].error
    assert error is not None
    message, said = " ".join(str(error).split()), described(error)
    if isinstance(error, BatchError):
        return finding("batch-does-not-fit", message)
    events = [event for update in updates for event in update.events]
    calls = [event for event in events if isinstance(event, Call)]
    last = calls[-1] if calls else None
    if last is not None and last.closure:
        cause = f"`scaler.step` was given a closure, and `GradScaler` does not work with one ({said})"
        return finding("step-raises", cause)
    if "unscale_() has already been called" in message or "unscale_() is being called after step" in message:
        return _unscaled_again(updates, calls, accumulate, said)
    if "step() has already been called" in message:
        updated = any(call.name == "update" for call in calls)
        return finding(
            "stepped-twice" if _same_gradients(events, last) and (updated or len(updates) == 1) else "update-missing",
            torch_says=said,
        )
    if "on the same device" in message or "two devices" in message:
        return finding("two-devices", torch_says=said)
    if "unscale FP16 gradients" in message:
        return finding("fp16-parameters", torch_says=said)
    if "No inf checks were recorded prior to update" in message:
        return _update_alone(events, calls, accumulate, said, error)
    if "No inf checks were recorded" in message:
        return _step_of_nothing(events, training, last, said)
    if "_scale is None" in message:
        passes = [event for event in events if isinstance(event, Backward) and event.arrived]
        if not passes and last is not None and last.name == "unscale":
            return finding("unscaled-before-backward", torch_says=said)
        return finding("loss-not-scaled" if passes else "no-backward", torch_says=said)
    if "does not require grad" in message and not any(
        p.requires_grad for slot in training.slots for p in slot.parameters
    ):
        return finding("frozen-optimizer", torch_says=said)
    if re.search(r"Target -?\d+ is out of bounds|t >= 0 && t < n_classes", message):
        return finding("labels-out-of-range", torch_says=f"{said.rstrip('.')}{where(error)}")
    return finding("step-raises", f"the step raised {said.rstrip('.')}{where(error)}")


def described(error: BaseException) -> str:
    """Put an exception on one line: "ValueError: no such file"."""
    message = " ".join(str(error).split())
    return short(f"{type(error).__name__}: {message}" if message else type(error).__name__, 200)


def _unscaled_again(updates: Sequence[Update], calls: Sequence[Call], accumulate: int, said: str) -> Finding:
    own = [call for call in calls if call.name in ("unscale", "scaler.step", "update")]
    since = 0
    for place, call in enumerate(own):
        if call.name == "update":
            since = place + 1
    recent = own[since:]
    unscaled = [call for call in recent if call.name == "unscale"]
    if any(call.name == "scaler.step" for call in recent[:-1]):
        if len(updates) > 1 and not any(call.name == "update" for call in calls):
            return finding("update-missing", torch_says=said)
        if recent[-1].name == "unscale" and "after step" in said:
            return finding(
                "unscaled-twice",
                "`scaler.unscale_` ran after `scaler.step`, which had unscaled the gradients",
                torch_says=said,
            )
        return finding("update-missing", torch_says=said)
    here = [call for call in updates[-1].events if isinstance(call, Call) and call.name == "unscale"]
    if len(here) < 2 <= len(updates) and not any(call.name == "update" for call in calls):
        cause = ""
        if any(not step.by_scaler for update in updates for step in update.steps()):
            cause = (
                "the optimizer is stepped by hand after `unscale_`: neither `scaler.step`, which looks for inf, nor "
                "`scaler.update` runs"
            )
        return finding("update-missing", cause, torch_says=said)
    if len({call.call for call in (unscaled if accumulate > 1 else here)}) > 1:
        return finding("unscaled-every-micro-batch", torch_says=said)
    return finding("unscaled-twice", torch_says=said)


def _same_gradients(events: Sequence[object], last: Call | None) -> bool:
    """Tell whether no backward pass came between the last two `scaler.step` calls."""
    for event in reversed(events[:-1]):
        if isinstance(event, Backward):
            return False
        if isinstance(event, Step) or (isinstance(event, Call) and event.name == "scaler.step"):
            return True
    return last is not None


def _update_alone(
    events: Sequence[object], calls: Sequence[Call], accumulate: int, said: str, error: BaseException
) -> Finding:
    """`scaler.update()` ran, and no `scaler.step` or `unscale_` since the last one."""
    before = [call for call in calls[:-1] if call.name in ("update", "scaler.step")]
    here = calls[-1]
    if before and before[-1].name == "update" and before[-1].call == here.call:
        return finding("updated-twice", torch_says=said)
    since = events.index(before[-1]) if before else 0
    by_hand = [event for event in events[since:] if isinstance(event, Step) and not event.by_scaler]
    passes = [event for event in events if isinstance(event, Backward)]
    if by_hand and passes and by_hand[0].number in passes[-1].arrived:
        arrived = passes[-1].arrived[by_hand[0].number].norm
        if arrived and by_hand[0].gradient.norm > 0.5 * arrived:
            return finding("still-scaled", torch_says=said)
    if by_hand:
        cause = (
            f"`scaler.update()` ran, and the optimizer was stepped by hand: the scaler has looked for no inf ({said})"
        )
        return finding("step-raises", cause)
    if accumulate > 1 and here.call % accumulate < accumulate - 1:
        return finding("update-every-micro-batch", torch_says=said)
    return finding("update-before-step" if _step_follows(error) else "never-stepped", torch_says=said)


def _step_follows(error: BaseException) -> bool:
    """Tell whether a step stands below the line that raised, in the reader's own function."""
    found = raised_in(error)
    if found is None:
        return False
    code, line = found
    last = max(number or 0 for *_, number in code.co_lines())
    return any(".step(" in linecache.getline(code.co_filename, number) for number in range(line + 1, last + 1))


def _step_of_nothing(events: Sequence[object], training: Training, last: Call | None, said: str) -> Finding:
    """`scaler.step` found no gradient of its optimizer."""
    if last is not None and last.number < 0:
        return finding("foreign-optimizer", torch_says=said)
    number = last.number if last else 0
    typed = [event for event in events if isinstance(event, (Backward, Step, Call))]
    backwards = [event for event in typed if isinstance(event, Backward)]
    mine = [event for event in backwards if number in event.arrived]
    earlier = steps_of(typed, number)
    unused = [one for one in mine if not any(one in used.parts for used in earlier)]
    unscaled = [
        event for event in typed if isinstance(event, Call) and event.name == "unscale" and event.number == number
    ]
    nothing = bool(unscaled) and unscaled[-1].empty
    if unused and nothing and typed.index(unscaled[-1]) < typed.index(unused[-1]):
        return finding("unscaled-before-backward", torch_says=said)
    if unused:
        return finding("cleared-before-step", torch_says=said)
    if not backwards:
        frozen = not any(p.requires_grad for p in training.slots[number].parameters)
        return finding("frozen-optimizer" if frozen else "no-backward", torch_says=said)
    foreign = not {id(p) for p in training.slots[number].parameters} & {
        id(p) for m in training.models for p in m.parameters()
    }
    if foreign and any(len(training.optimizers) in event.arrived for event in backwards):
        return finding("foreign-parameters", torch_says=said)
    if mine and earlier:
        return finding("stepped-twice", "an optimizer stepped a second time, with no gradients left", torch_says=said)
    return frozen_optimizer(training, number, torch_says=said)
