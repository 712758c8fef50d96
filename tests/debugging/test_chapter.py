"""What chapter 11 says in prose about formats and derivatives."""

from __future__ import annotations

import pytest
import torch


def test_a_floor_of_1e_8_is_0_in_fp16_whether_added_or_clamped_to_and_bf16_holds_it() -> None:
    for dtype, held in ((torch.float16, False), (torch.bfloat16, True)):
        zero = torch.zeros((), dtype=dtype)
        assert bool(zero + 1e-8 > 0) == bool(zero.clamp_min(1e-8) > 0) == held


def test_torchs_norm_has_a_derivative_of_0_at_0_and_one_by_hand_has_not() -> None:
    own, by_hand = (torch.zeros(3, requires_grad=True) for _ in range(2))
    own.norm().backward()
    by_hand.square().sum().sqrt().backward()
    assert own.grad is not None and own.grad.tolist() == [0, 0, 0]
    assert by_hand.grad is not None and by_hand.grad.isnan().all()


@pytest.mark.parametrize("size", [1, 1024])
def test_dividing_the_queries_first_keeps_the_scores_in_fp16(size: int) -> None:
    queries, keys = torch.full((1, 1024), 100.0), torch.full((1, 1024), 100.0)  # sums of 10,240,000
    with torch.autocast("cpu", dtype=torch.float16):
        assert (queries / size @ keys.T).isfinite().item() == (size == 1024)
