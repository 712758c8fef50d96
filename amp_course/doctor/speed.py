"""What the doctor says of time: where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import listed
from amp_course.kit.measure import seconds_text
from amp_course.speed.explain import explain
from amp_course.speed.explain.running import StepFailed

_KINDS = 3  # of work that are told, those that take the most time

# The section of each cause that `explain` names; 09.6 for those that are not listed.
_SECTIONS = dict.fromkeys(("data-preparation", "slow-source", "slow-workers", "waiting-for-data"), "09.7")
_SECTIONS["unfused-optimizer"] = "09.8"


def time_facts(
    step: Callable[..., Any], batches: Iterable[Any], seconds: float
) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Time a step for about so many seconds; return facts and advice. It really trains: the caller puts everything back."""
    try:
        told = explain(step, batches, seconds=seconds)
    except StepFailed:  # which the watch or the audit has told
        return [], []
    if told.timing.busy:
        return [("a step took", f"{seconds_text(told.seconds)}. {told.timing.busy}")], []
    largest = list(told.kinds.items())[:_KINDS]
    shares = listed(f"{spent / told.seconds:.0%} {kind}" for kind, spent in largest)
    advice = [
        Finding(
            one.cause, one.evidence, one.cure,
            {"would save at most": f"{seconds_text(one.seconds)} of {seconds_text(told.seconds)}"},
            section=_SECTIONS.get(one.cause, "09.6"),
        )
        for one in told.advice
    ]  # fmt: skip
    return [("a step takes", f"{seconds_text(told.seconds)}: {shares}")], advice
