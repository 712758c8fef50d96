"""What the doctor says of time: what the machine makes of the formats in use, and where a step's time goes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import listed
from amp_course.kit.dtypes import DTYPES
from amp_course.kit.hardware import MachineReport, machine_report
from amp_course.kit.measure import seconds_text
from amp_course.speed.explain import explain
from amp_course.speed.explain.running import StepFailed

_KINDS = 3  # of work that are told, those that take the most time

_report = functools.cache(machine_report)  # a second or two for each device


def machine_facts(device: torch.device | str, dtypes: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what a machine is, and how fast the 16-bit formats are there that a training uses, by "float16" and "bfloat16"."""
    report: MachineReport = _report(torch.device(device))
    yield "machine", f"{report.device_name}, {report.threads} threads, torch {report.torch_version}"
    for one in report.dtypes:
        if one.name == "tf32" or one.name == "fp32" or str(DTYPES[one.name])[6:] not in dtypes:
            continue
        if one.state == "unknown":
            yield f"{one.name} here", one.note
        elif one.times_fp32 is None:
            yield f"{one.name} here", "matmuls do not run"
        else:
            meaning = "native" if one.state == "native" else "emulated, which is for learning and not for speed"
            yield f"{one.name} here", f"a matmul takes {_number(one.times_fp32)} times as long as in fp32: {meaning}"


def _number(times: float) -> str:
    """Round a ratio so that it holds the next time, too: 37 → "over 20", 0.43 → "about 0.4"."""
    for bound in (100, 50, 20, 10, 5):
        if times > bound:
            return f"over {bound}"
    return f"about {times:.1g}"


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
