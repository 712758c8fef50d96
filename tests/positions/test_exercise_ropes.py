"""The RoPEs that exercise 5 runs a test against are as right, and as broken, as it says."""

import pytest
import torch

from amp_course.positions.exercises.catch_fault import RIGHT, ROPES, make_rope


@pytest.mark.parametrize("base", [10_000.0, 100_000.0, 500_000.0])
@pytest.mark.parametrize("kind", ROPES)
def test_right_ropes_keep_scores_flat_and_broken_ones_do_not(kind, base):
    q, k = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    starts, rope = torch.arange(0, 5000, 11), make_rope(kind, base)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = rope(q.expand(len(starts), -1), starts + 3), rope(k.expand(len(starts), -1), starts)
    assert a.dtype == torch.bfloat16
    scores = (a.float() * b.float()).sum(-1) / (q.float().norm() * k.float().norm())
    spread = scores.max() - scores.min()
    assert spread < 0.02 if kind in RIGHT else spread > 0.06
