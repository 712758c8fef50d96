"""The headroom map: every reading has its cell, heat comes before cold, and the alt text says where
each began.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from amp_course.debugging.figures import LEVELS, headroom_figure, level_of
from amp_course.debugging.ranges import RangeWatch, Reading, watch_ranges
from amp_course.kit.style import png


def reading(headroom: float = 9.0, lost: float = 0.0) -> Reading:
    return Reading(1, "m", "activation", "fp32", 1.0, 1.0, 0.0, lost, headroom)


@pytest.mark.parametrize(
    ("headroom", "lost", "name"),
    [
        (math.nan, 0.0, "overflows, inf or NaN"),
        (-0.1, 0.9, "overflows, inf or NaN"),
        (0.0, 0.0, "2 doublings left"),
        (2.0, 0.9, "2 doublings left"),
        (3.0, 0.0, "4 doublings left"),
        (9.0, 0.0, "fine"),
        (9.0, 0.2, "more than a tenth lost"),
        (9.0, 0.6, "more than half lost"),
    ],
)
def test_level_of_a_reading(headroom: float, lost: float, name: str) -> None:
    assert LEVELS[level_of(reading(headroom, lost))].name == name


@pytest.fixture(scope="module")
def ranges() -> RangeWatch:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with watch_ranges(model, every=1, say=lambda text: None) as found:
        for step in range(12):
            (model(torch.full((3, 4), 4.0**step)).sum() * 1e-9).backward()
    return found


def test_every_module_and_pass_has_its_cell(ranges: RangeWatch) -> None:
    figure = headroom_figure(ranges)
    for axis, kind in zip(figure.axes, ("activation", "activation gradient"), strict=True):
        grid = axis.images[0].get_array()
        found = ranges.of(kind)  # type: ignore[arg-type]
        assert grid.shape == (3, 12)
        for row, readings in enumerate(found.values()):
            assert [*grid[row]] == [level_of(one) for one in readings]
        assert [label.get_text() for label in axis.get_yticklabels()] == [*found]
    assert png(figure)


def test_the_alt_text_says_where_it_began(ranges: RangeWatch) -> None:
    alt = headroom_figure(ranges).alt  # type: ignore[attr-defined]
    hot = next(one for one in ranges.of("activation")["0"] if level_of(one) == 5)
    assert f"overflows, inf or NaN first in pass {hot.number}, 0" in alt
    assert "activation gradient: more than half lost first in pass 1" in alt


def test_a_watch_without_readings_is_refused() -> None:
    with pytest.raises(ValueError, match="no activation and no activation gradient was measured"):
        headroom_figure(watch_ranges(nn.Linear(1, 1)))
