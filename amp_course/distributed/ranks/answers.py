"""Run a learner's function, or an exercise's answer, on warm ranks, and report what went wrong
there.
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

_EFFECTS = {"stopped": 1, "returned": 2}  # kinds of failures with a cause on the other rank


def try_on_ranks(function: Any, *arguments: Any) -> None:
    """Call a function on two warm gloo ranks; print what it prints and returns on each, or why it
    failed.

    Example: try_on_ranks(dist.get_rank) prints "rank 0 → 0" and "rank 1 → 1"
    """
    for rank, report in enumerate(warm_ranks().run(function, *arguments)):
        _print_lines(rank, report)
        if report.failure is not None:
            print(f"rank {rank} ✗ {plain_text(report.failure.message)}")
        elif report.value is not None:
            print(f"rank {rank} → {report.value!r}")
        for leak in report.leaks:
            print(f"rank {rank}: {leak}")


def values_on_ranks(work: Any, *arguments: Any) -> list[Any]:
    """Return what `work(*arguments)` returns on each of two ranks. Raises CourseError if it fails
    on one, or takes more than a minute.
    """
    reports = warm_ranks().run(work, *arguments, seconds=60.0)
    for rank, report in enumerate(reports):
        if report.failure is not None:
            raise CourseError(f"the training on rank {rank} failed: {report.failure.message}")
    return [report.value for report in reports]


def cases_on_ranks(work: Any, *arguments: Any) -> Iterator[Case]:
    """Yield the cases of an answer: `work(*arguments)` returns a list of them, the same on each
    rank.

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
    for cases in zip(*(report.value for report in reports), strict=True):
        for rank, case in enumerate(cases):
            yield replace(case, name=f"on rank {rank}, {case.name}", elsewhere=True)


def _raise_first(failures: dict[int, Failure]) -> NoReturn:
    """Raise the failure that is the cause: a rank that failed, before one that waited for it."""
    first = min(failures, key=lambda rank: (_EFFECTS.get(failures[rank].kind, 0), rank))
    failure = failures[first]
    other = failures.get(1 - first)
    same = (failure.kind, failure.signature)
    both = other is not None and (other.kind, other.signature) == same
    place = "on both ranks" if both else f"on rank {first}"
    if failure.kind == "refused":
        raise Wrong(failure.message if both else f"{place}, {failure.message}")
    case = f"{place}, {failure.case}" if failure.case else place
    raise Failed(case) from Explained(failure.message, f"{case}: {failure.signature}")


def _print_lines(rank: int, report: Report) -> None:
    for line in report.printed.splitlines():
        print(f"rank {rank}: {line}")


def call_on_rank(answer: Any, case: str, *arguments: Any) -> Any:
    """On a rank, return `answer(*arguments)` once it has returned on all ranks.

    So no collective of one case meets one of the next. Raises as `call_answer` does; Stopped, with
    the case, on a rank that would wait forever.
    """
    world = dist.group.WORLD
    try:
        got = call_answer(answer, case, *arguments)
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
def before_each_collective(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` whenever this rank is about to ask for a collective, or to return."""
    watch = _watch()
    ask = watch.ask

    def call_and_ask(collective: Collective) -> None:
        callback()
        ask(collective)

    watch.ask = call_and_ask
    try:
        yield
    finally:
        watch.ask = ask


def _watch() -> CollectiveWatch:
    assert CollectiveWatch.current is not None, "this runs on a rank"
    return CollectiveWatch.current
