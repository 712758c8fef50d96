"""Threads that wait for each other: more of them than cores."""

from __future__ import annotations

from collections.abc import Callable

import torch

from amp_course.kit.hardware import usable_cores
from amp_course.kit.markup import counted
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentences
from amp_course.speed.experiments.workbench import three_layers

_CROWDED = (
    "other programs use these cores too, or you have fewer of them than the system shows (a "
    "container's limit): one thread that waits for a core holds up the whole op"
)


def too_many_threads(*, seconds: float = 2.0) -> Finding:
    """Train three linear layers on the CPU with one thread, with one for each core, and with many;
    then restore their number.
    """
    cores = usable_cores()
    many = cores * (4 if cores <= 8 else 2)
    sides = {
        counted(count, "thread"): _on_threads(three_layers(512, 128, torch.device("cpu")), count)
        for count in dict.fromkeys((1, cores, many))
    }
    before = torch.get_num_threads()
    try:
        crowded = [side for side in sides if side != "1 thread"]
        found = compare(sides, seconds=seconds, single=False, crowded=crowded)
    finally:
        torch.set_num_threads(before)
    return Finding("Too many threads", found, describe_threads(found, cores, many), ("threads",))


def describe_threads(found: Comparison, cores: int, many: int) -> str:
    """Say what threads gain, and what more of them than cores cost."""
    clauses = [f"this process may use {'one core' if cores == 1 else f'{cores} cores'}"]
    for threads in dict.fromkeys((cores, many)):
        if threads > 1:
            name = f"{threads} threads"
            clauses.append(found.describe(name, "1 thread", than="one", plural=True))
            if threads == cores and found.ratio(name, "1 thread").verdict == "slower":
                clauses.append(_CROWDED)
    return sentences(
        *clauses,
        "the fix is `torch.set_num_threads`, or OMP_NUM_THREADS in the environment: never more "
        "than the cores you have",
    )


def _on_threads(step: Callable[[], object], threads: int) -> Callable[[], object]:
    def side() -> object:
        if torch.get_num_threads() != threads:  # only at the start of a block
            torch.set_num_threads(threads)
        return step()

    return side
