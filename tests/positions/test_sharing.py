"""What the panel gathers: runs, windows, similarity."""

import math

import pytest
import torch

from amp_course.bits import BF16, FP4_E2M1, FP8_E4M3, FP16, FP32
from amp_course.positions import distinct_positions, runs, share
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
    assert shown.right.shape == shown.rounded.shape == (WINDOW, WINDOW)
    assert shown.largest_error > 0.1


def test_exact_ids_make_equal_maps_and_short_contexts_are_whole():
    assert share(FP32, 1_000_000).largest_error == 0
    short = share(BF16, 5)
    assert short.start == 0 and short.right.shape == (5, 5) and short.largest_error == 0
    assert share(BF16, 1).distinct == 1


def test_past_the_range_there_is_no_map():
    assert math.isnan(share(FP16, 70_000).largest_error)
    assert share(FP16, 70_000).runs == (Run(70_000 - WINDOW, WINDOW, math.inf),)
    assert share(FP8_E4M3, 600).runs == (Run(600 - WINDOW, WINDOW, 448.0),)
    assert share(FP4_E2M1, 100).runs == (Run(100 - WINDOW, WINDOW, 6.0),)


def test_a_context_far_too_long_for_a_tensor():
    shown = share(BF16, 2**40)
    assert shown.distinct == distinct_positions(2**40, BF16) and len(shown.runs) == 1


def test_bad_input_is_told():
    with pytest.raises(ValueError, match="at least 1"):
        share(BF16, 0)
    with pytest.raises(TypeError, match="has to be an int"):
        share(BF16, 8.0)
    with pytest.raises(ValueError, match="even head size"):
        share(BF16, 512, head_size=63)
