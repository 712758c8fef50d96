"""Say what an exception that ended a training means."""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from amp_course.checking.explain import short
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.kit.markup import without_codes
from amp_course.watching.births import Birth, Line, is_of_a_library
from amp_course.watching.ops import mentions_values
from amp_course.watching.records import Training, Update
from amp_course.watching.script import Clip
from amp_course.watching.uses import steps_of

_FEW, _RARE = 3, 0.05  # exceptions, and their share of the steps


def described(error: BaseException) -> str:
    """Put an exception on a line, with the line of the reader's code that it came from."""
    message = " ".join(without_codes(str(error)).split())
    if type(error).__name__ == "ProcessRaisedException":  # of a child that `torch.multiprocessing` spawned
        return _of_child(str(error))
    text = short(f"{type(error).__name__}: {message}" if message else type(error).__name__, 300)
    return f"{text}{_place(error)}"


def _of_child(told: str) -> str:
    """Put a child's exception on a line, from its traceback."""
    lines = [line.strip() for line in without_codes(told).splitlines() if line.strip()]
    frames = (re.match(r'File "(.+)", line (\d+), in', line) for line in lines)
    own = [Line(one[1], int(one[2])) for one in frames if one and not is_of_a_library(one[1])]
    return f"{short(lines[-1], 300)}{f' ({own[-1]})' if own else ''}"


def _place(error: BaseException) -> str:
    here = (os.path.dirname(os.path.dirname(os.path.dirname(__file__))), torch.__path__[0])
    frames = [
        one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith((*here, "<frozen"))
    ]
    own = [one for one in frames if not is_of_a_library(one.filename)] or [
        one for one in frames if "runpy" not in one.filename
    ]
    if not own:
        return ""
    return f" (line {own[-1].lineno} of {os.path.basename(own[-1].filename)}, `{own[-1].line}`)"


def name_error(
    error: BaseException,
    updates: Sequence[Update],
    training: Training | None,
    scalers: Sequence[Any],
    births: Sequence[Birth],
) -> Iterator[Finding]:
    """Yield what an exception means in a training."""
    message, said = " ".join(str(error).split()), described(error)
    if "mix of the legacy and new APIs" in message or ("TF32" in message and "legacy" in message):
        yield finding("tf32-settings-mixed", torch_says=said)
        return
    anomaly = "returned nan values" in message
    if anomaly and any(one.is_enabled() for one in scalers) and not any(_before_backward(one) for one in births):
        yield finding("anomaly-mode-meets-scaler", torch_says=said, loss_scale=max(one.get_scale() for one in scalers))
        return
    if training is None or not updates or anomaly:  # for the last, the values tell
        return
    if "No inf checks were recorded prior to update" in message and _stepped_while_scaled(updates[-1]):
        yield finding("still-scaled", torch_says=said)
        return
    if mentions_values(error) and any(one.harmful for one in births):
        return
    stepped = [one for update in updates for one in update.steps()]
    if "modified by an inplace operation" in message and stepped and stepped[-1].line is not None:
        cause = f"the script raised {said}: the step in {stepped[-1].line} changed weights that this backward pass still needs"
        yield finding("script-raises", cause, place=str(stepped[-1].line), variant="stepped-early")
        return
    found = check_error(updates, training, 1)
    yield finding("script-raises", f"the script raised {said}") if found.name == "step-raises" else found


def _before_backward(birth: Birth) -> bool:
    return birth.phase != "backward" and birth.harmful


def _stepped_while_scaled(update: Update) -> bool:
    """Return True if an optimizer stepped, past the scaler, with gradients that nobody had divided by the scale."""
    by_hand = [one for one in update.steps() if not one.by_scaler]
    for used in steps_of(update.events, by_hand[0].number) if by_hand and update.scales else ():
        arrived = [one.arrived[used.step.number].values for one in used.parts if used.step.number in one.arrived]
        norms = [clip.norm for clip in update.of(Clip)] or [used.step.gradient.norm]
        if arrived and norms[0] * math.sqrt(max(update.scales)) > float(sum(arrived[1:], arrived[0]).norm()):
            return True
    return False


def swallowed(raised: Sequence[BaseException]) -> Finding:
    """Make the finding of exceptions that the script catches in each step."""
    return finding("swallowed-exception", raised=len(raised), the_first=described(raised[0]))


def often_swallowed(raised: Sequence[str], updates: int) -> Iterator[Finding]:
    """Yield the finding of exceptions that the script catches in some of its steps, if that happens again and again."""
    steps = updates + len(raised)
    if len(raised) >= _FEW and len(raised) >= _RARE * steps:
        cause = "in some steps an exception is raised and caught, and nothing is learnt from their batches"
        yield finding("swallowed-exception", cause, raised=f"in {len(raised)} of {steps} steps", the_first=raised[0])
