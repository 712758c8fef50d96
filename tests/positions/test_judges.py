"""What judges compute themselves."""

import pytest
import torch

from amp_course.bits import BF16, FP8_E5M2, FP16, FloatFormat
from amp_course.positions import distinct_positions, first_collision
from amp_course.positions.judges.counting import Table, collision_by_rounding
from amp_course.positions.judges.testing import broken_ropes, right_ropes


@pytest.mark.parametrize("bits", [1, 2, 7, 10, 13])
def test_collision_by_rounding_is_the_formulas(bits):
    fmt = FloatFormat.of(8, bits)
    assert collision_by_rounding(fmt) == first_collision(fmt)


@pytest.mark.parametrize("fmt", [BF16, FP16, FP8_E5M2], ids=lambda fmt: fmt.name)
def test_the_table_of_counts_is_the_closed_forms(fmt):
    table = Table(fmt)
    for n in (1, 9, 257, 4096, 65_520, 65_521, 70_000):
        assert table.right[n - 1] == distinct_positions(n, fmt)


def test_right_ropes_keep_scores_flat_and_broken_ones_do_not():
    q, k = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    starts = torch.arange(0, 5000, 11)

    def spread(rope):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a, b = rope(q.expand(len(starts), -1), starts + 3), rope(k.expand(len(starts), -1), starts)
        assert a.dtype == torch.bfloat16
        scores = (a.float() * b.float()).sum(-1) / (q.float().norm() * k.float().norm())
        return (scores.max() - scores.min()).item()

    for base in (10_000.0, 100_000.0, 500_000.0):
        assert max(spread(rope) for rope in right_ropes(base).values()) < 0.02
        assert min(spread(rope) for rope in broken_ropes(base).values()) > 0.06
