"""Examine a training step in this process; everything that the step changes is put back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from amp_course.audit import audit
from amp_course.audit.arguments import as_list
from amp_course.audit.snapshot import restored
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import BEHAVIOURS, by_grade, in_order
from amp_course.diagnosis.findings import Evidence, Finding
from amp_course.diagnosis.report import Report, listed
from amp_course.doctor.examiner import Examiner
from amp_course.doctor.reasons import facts, placed
from amp_course.kit.measure import seconds_text
from amp_course.speed.explain import explain
from amp_course.speed.explain.running import StepFailed
from amp_course.watching.calling import BatchError, arguments_for, cloned, read_batches
from amp_course.watching.values import mentions_values

_RAISES = ("step-raises", "script-raises")
_OF_AN_EXCEPTION = {"tf32-settings-mixed", "anomaly-mode-meets-scaler", "script-raises"}
_KINDS = 3  # of work that are shown: those that take the most time
# The section of each cause that `explain` names; 09.6 for the others
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
    seconds: how long one call may take
    timing:  seconds for which the step is timed, by `amp_course.speed.explain`; 0 leaves that out

    Weights, states, buffers and random numbers are put back. Raises TypeError for objects of the
    wrong kind, ValueError for numbers that make no sense.
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
            read = read_batches(batches, max(steps, most), seconds)
    except BatchError as error:
        return Report(problem=f"{error}.")
    if not read:
        return Report(problem="`batches` is empty: pass at least one batch.")
    own = [*as_list(model), *as_list(optimizer), *as_list(scaler), *as_list(scheduler)]
    with restored(own, {"the step": train_step}) as snapshot:
        watched, raised = _watched(train_step, itertools.islice(itertools.cycle(read), steps), own)
    lost = snapshot.lost
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
        with restored(own, {"the step": train_step}) as snapshot:
            times = _time_facts(train_step, read, timing)
        lost |= snapshot.lost
    return _combined(watched, raised, judged, lost, *times)


def _watched(
    step: Callable[..., Any], batches: Iterable[Any], own: Sequence[Any]
) -> tuple[dict[str, Any], Exception | SystemExit | None]:
    """Call the step under the watchers of a script; return the result, and what it raised."""
    examiner, error = Examiner(), None
    watchers, made = examiner.watchers, examiner.watchers.made
    made.optimizers += [one for one in own if isinstance(one, torch.optim.Optimizer)]
    made.scalers += [one for one in own if isinstance(one, torch.amp.GradScaler)]
    made.schedulers += [one for one in own if isinstance(one, torch.optim.lr_scheduler.LRScheduler)]
    try:
        with watchers.watch:
            for batch in batches:
                args, kwargs = arguments_for(step, cloned(batch))
                step(*args, **kwargs)
    except (Exception, SystemExit) as raised:
        error = raised
    watchers.end()
    examiner.close(error)
    return examiner.result(error) | {"ended": "error" if error else "steps", "asked": 0}, error


def _time_facts(
    step: Callable[..., Any], batches: Iterable[Any], seconds: float
) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Time a step; return facts and advice. It really trains: the caller puts everything back."""
    try:
        found = explain(step, batches, seconds=seconds)
    except StepFailed:  # the watch or the audit has reported that
        return [], []
    whole = seconds_text(found.seconds)
    if found.timing.busy:
        return [("a step took", f"{whole}. {found.timing.busy}")], []
    largest = list(found.kinds.items())[:_KINDS]
    shares = listed(f"{spent / found.seconds:.0%} {kind}" for kind, spent in largest)
    advice = []
    for one in found.advice:
        saves: Evidence = {"would save at most": f"{seconds_text(one.seconds)} of {whole}"}
        section = _SECTIONS.get(one.cause, "09.6")
        advice.append(Finding(one.cause, one.evidence, one.fix, saves, section=section))
    return [("a step takes", f"{whole}: {shares}")], advice


def _combined(
    result: dict[str, Any],
    error: Exception | SystemExit | None,
    judged: Report,
    lost: dict[str, str],
    times: list[tuple[str, str]],
    saving: list[Finding],
) -> Report:
    """Combine the results of the watch and of the audit, with the times, into one report."""
    watched, advised = by_grade(result["findings"])
    advice = [*result["advice"], *advised, *saving]
    if judged.findings:  # the audit knows the micro-batches, and names the order of calls better
        watched = [
            one for one in watched if one.behaviour not in BEHAVIOURS or "op" in one.evidence
        ]
    if isinstance(error, BatchError):
        watched = [one for one in watched if one.name not in _OF_AN_EXCEPTION]
    found = [*judged.findings, *judged.consequences, *watched]
    names = {one.name for one in found}
    vague = set()  # findings that others make more exactly
    if names & _OF_AN_EXCEPTION:
        vague.add("script-raises" if "step-raises" in names else "step-raises")
    # The audit does not say where the values come from.
    if any(one.behaviour == "values" or "op" in one.evidence for one in watched):
        vague |= {"not-finite", *(_RAISES if error is not None and mentions_values(error) else ())}
    found = [one for one in found if one.name not in vague or "op" in one.evidence]
    # An observation that begins with the name of some advice repeats that advice.
    advised_names = {one.name for one in advice}
    observed = [text for text in result["observed"] if text.partition(",")[0] not in advised_names]
    problem = ""
    if not found and not judged:
        why = "; ".join(f"{name}: {reason}" for name, reason in judged.not_checked)
        problem = f"Nothing was judged ({why})."
    names = {one.name for one in found}
    return Report(
        tuple(placed(one, result) for one in in_order(found)),
        ("values", "weights", *judged.checked) if result["updates"] else judged.checked,
        judged.not_checked,
        tuple(dict.fromkeys([*judged.observations, *observed])),
        tuple((lost | dict(judged.not_put_back)).items()),
        advice=tuple(one for one in in_order(advice) if one.name not in names),
        facts=(*facts([result]), *times),
        problem=problem,
        device=result["device"].partition(":")[0],
    )
