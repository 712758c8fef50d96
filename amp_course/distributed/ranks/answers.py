"""Play an exercise's answer on warm ranks, and bring what went wrong there into the words of a check."""

from __future__ import annotations

from typing import Any

from amp_course.checking import Explained, Failed, Wrong
from amp_course.distributed.ranks.pool import warm_ranks
from amp_course.distributed.ranks.report import Report

RANKS = 2


def run_on_ranks(work: Any, *arguments: Any) -> list[Report]:
    """Call `work(*arguments)` on two ranks; return their reports, each with a result.

    What the work prints is printed here, rank by rank. Raises Failed if it fails on a rank, Wrong if what it returns there is no
    answer, or if it leaves something changed.
    """
    reports = warm_ranks(RANKS).run(work, *arguments)
    for rank, report in enumerate(reports):
        for line in report.printed.splitlines():
            print(f"rank {rank}: {line}")
    failures = {rank: report.failure for rank, report in enumerate(reports) if report.failure}
    if failures:
        # A rank that failed before others waited for it in vain comes first: it is the cause.
        first = min(failures, key=lambda rank: (failures[rank].kind == "stopped", rank))
        failure = failures[first]
        alike = [rank for rank, other in failures.items() if other.signature == failure.signature]
        place = f"on rank {first}" if len(alike) < len(reports) else "on both ranks"
        if failure.kind == "refused":
            raise Wrong(failure.told if len(alike) == len(reports) else f"{place}, {failure.told}")
        told, case = failure.told, f"{failure.case}, {place}" if failure.case else place
        raise Failed(case) from Explained(told, f"{place}: {failure.signature}")
    leaks = list(dict.fromkeys(leak for report in reports for leak in report.leaks))
    if leaks:
        raise Wrong("; ".join(leaks))
    return reports
