"""What is compared between the ranks of a training, and what makes their weights drift apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amp_course.doctor.ranks import check_ranks
from amp_course.watching import taps
from amp_course.watching.process import Ranks


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """What watches the ranks, in a group of one."""
    ranks = Ranks(lambda: 0)
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    with taps.listening(ranks):
        yield ranks
    torch.distributed.destroy_process_group()


def test_a_wrapper_that_is_not_called_and_one_whose_model_has_moved(ranks: Ranks) -> None:
    model = nn.Linear(2, 2)
    wrapped = nn.parallel.DistributedDataParallel(model)
    weights = [*model.parameters()]
    assert ranks.not_called(weights) and not ranks.not_called([*nn.Linear(2, 2).parameters()])
    with taps.listening({"module_begins": lambda module, *_: ranks.forward(module)}):
        wrapped.forward(torch.ones(1, 2)).sum().backward()  # as good as calling it
    assert not ranks.not_called(weights) and ranks.inner is None
    ranks.forward(model)
    assert ranks.inner is not None and "ranks.forward(model)" in str(ranks.inner)
    assert not ranks.moved()
    wrapped.double().float()
    assert ranks.moved() and "DistributedDataParallel(model)" in str(ranks.made)


# For each update, the sums of each weight and of its gradient
Sums = list[list[tuple[float, float]]]


def drift(*ranks: Sums, wrapped: bool = False, drift: dict[str, str] | None = None) -> list[str]:
    """The causes and places of what is found on ranks with these sums."""
    same = {"joined": [], "ended": "steps", "scales": [], "wrapped": wrapped, "drift": drift or {}}
    same["lines"] = {"clip": "line 7", "step": "line 8"}
    results: list[dict[str, Any]] = []
    for rank, sums in enumerate(ranks):
        digests = [str(sum(value for value, _ in one)) for one in sums]
        own = {"rank": str(rank), "updates": len(sums), "weights": sums, "digests": digests}
        results.append(same | own)
    return [f"{one.name} at {one.place}: {one.cause}" for one in check_ranks(results)]


def test_a_weight_that_was_the_same_with_the_same_gradient_has_to_stay_the_same() -> None:
    first: Sums = [[(1.0, 0.5), (3.0, 0.1)], [(0.9, 0.4), (2.0, 0.1)]]
    same: Sums = [[(1.0, 0.5), (5.0, 0.7)], [(0.9, 0.4), (4.0, 0.7)]]  # the second is a shard
    assert not drift(first, same)
    (found,) = drift(first, [[(1.0, 0.5), (5.0, 0.7)], [(0.8, 0.4), (4.0, 0.7)]])
    assert found.startswith("ranks-drift at line 7")
    assert not drift(first, [[(1.0, 0.6), (5.0, 0.7)], [(0.8, 0.4), (4.0, 0.7)]])  # other gradients
    still: Sums = [[(1.0, 0.0)], [(0.9, 0.0)]]
    assert not drift(still, [[(1.0, 0.0)], [(0.8, 0.0)]])


@pytest.mark.parametrize(
    ("variant", "words"), [("wrapper", "past its"), ("moved", "moved or cast")]
)
def test_drifting_wrapped_models_are_reported_with_the_cause(variant: str, words: str) -> None:
    sums: tuple[Sums, Sums] = [[(1.0, 0.1)]], [[(2.0, 0.1)]]
    (found,) = drift(*sums, wrapped=True, drift={"variant": variant, "place": "line 3"})
    assert found.startswith("ranks-drift at line 3") and words in found
    assert not drift(sums[0], sums[0], wrapped=True)


def scales(*ranks: list[float], digests: tuple[list[str], list[str]]) -> list[tuple[str, Any]]:
    """What is found on ranks with these scales, before and after each update, and these sums."""
    same = {"joined": [], "ended": "steps", "wrapped": True, "drift": {}, "weights": []}
    results: list[dict[str, Any]] = [
        same | {"rank": str(rank), "scales": [[one] for one in own], "digests": digests[rank]}
        for rank, own in enumerate(ranks)
    ]
    return [(one.name, one.evidence["update"]) for one in check_ranks(results)]


def test_scales_that_differ_are_no_cause_of_weights_that_differed_before() -> None:
    first, second = [8.0, 8.0, 8.0, 8.0, 8.0, 4.0], [8.0] * 6  # three updates
    drifted = (["1", "2", "3"], ["1", "5", "6"])
    assert scales(first, second, digests=drifted) == [("ranks-drift", 2)]
    late = (["1", "2", "3"], ["1", "2", "6"])
    both = [("ranks-with-different-scales", 3), ("ranks-drift", 3)]
    assert scales(first, second, digests=late) == both
