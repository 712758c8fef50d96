"""Run a reader's function, or an exercise's answer, on warm ranks, and bring what went wrong there
into words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch.distributed as dist

from amp_course.checking import Case, Explained, Failed, Wrong, call_answer
from amp_course.distributed.ranks.collective import (
    ENDED_GROUP,
    RETURNED,
    Collective,
    CollectiveWatch,
    Stopped,
)
from amp_course.distributed.ranks.pool import warm_ranks
from amp_course.distributed.ranks.report import Failure, Report
from amp_course.kit.errors import CourseError
from amp_course.kit.markup import plain_text

_SECOND = {"stopped": 1, "returned": 2}


def try_on_ranks(function: Any, *arguments: Any) -> None:
    """Call a function on two warm gloo ranks; print what each of them prints and returns, or why it
    failed.

    Example: try_on_ranks(dist.get_rank) prints "rank 0 → 0" and "rank 1 → 1"
    """
    for rank, report in enumerate(warm_ranks().run(function, *arguments)):
        _print_lines(rank, report)
        if report.failure is not None:
            print(f"rank {rank} ✗ {plain_text(report.failure.told)}")
        elif report.value is not None:
            print(f"rank {rank} → {report.value!r}")
        for leak in report.leaks:
            print(f"rank {rank}: {leak}")


def values_on_ranks(work: Any, *arguments: Any) -> list[Any]:
    """Return what `work(*arguments)` returns on each of two ranks, within a minute. Raises
    CourseError if it fails on one.
    """
    reports = warm_ranks().run(work, *arguments, seconds=60.0)
    for rank, report in enumerate(reports):
        if report.failure is not None:
            raise CourseError(f"the training on rank {rank} failed: {report.failure.told}")
    return [report.value for report in reports]


def cases_on_ranks(work: Any, *arguments: Any) -> Iterator[Case]:
    """Yield the turns of an answer: `work(*arguments)` returns those of its rank, the same cases on
    each.

    What the work prints is printed here, rank by rank. Raises Failed if it fails on a rank, Wrong
    if what it returns there is no answer, or if it leaves something changed.
    """
    reports = warm_ranks().run(work, *arguments)
    for rank, report in enumerate(reports):
        _print_lines(rank, report)
    failures = {rank: report.failure for rank, report in enumerate(reports) if report.failure}
    if failures:
        _raise_first(failures)
    leaks = list(dict.fromkeys(leak for report in reports for leak in report.leaks))
    if leaks:
        raise Wrong("; ".join(leaks))
    for turns in zip(*(report.value for report in reports), strict=True):
        for rank, turn in enumerate(turns):
            yield replace(turn, name=f"on rank {rank}, {turn.name}", elsewhere=True)


def _raise_first(failures: dict[int, Failure]) -> NoReturn:
    """Raise the failure that is the cause: a rank that failed comes before one that waited for it
    in vain.
    """
    first = min(failures, key=lambda rank: (_SECOND.get(failures[rank].kind, 0), rank))
    failure = failures[first]
    other = failures.get(1 - first)
    same = (failure.kind, failure.signature)
    both = other is not None and (other.kind, other.signature) == same
    place = "on both ranks" if both else f"on rank {first}"
    if failure.kind == "refused":
        raise Wrong(failure.told if both else f"{place}, {failure.told}")
    case = f"{place}, {failure.case}" if failure.case else place
    raise Failed(case) from Explained(failure.told, f"{place}: {failure.signature}")


def _print_lines(rank: int, report: Report) -> None:
    for line in report.printed.splitlines():
        print(f"rank {rank}: {line}")


def call_on_rank(answer: Any, case: str, *arguments: Any, **named: Any) -> Any:
    """Return `answer(*arguments, **named)` once it has returned on all ranks: for the work that
    runs on each of them.

    So no collective of one case meets one of the next. Raises as `call_answer`; a rank that waits
    in vain is told in which case.
    """
    world = dist.group.WORLD
    try:
        got = call_answer(answer, case, *arguments, **named)
        if dist.group.WORLD is not world:
            raise Wrong(ENDED_GROUP)
        _watch().ask(Collective(RETURNED, tuple(range(dist.get_world_size()))))
    except Stopped as stopped:
        stopped.case = case
        raise
    return got


def collectives_so_far() -> list[Collective]:
    """Return the collectives that have run on this rank since its work began."""
    return [*_watch().called]


@contextlib.contextmanager
def each_question(before: Callable[[], None]) -> Iterator[None]:
    """Call `before` each time that this rank is about to ask for a collective, or to return."""
    watch = _watch()
    ask = watch.ask

    def told(collective: Collective) -> None:
        before()
        ask(collective)

    watch.ask = told
    try:
        yield
    finally:
        watch.ask = ask


def _watch() -> CollectiveWatch:
    assert CollectiveWatch.current is not None, "this runs on a rank"
    return CollectiveWatch.current
