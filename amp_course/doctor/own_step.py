"""Examine a reader's own training step, in this process: everything that it changes is put back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from amp_course.audit import audit
from amp_course.audit.arguments import as_list
from amp_course.audit.snapshot import Snapshot
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import BEHAVIOURS, by_grade, in_order
from amp_course.diagnosis.findings import Evidence, Finding
from amp_course.diagnosis.report import Report, listed
from amp_course.doctor.examiner import Examiner
from amp_course.doctor.reasons import facts, placed
from amp_course.kit.measure import seconds_text
from amp_course.speed.explain import explain
from amp_course.speed.explain.running import StepFailed
from amp_course.watching.calling import BatchError, arguments_for, cloned, taken
from amp_course.watching.ops import mentions_values

_RAISES = ("step-raises", "script-raises")
_OF_AN_EXCEPTION = {"tf32-settings-mixed", "anomaly-mode-meets-scaler", "script-raises"}
_KINDS = 3  # of work that are told, those that take the most time
# The section of each cause that `explain` names; 09.6 for those that are not listed.
_OF_DATA = ("data-preparation", "slow-source", "slow-workers", "waiting-for-data")
_SECTIONS = dict.fromkeys(_OF_DATA, "09.7") | {"unfused-optimizer": "09.8"}


def doctor(
    model: nn.Module | Sequence[nn.Module],
    train_step: Callable[..., Any],
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] | None = None,
    *,
    scheduler: Any = None,
    loss: Callable[..., Any] | None = None,
    accumulate: int = 1,
    max_norm: float | None = None,
    steps: int = 12,
    seconds: float = 30.0,
    timing: float = 3.0,
) -> Report:
    """Run `train_step(*batch)` for some steps, and say what is wrong with it.

    model, optimizer, scaler, scheduler, loss, accumulate, max_norm: as `amp_course.audit.audit`
        takes them
    batches: tuples, dicts or single objects; used again if there are fewer than `steps`
    steps:   how often the step is called while it is watched; the audit calls it some dozen times
             more
    seconds: that one call may take
    timing:  seconds in which the step is timed, by `amp_course.speed.explain`; 0 leaves that out

    Weights, states, buffers and random numbers are as before afterwards. Raises TypeError for
    objects of the wrong kind, ValueError for numbers that make no sense.
    Example: doctor(model, step, batches, optimizer, scaler).names → ("clipped-while-scaled",)
    """
    if not callable(train_step):
        raise TypeError(
            "train_step has to be the function that you call for each batch, and this is a "
            f"{type(train_step).__name__}: doctor(model, train_step, batches, optimizer)."
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}: at least one step has to run.")
    read: Sequence[Any]
    try:
        with sandbox():  # a DataLoader draws random numbers
            most = len(batches) if isinstance(batches, (list, tuple)) else 4 * accumulate
            read = taken(batches, max(steps, most), seconds)
    except BatchError as error:
        return Report(problem=f"{error}.")
    if not read:
        return Report(problem="`batches` is empty: pass at least one batch.")
    given = [*as_list(model), *as_list(optimizer), *as_list(scaler), *as_list(scheduler)]
    lost: dict[str, str] = {}
    with _put_back(train_step, given, lost):
        seen, raised = _watched(train_step, itertools.islice(itertools.cycle(read), steps), given)
    judged = audit(
        train_step,
        model=model,
        optimizer=optimizer,
        batches=read,
        scaler=scaler,
        scheduler=scheduler,
        loss=loss,
        accumulate=accumulate,
        max_norm=max_norm,
        seconds=seconds,
    )
    times: tuple[list[tuple[str, str]], list[Finding]] = ([], [])
    if timing > 0 and raised is None:
        with _put_back(train_step, given, lost):
            times = _time_facts(train_step, read, timing)
    return _together(seen, raised, judged, lost, *times)


@contextlib.contextmanager
def _put_back(
    step: Callable[..., Any], given: Sequence[Any], lost: dict[str, str]
) -> Iterator[None]:
    """Put back what changes inside; what cannot be is added to `lost`, with the reason."""
    with sandbox():
        snapshot = Snapshot(given, {"the step": step})
        try:
            yield
        finally:
            snapshot.restore()
            lost |= snapshot.lost


def _watched(
    step: Callable[..., Any], batches: Iterable[Any], given: Sequence[Any]
) -> tuple[dict[str, Any], Exception | SystemExit | None]:
    """Call the step under the watchers of a script; return what they saw, and what it raised."""
    examiner, error = Examiner(), None
    seen = examiner.seen
    seen.made.optimizers += [one for one in given if isinstance(one, torch.optim.Optimizer)]
    seen.made.scalers += [one for one in given if isinstance(one, torch.amp.GradScaler)]
    seen.made.schedulers += [
        one for one in given if isinstance(one, torch.optim.lr_scheduler.LRScheduler)
    ]
    try:
        with seen.watch:
            for batch in batches:
                args, kwargs = arguments_for(step, cloned(batch))
                step(*args, **kwargs)
    except (Exception, SystemExit) as raised:
        error = raised
    seen.end()
    examiner.close(error)
    return examiner.result(error) | {"ended": "error" if error else "steps", "asked": 0}, error


def _time_facts(
    step: Callable[..., Any], batches: Iterable[Any], seconds: float
) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Time a step; return facts and advice. It really trains: the caller puts everything back."""
    try:
        told = explain(step, batches, seconds=seconds)
    except StepFailed:  # which the watch or the audit has told
        return [], []
    if told.timing.busy:
        return [("a step took", f"{seconds_text(told.seconds)}. {told.timing.busy}")], []
    largest = list(told.kinds.items())[:_KINDS]
    shares = listed(f"{spent / told.seconds:.0%} {kind}" for kind, spent in largest)
    advice, whole = [], seconds_text(told.seconds)
    for one in told.advice:
        saves: Evidence = {"would save at most": f"{seconds_text(one.seconds)} of {whole}"}
        section = _SECTIONS.get(one.cause, "09.6")
        advice.append(Finding(one.cause, one.evidence, one.fix, saves, section=section))
    return [("a step takes", f"{whole}: {shares}")], advice


def _together(
    seen: dict[str, Any],
    error: Exception | SystemExit | None,
    judged: Report,
    lost: dict[str, str],
    times: list[tuple[str, str]],
    saving: list[Finding],
) -> Report:
    watched, advised = by_grade(seen["findings"])
    advice = [*seen["advice"], *advised, *saving]
    if judged.findings:  # which knows the micro-batches, and names the order of calls better
        shown = (one for one in watched if one.behaviour not in BEHAVIOURS or "op" in one.evidence)
        watched = list(shown)
    if isinstance(error, BatchError):
        watched = [one for one in watched if one.name not in _OF_AN_EXCEPTION]
    found = [*judged.findings, *judged.consequences, *watched]
    names = {one.name for one in found}
    vague = set()  # what others say better
    if names & _OF_AN_EXCEPTION:
        vague.add("script-raises" if "step-raises" in names else "step-raises")
    # the audit does not say where
    if any(one.behaviour == "values" or "op" in one.evidence for one in watched):
        vague |= {"not-finite", *(_RAISES if error is not None and mentions_values(error) else ())}
    found = [one for one in found if one.name not in vague or "op" in one.evidence]
    told = {one.name for one in advice}  # the observation of the same is left out then
    observed = [text for text in seen["observed"] if text.partition(",")[0] not in told]
    problem = ""
    if not found and not judged:
        why = "; ".join(f"{name}: {reason}" for name, reason in judged.not_checked)
        problem = f"Nothing was judged ({why})."
    names = {one.name for one in found}
    return Report(
        tuple(placed(one, seen) for one in in_order(found)),
        ("values", "weights", *judged.checked) if seen["updates"] else judged.checked,
        judged.not_checked,
        tuple(dict.fromkeys([*judged.observations, *observed])),
        tuple((lost | dict(judged.not_put_back)).items()),
        advice=tuple(one for one in in_order(advice) if one.name not in names),
        facts=(*facts([seen]), *times),
        problem=problem,
        device=seen["device"].partition(":")[0],
    )
