"""The judge of accumulation holds each step beside the weights it was taken at, whatever ran in the process before."""

import pytest
import torch

from amp_course.patterns.judges import accumulation
from tests.exercises.answers.patterns import one_right


@pytest.mark.parametrize("draw", range(10))
def test_steps_are_compared_at_their_own_weights(monkeypatch, draw):
    torch.optim.SGD(
        [torch.zeros(1, requires_grad=True)]
    )  # now a step hook runs twice for a subclass that calls `super().step`
    near = accumulation.near
    monkeypatch.setattr(accumulation, "near", lambda got, want: near(got, want, 0.004))  # fp16 stays within 0.002
    accumulation.judge_accumulate(one_right)
