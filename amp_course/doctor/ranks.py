"""Compare the ranks of a training: their step counts, their loss scales, their weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Findings
from amp_course.diagnosis.report import listed


def check_ranks(trained: Sequence[dict[str, Any]]) -> Findings:
    """Compare what `Examiner.result` returned in each process of one training."""
    if len(trained) < 2 or not all(one["rank"] for one in trained):
        return
    ranks = listed(f"rank {one['rank']}" for one in trained)
    ended = all(one["ended"] in ("end", "exit") for one in trained)
    counts = [[*one["joined"], *([one["updates"]] if ended else [])] for one in trained]
    for _, numbers in _different(counts):
        updates = f"{listed(map(str, numbers))} on {ranks}"
        yield finding("ranks-with-different-counts", updates=updates)
    wrapped = all(one["wrapped"] for one in trained)
    drifted = [*_different([one["digests"] for one in trained])] if wrapped else []
    for number, scales in _different([one["scales"] for one in trained]):
        update = (number + 1) // 2  # two for each: before and after it
        if drifted and drifted[0][0] < update:
            continue  # weights that differ overflow at different scales
        shown = f"{listed(f'{one[0]:g}' for one in scales if one)} on {ranks}"
        yield finding("ranks-with-different-scales", update=update, loss_scales=shown)
    for number, sums in drifted:
        evidence = {"sums_of_the_weights": f"{listed(sums)} on {ranks}", **trained[0]["drift"]}
        yield finding("ranks-drift", update=number, **evidence)
        return
    for number, weight, values in _drifting([one["weights"] for one in trained]):
        lines = trained[0]["lines"]
        cause = (
            "a weight and its gradient were the same on all ranks, and after the step the weight "
            "is not: what one rank does between the backward pass and the step, a clip for one, "
            "another does not"
        )
        yield finding(
            "ranks-drift",
            cause,
            update=number,
            variant="alone",
            weight=f"number {weight} in the optimizer",
            its_sums_afterwards=f"{listed(map(repr, values))} on {ranks}",
            place=lines.get("clip") or lines.get("step", ""),
        )


def _different(ranks: Sequence[Sequence[Any]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the first update, from 1, in which the ranks differ, and what each has."""
    for number, each in enumerate(zip(*ranks, strict=False), 1):
        if any(one != each[0] for one in each):
            yield number, each
            return


def _drifting(
    ranks: Sequence[Sequence[Sequence[tuple[float, float]]]],
) -> Iterator[tuple[int, int, list[float]]]:
    """Yield the first weight that differs between ranks after a step with the same gradient: the
    numbers of the update and of the weight, from 1, and the weight's sum on each rank.

    Where each rank holds a part of the model, gradients differ. Where each steps a part of it, all
    have the whole model again by the next backward pass.
    """
    for number, (now, following) in enumerate(itertools.pairwise(zip(*ranks, strict=False)), 1):
        weights = zip(zip(*now, strict=False), zip(*following, strict=False), strict=False)
        for place, (pairs, later) in enumerate(weights, 1):
            values = [value for value, _ in later]
            same = all(tuple(one) == tuple(pairs[0]) for one in pairs) and pairs[0][1]
            if same and len(set(values)) > 1 and all(map(math.isfinite, (*pairs[0], *values))):
                yield number, place, values
                return
