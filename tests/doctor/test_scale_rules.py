"""The rules on loss scales, skipped steps and clipping, on a few records made by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amp_course.diagnosis.rules import updates
from amp_course.diagnosis.rules.scales import changed_while_scaled, check_summaries
from amp_course.watching.records import Backward, Call, Update
from amp_course.watching.script import Clip, StepNorms, Summary


def clipped(norm: float, arrived: float) -> list[str]:
    """Names for three updates at a scale of 1024: gradients of norm `arrived` came, and had `norm`
    when they were clipped.
    """
    ours = frozenset({0})
    use = StepNorms(0, 0.01, arrived, 1024.0, by_scaler=False, unscaled=False)
    clip = Clip(0, ours, 0.01, norm, ours)
    one = Summary(1, (1.0,), (1024.0,), (1024.0,), frozenset(), ours, (use,), (clip,), 0)
    return [found.name for found in check_summaries([one] * 3)]


def test_gradients_that_were_divided_by_hand_are_not_clipped_while_scaled() -> None:
    assert clipped(norm=2048.0, arrived=2048.0) == ["clipped-while-scaled"]
    assert clipped(norm=1000.0, arrived=2048.0) == ["clipped-while-scaled"]  # half of the weights
    assert clipped(norm=2.0, arrived=2048.0) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"unscaled": True}, False),
        ({"at_call": 2.0, "norm": 0.01}, False),  # the optimizer's own step clips
        ({"scale": None}, False),
        ({"by_scaler": False}, False),
    ],
)
def test_scaled_gradients_that_the_script_changes_itself(
    changes: dict[str, object], expected: bool
) -> None:
    use = StepNorms(0, 0.01, 2048.0, 1024.0, by_scaler=True, unscaled=False, at_call=0.01)
    ours, scales = frozenset({0}), (1024.0,)
    one = Summary(1, (1.0,), scales, scales, ours, ours, (replace(use, **changes),), (), 0)
    assert changed_while_scaled([one] * 3) == expected
    clip = Clip(0, ours, 1.0, 2048.0, ours)
    assert not changed_while_scaled([replace(one, clips=(clip,))] * 3)


def test_a_clip_counts_only_where_the_step_is_not_skipped() -> None:
    ours = frozenset({0})
    found = check_summaries(
        [
            Summary(1, (1.0,), (scale,), (scale,), ours, ours, (), (clip,), 0)
            for scale, norm in [(2.0**30, math.inf)] * 9 + [(2.0**21, 1e6), (2.0**20, 5e5)]
            for clip in [Clip(0, ours, 1.0, norm, ours)]
        ]
    )
    assert [one.name for one in found] == ["clipped-while-scaled"]


@pytest.mark.parametrize(("count", "falls"), [(9, False), (18, True)])
def test_a_scale_that_may_still_be_found_is_not_called_falling(count: int, falls: bool) -> None:
    ours, scales = frozenset({0}), [(65536.0 / 2**n,) for n in range(count + 1)]
    found = check_summaries(
        [
            Summary(1, (1.0,), before, after, ours, frozenset(), (), (), 0)
            for before, after in itertools.pairwise(scales)
        ]
    )
    assert [one.name for one in found] == ["scale-keeps-falling"] * falls


@pytest.mark.parametrize(
    ("before", "kept"), [([False, True], False), ([True, True], False), ([False, False], True)]
)
def test_gradients_are_kept_if_nothing_clears_them_before_the_step(
    before: list[bool], kept: bool
) -> None:
    """In a GAN, one network's gradients may be cleared after the backward pass of the other, which
    reaches it, too.
    """
    gradient = cast(Any, SimpleNamespace(finite=False))
    passes = [
        Backward(0, before=[cast(Any, SimpleNamespace(finite=one))], arrived={0: gradient})
        for one in before
    ]
    other = Backward(0, before=[cast(Any, SimpleNamespace(finite=False))])  # reaches it not at all
    skipped = Update([1.0], [Call(0, "scaler.step", 0)])
    last = Update([1.0], [other, *passes, Call(0, "scaler.step", 0)], corrupted=[False])
    names = [one.name for one in updates._skipped([skipped, last], 0)]
    assert names == ["kept-after-skip"] * kept
