"""What the panel gathers: runs, windows, similarity."""

import math

import pytest
import torch

from amp_course.bits import BF16, FORMATS, FP4_E2M1, FP8_E4M3, FP16, FP32
from amp_course.positions import (
    exact_angles,
    position_values,
    runs,
    share,
)
from amp_course.positions.sharing import WINDOW, Run


def test_runs_group_neighbours():
    assert runs(torch.tensor([255.0, 256.0, 256.0, 258.0]), 7) == [
        Run(7, 1, 255.0),
        Run(8, 2, 256.0),
        Run(10, 1, 258.0),
    ]
    assert runs(torch.tensor([math.inf, math.inf])) == [Run(0, 2, math.inf)]


def test_a_window_shows_the_last_tokens():
    shown = share(BF16, 512)
    assert (shown.distinct, shown.first_collision, shown.most_sharing) == (385, 257, 3)
    assert shown.start == 512 - WINDOW and sum(run.count for run in shown.runs) == WINDOW
    assert len(shown.runs) == torch.arange(464, 512).bfloat16().unique().numel()
    for rows in (shown.right, shown.rounded):
        assert len(rows) == WINDOW and all(len(row) == WINDOW for row in rows)
    assert shown.largest_error > 0.1


def test_exact_ids_make_equal_maps_and_short_contexts_are_whole():
    assert share(FP32, 1_000_000).largest_error == 0
    short = share(BF16, 5)
    assert short.start == 0 and len(short.right) == 5 and short.largest_error == 0
    assert share(BF16, 1).distinct == 1


def test_past_the_range_there_is_no_map():
    assert math.isnan(share(FP16, 70_000).largest_error)
    assert share(FP16, 70_000).runs == (Run(70_000 - WINDOW, WINDOW, math.inf),)
    assert share(FP8_E4M3, 600).runs == (Run(600 - WINDOW, WINDOW, 448.0),)
    assert share(FP4_E2M1, 100).runs == (Run(100 - WINDOW, WINDOW, 6.0),)


@pytest.mark.parametrize("n", [17, 512, 65_540])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_ids_and_maps_are_those_of_torchs_tensors(fmt, n):
    shown = share(fmt, n, 500.0, 16)
    positions = torch.arange(shown.start, n, dtype=torch.float64)
    ids = position_values(n, fmt, shown.start)
    assert [run.value for run in shown.runs for _ in range(run.count)] == ids.tolist()
    for rows, values in ((shown.right, positions), (shown.rounded, ids)):
        angles = exact_angles(values, 16, 500.0)
        alike = (angles[:, None] - angles).cos().mean(dim=2)
        torch.testing.assert_close(
            torch.tensor(rows, dtype=torch.float64), alike, rtol=0, atol=1e-8, equal_nan=True
        )
    assert list(shown.runs) == runs(ids, shown.start)


def test_bad_input_is_told():
    with pytest.raises(ValueError, match="at least 1"):
        share(BF16, 0)
    with pytest.raises(TypeError, match="has to be an int"):
        share(BF16, 8.0)
    with pytest.raises(ValueError, match="even head size"):
        share(BF16, 512, head_size=63)
