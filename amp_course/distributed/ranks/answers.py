"""Play an exercise's answer on warm ranks, and bring what went wrong there into the words of a
check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from amp_course.checking import Case, Explained, Failed, Wrong, call_answer
from amp_course.distributed.ranks.collective import (
    ENDED_GROUP,
    Collective,
    CollectiveWatch,
    Stopped,
)
from amp_course.distributed.ranks.pool import warm_ranks
from amp_course.distributed.ranks.report import Report

RANKS = 2
_SECOND = {"stopped": 1, "returned": 2}


def run_on_ranks(work: Any, *arguments: Any) -> list[Report]:
    """Call `work(*arguments)` on two ranks; return their reports, each with a result.

    What the work prints is printed here, rank by rank. Raises Failed if it fails on a rank, Wrong
    if what it returns there is no answer, or if it leaves something changed.
    """
    reports = warm_ranks(RANKS).run(work, *arguments)
    for rank, report in enumerate(reports):
        for line in report.printed.splitlines():
            print(f"rank {rank}: {line}")
    failures = {rank: report.failure for rank, report in enumerate(reports) if report.failure}
    if failures:
        # A rank that failed comes before those that waited for it in vain: it is the cause.
        first = min(failures, key=lambda rank: (_SECOND.get(failures[rank].kind, 0), rank))
        failure = failures[first]
        same = (failure.kind, failure.signature)
        alike = [rank for rank, other in failures.items() if (other.kind, other.signature) == same]
        place = f"on rank {first}" if len(alike) < len(reports) else "on both ranks"
        if failure.kind == "refused":
            raise Wrong(failure.told if len(alike) == len(reports) else f"{place}, {failure.told}")
        told, case = failure.told, f"{place}, {failure.case}" if failure.case else place
        raise Failed(case) from Explained(told, f"{place}: {failure.signature}")
    leaks = list(dict.fromkeys(leak for report in reports for leak in report.leaks))
    if leaks:
        raise Wrong("; ".join(leaks))
    return reports


def cases_on_ranks(work: Any, *arguments: Any) -> Iterator[Case]:
    """Yield the turns of an answer: `work(*arguments)` returns those of its rank, the same cases on
    each.

    Raises as `run_on_ranks`.
    """
    reports = run_on_ranks(work, *arguments)
    for turns in zip(*(report.value for report in reports), strict=True):
        for rank, turn in enumerate(turns):
            yield replace(turn, name=f"on rank {rank}, {turn.name}", elsewhere=True)


def call_on_rank(answer: Any, case: str, *arguments: Any, **named: Any) -> Any:
    """Return `answer(*arguments, **named)` once it has returned on all ranks: for the work that
    runs on each of them.

    So no collective of one case meets one of the next. Raises as `call_answer`; a rank that waits
    in vain is told in which case.
    """
    watch = CollectiveWatch.current
    assert watch is not None, "this runs on a rank"
    world = dist.group.WORLD
    try:
        got = call_answer(answer, case, *arguments, **named)
        if dist.group.WORLD is not world:
            raise Wrong(ENDED_GROUP)
        watch.ask(Collective("returned", tuple(range(dist.get_world_size()))))
    except Stopped as stopped:
        stopped.case = case
        raise
    return got


def collectives_so_far() -> list[Collective]:
    """Return the collectives that have run on this rank since its work began."""
    assert CollectiveWatch.current is not None, "this runs on a rank"
    return [*CollectiveWatch.current.called]


@contextlib.contextmanager
def each_question(before: Callable[[], None]) -> Iterator[None]:
    """Call `before` each time that this rank is about to ask for a collective, or to return."""
    watch = CollectiveWatch.current
    assert watch is not None, "this runs on a rank"
    ask = watch.ask

    def told(collective: Collective) -> None:
        before()
        ask(collective)

    watch.ask = told
    try:
        yield
    finally:
        watch.ask = ask
