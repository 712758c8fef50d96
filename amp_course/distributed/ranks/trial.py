"""Try a function on two ranks from a notebook, and see what each of them does."""

from __future__ import annotations

from typing import Any

from amp_course.distributed.ranks.answers import RANKS
from amp_course.distributed.ranks.pool import warm_ranks
from amp_course.kit.markup import plain_text


def try_on_ranks(function: Any, *arguments: Any) -> None:
    """Call a function on two warm gloo ranks; print what each of them prints and returns, or why it
    failed.

    Example: try_on_ranks(dist.get_rank) prints "rank 0 → 0" and "rank 1 → 1"
    """
    for rank, report in enumerate(warm_ranks(RANKS).run(function, *arguments)):
        for line in report.printed.splitlines():
            print(f"rank {rank}: {line}")
        if report.failure is not None:
            print(f"rank {rank} ✗ {plain_text(report.failure.told)}")
        elif report.value is not None:
            print(f"rank {rank} → {report.value!r}")
        for leak in report.leaks:
            print(f"rank {rank}: {leak}")
