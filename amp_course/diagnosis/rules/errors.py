"""Say what an exception that ended a training means."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amp_course.checking.explain import short
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.diagnosis.rules import exceptions
from amp_course.kit.markup import without_codes
from amp_course.watching.origins import Line, NonfiniteOrigin, is_of_a_library
from amp_course.watching.records import Training, Update
from amp_course.watching.values import mentions_values

_FEW, _RARE = 3, 0.05  # exceptions, and their share of the steps
_NOT_THEIRS = (str(Path(__file__).parents[2]), torch.__path__[0], "<frozen")


def describe_with_line(error: BaseException) -> str:
    """Put an exception on one line, with the line of the user's code that it came from."""
    if type(error).__name__ == "ProcessRaisedException":  # from `torch.multiprocessing.spawn`
        return _describe_child(str(error))
    text = exceptions.describe_error(error, 300)
    stack = traceback.extract_tb(error.__traceback__)
    frames = [one for one in stack if not one.filename.startswith(_NOT_THEIRS)]
    own = [one for one in frames if not is_of_a_library(one.filename)] or frames
    if not own:
        return text
    last = own[-1]
    return f"{text} (line {last.lineno} of {os.path.basename(last.filename)}, `{last.line}`)"


def _describe_child(message: str) -> str:
    """Put a child process's exception on one line; the message holds its traceback."""
    lines = [line.strip() for line in without_codes(message).splitlines() if line.strip()]
    frames = (re.match(r'File "(.+)", line (\d+), in', line) for line in lines)
    places = [Line(one[1], int(one[2])) for one in frames if one]
    own = [one for one in places if not _is_foreign(one.file)]
    return f"{short(lines[-1], 300)}{f' ({own[-1]})' if own else ''}"


def _is_foreign(file: str) -> bool:
    """Return True if a file is the course's, torch's, or another library's."""
    return file.startswith(_NOT_THEIRS) or is_of_a_library(file)


def name_error(
    error: BaseException,
    updates: Sequence[Update],
    training: Training | None,
    scalers: Sequence[Any],
    origins: Sequence[NonfiniteOrigin],
) -> Findings:
    """Yield what an exception means in a training."""
    message, said = " ".join(str(error).split()), describe_with_line(error)
    if "mix of the legacy and new APIs" in message or ("TF32" in message and "legacy" in message):
        yield finding("tf32-settings-mixed", torch_says=said)
        return
    if "returned nan values" in message:  # by anomaly mode; `check_values` judges forward ops
        early = any(one.phase != "backward" and one.harmful for one in origins)
        if not early and any(one.is_enabled() for one in scalers):
            scale = max(one.get_scale() for one in scalers)
            yield finding("anomaly-mode-meets-scaler", torch_says=said, loss_scale=scale)
        return
    if training is None or not updates:
        return
    if mentions_values(error) and any(one.harmful for one in origins):
        return
    stepped = [one.line for update in updates for one in update.steps()]
    if "modified by an inplace operation" in message and stepped and stepped[-1] is not None:
        cause = (
            f"the script raised {said}: the step in {stepped[-1]} changed weights that this "
            "backward pass still needs"
        )
        yield finding("script-raises", cause, place=str(stepped[-1]), variant="stepped-early")
        return
    found = exceptions.check_error(updates, training, 1)
    if found.name == "step-raises":
        found = finding("script-raises", f"the script raised {said}")
    yield found


def swallowed(raised: Sequence[BaseException]) -> Finding:
    """Make the finding of exceptions that the script catches in each step."""
    first = describe_with_line(raised[0])
    return finding("swallowed-exception", raised=len(raised), the_first=first)


def often_swallowed(raised: Sequence[str], updates: int) -> Findings:
    """Yield the finding of exceptions that the script catches again and again."""
    steps = updates + len(raised)
    if len(raised) >= _FEW and len(raised) >= _RARE * steps:
        cause = (
            "in some steps an exception is raised and caught, and nothing is learnt from their "
            "batches"
        )
        often = f"in {len(raised)} of {steps} steps"
        yield finding("swallowed-exception", cause, raised=often, the_first=raised[0])
