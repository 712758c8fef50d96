"""Say what an exception from a step means, by torch's message and the calls before it."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Sequence

import torch

from amp_course.checking.explain import raised_in, short, where
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import frozen_optimizer
from amp_course.kit.markup import without_codes
from amp_course.watching.calling import BatchError
from amp_course.watching.records import Backward, Call, Event, Step, Training, Update
from amp_course.watching.script import Clip
from amp_course.watching.uses import steps_of


def check_error(updates: Sequence[Update], training: Training, accumulate: int) -> Finding:
    """Turn the exception that ended the last update into a finding."""
    error = updates[-1].error
    assert error is not None
    message, said = " ".join(str(error).split()), describe_error(error)
    if isinstance(error, BatchError):
        return finding("batch-does-not-fit", message)
    events = [event for update in updates for event in update.events]
    calls = [event for event in events if isinstance(event, Call)]
    last = calls[-1] if calls else None
    if last is not None and last.closure:
        cause = "`scaler.step` was given a closure, and `GradScaler` does not work with one"
        return finding("step-raises", f"{cause} ({said})")
    if re.search(r"unscale_\(\) (has already been called|is being called after step)", message):
        return _unscaled_again(updates, calls, accumulate, said)
    if "step() has already been called" in message:
        may_lack_update = len(updates) > 1 and all(call.name != "update" for call in calls)
        if may_lack_update or not _same_gradients(events[:-1]):
            return _no_update(calls, said)
        return finding("stepped-twice", torch_says=said)
    if "on the same device" in message or "two devices" in message:
        return finding("two-devices", torch_says=said)
    if "unscale FP16 gradients" in message:
        return finding("fp16-parameters", torch_says=said)
    if "No inf checks were recorded prior to update" in message:
        if _stepped_while_scaled(updates[-1]):
            by_hand = next(one for one in updates[-1].steps() if not one.by_scaler)
            return finding("still-scaled", torch_says=said, place=str(by_hand.line or ""))
        return _update_alone(events, calls, accumulate, said, error)
    if "No inf checks were recorded" in message:
        return _step_of_nothing(events, training, last, said)
    if "_scale is None" in message:
        passes = any(isinstance(event, Backward) and event.arrived for event in events)
        if not passes and last is not None and last.name == "unscale":
            return finding("unscaled-before-backward", torch_says=said)
        if passes and last is not None and _scaled_by_another(events, last):
            return finding("depends-on-scale", torch_says=said, variant="other-scaler")
        return finding("loss-not-scaled" if passes else "no-backward", torch_says=said)
    trains = any(p.requires_grad for slot in training.slots for p in slot.parameters)
    if "does not require grad" in message and not trains:
        return finding("frozen-optimizer", torch_says=said)
    at = f"{said.rstrip('.')}{where(error)}"
    if re.search(r"Target -?\d+ is out of bounds|t >= 0 && t < n_classes", message):
        return finding("labels-out-of-range", torch_says=at)
    return finding("step-raises", f"the step raised {at}")


def describe_error(error: BaseException, length: int = 200) -> str:
    """Put an exception on one line: "ValueError: no such file"."""
    message = " ".join(without_codes(str(error)).split())
    return short(f"{type(error).__name__}: {message}" if message else type(error).__name__, length)


def _unscaled_again(
    updates: Sequence[Update], calls: Sequence[Call], accumulate: int, said: str
) -> Finding:
    updated = any(call.name == "update" for call in calls)
    recent: list[Call] = []  # since the scaler's last `update()`
    for call in calls:
        if call.name == "update":
            recent.clear()
        elif call.name in ("unscale", "scaler.step"):
            recent.append(call)
    if any(call.name == "scaler.step" for call in recent[:-1]):
        if recent[-1].name == "unscale" and "after step" in said and (updated or len(updates) == 1):
            cause = "`scaler.unscale_` ran after `scaler.step`, which had unscaled the gradients"
            return finding("unscaled-twice", cause, torch_says=said)
        return _no_update(calls, said)
    here = updates[-1].called("unscale")
    if len(here) < 2 <= len(updates) and not updated:
        by_hand = any(not step.by_scaler for update in updates for step in update.steps())
        cause = (
            "the optimizer is stepped by hand after `unscale_`: neither `scaler.step`, which looks "
            "for inf, nor `scaler.update` runs"
        )
        return finding("update-missing", cause if by_hand else "", torch_says=said)
    unscaled = [call for call in recent if call.name == "unscale"] if accumulate > 1 else here
    several = len({call.call for call in unscaled}) > 1
    return finding("unscaled-every-micro-batch" if several else "unscaled-twice", torch_says=said)


def _no_update(calls: Sequence[Call], said: str) -> Finding:
    """Name the step after which the scaler of the last call was not updated."""
    own = [call for call in calls if call.scaler == calls[-1].scaler]
    line = next((call.line for call in reversed(own[:-1]) if call.name == "scaler.step"), None)
    # In a script, only the last updates are seen: it may have run in earlier ones.
    cause = (
        "`scaler.update()` did not run after a step. The scale cannot change then, and the scaler "
        "mistakes the next update for the same one"
    )
    updated = {call.scaler for call in calls if call.name == "update"}
    if updated and calls[-1].scaler not in updated:
        cause = "`update()` is never called on this step's scaler, only on another one"
    return finding("update-missing", cause, torch_says=said, place=str(line or ""))


def _same_gradients(events: Sequence[Event]) -> bool:
    """Return True if no backward pass ran after the last step."""
    for event in reversed(events):
        if isinstance(event, Backward):
            return False
        if isinstance(event, Step) or (isinstance(event, Call) and event.name == "scaler.step"):
            break
    return True


def _stepped_while_scaled(update: Update) -> bool:
    """Return True if an optimizer stepped without the scaler, and its gradients were scaled."""
    by_hand = [one for one in update.steps() if not one.by_scaler]
    for used in steps_of(update.events, by_hand[0].number) if by_hand and update.scales else ():
        number = used.step.number
        carry = any(one.scale not in (None, 1.0) for one in used.parts if number in one.arrived)
        if carry and not used.step.gradient.finite and not update.called("unscale", number):
            return True
        arrived = [one.arrived[number].values for one in used.parts if number in one.arrived]
        norms = [clip.norm for clip in update.of(Clip)] or [used.step.gradient.norm]
        larger = norms[0] * math.sqrt(max(update.scales))
        if arrived and larger > float(torch.stack(arrived).sum(0).norm()):
            return True
    return False


def _update_alone(
    events: Sequence[Event], calls: Sequence[Call], accumulate: int, said: str, error: BaseException
) -> Finding:
    """Judge a `scaler.update()` that no `scaler.step` or `unscale_` came before."""
    before = [call for call in calls[:-1] if call.name in ("update", "scaler.step")]
    here = calls[-1]
    if before and before[-1].name == "update" and before[-1].call == here.call:
        return finding("updated-twice", torch_says=said)
    since = events.index(before[-1]) if before else 0
    if any(isinstance(event, Step) and not event.by_scaler for event in events[since:]):
        cause = (
            "`scaler.update()` ran, and the optimizer was stepped by hand: the scaler has looked "
            f"for no inf ({said})"
        )
        return finding("step-raises", cause)
    if accumulate > 1 and here.call % accumulate < accumulate - 1:
        return finding("update-every-micro-batch", torch_says=said)
    name = "update-before-step" if _has_step(error) else "never-stepped"
    return finding(name, torch_says=said)


def _has_step(error: BaseException) -> bool:
    """Return True if the user's function has a step below the line that raised, or a scaler's
    above it, as in a branch for the last micro-batch.
    """
    found = raised_in(error)
    if found is None:
        return False
    code, line = found
    last = max(number or 0 for *_, number in code.co_lines())
    lines = [one.partition("#")[0] for one in linecache.getlines(code.co_filename)[:last]]
    above = lines[code.co_firstlineno - 1 : line]
    scalers = any(re.search(r"scaler\w*\.step\(", one) for one in above)
    return scalers or any(".step(" in one for one in lines[line:])


def _scaled_by_another(events: Sequence[Event], last: Call) -> bool:
    """Return True if losses were scaled, and none by the scaler of the last call."""
    scalers = {one.scaler for one in events if isinstance(one, Call) and one.name == "scale"}
    return bool(scalers) and last.scaler >= 0 and last.scaler not in scalers


def _step_of_nothing(
    events: Sequence[Event], training: Training, last: Call | None, said: str
) -> Finding:
    """Judge a `scaler.step` whose optimizer has no gradient."""
    if last is not None and last.number < 0:
        return finding("foreign-optimizer", torch_says=said)
    number = last.number if last else 0
    parameters = training.slots[number].parameters
    backwards = [event for event in events if isinstance(event, Backward)]
    reaching = [event for event in backwards if number in event.arrived]
    earlier = steps_of(events, number)
    unused = [one for one in reaching if not any(one in used.parts for used in earlier)]
    if unused:
        calls = [one for one in events if isinstance(one, Call) and one.name == "unscale"]
        unscale = next((one for one in reversed(calls) if one.number == number), None)
        early = unscale and unscale.empty and events.index(unscale) < events.index(unused[-1])
        name = "unscaled-before-backward" if early else "cleared-before-step"
        return finding(name, torch_says=said)
    if not backwards:
        frozen = not any(p.requires_grad for p in parameters)
        return finding("frozen-optimizer" if frozen else "no-backward", torch_says=said)
    foreign = not {id(p) for p in parameters} & training.model_parameters.keys()
    if foreign and any(training.rest in event.arrived for event in backwards):
        return finding("foreign-parameters", torch_says=said)
    if reaching and earlier:
        cause = "an optimizer stepped a second time, with no gradients left"
        return finding("stepped-twice", cause, torch_says=said)
    return frozen_optimizer(training, number, torch_says=said)
