"""MasterSGD against torch.optim.SGD on float32 weights."""

import copy

import pytest
import torch
from torch import nn

from amp_course.underflow import MasterSGD


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_the_rounded_weights_of_sgd_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(50, generator=generator).to(dtype)
    weight, wide = nn.Parameter(first.clone()), nn.Parameter(first.float())
    ours, reference = MasterSGD([weight], lr=1e-4), torch.optim.SGD([wide], lr=1e-4)
    for _ in range(200):
        gradient = torch.randn(50, generator=generator).to(dtype)
        weight.grad, wide.grad = gradient, gradient.float()
        ours.step()
        reference.step()
        assert weight.dtype == dtype
    assert torch.equal(ours.master(weight), wide.detach())
    assert torch.equal(weight.detach(), wide.detach().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_hundred_small_updates_arrive(dtype):
    alone, weight = (nn.Parameter(torch.ones((), dtype=dtype)) for _ in range(2))
    sgd, ours = torch.optim.SGD([alone], lr=1e-4), MasterSGD([weight], lr=1e-4)
    alone.grad, weight.grad = (-torch.ones((), dtype=dtype) for _ in range(2))
    for _ in range(100):
        sgd.step()
        ours.step()
    assert alone.item() == 1.0
    assert ours.master(weight).item() == pytest.approx(1.01, abs=1e-5)
    assert weight.item() == torch.tensor(1.01).to(dtype).item()


def test_a_saved_master_is_not_rounded_on_loading():
    weight = nn.Parameter(torch.ones(3).half())
    ours = MasterSGD([weight], lr=1e-4)
    weight.grad = -torch.ones(3).half()
    for _ in range(3):
        ours.step()
    saved = copy.deepcopy(ours.state_dict())
    again = MasterSGD([weight2 := nn.Parameter(weight.detach().clone())], lr=1.0)
    again.load_state_dict(saved)
    assert again.master(weight2).dtype == torch.float32
    assert torch.equal(again.master(weight2), ours.master(weight))
    assert again.param_groups[0]["lr"] == 1e-4
    for _ in range(4):
        weight2.grad = weight.grad
        ours.step()
        again.step()
    assert torch.equal(again.master(weight2), ours.master(weight)) and torch.equal(weight, weight2)
    assert torch.equal(saved["state"][0]["master"], torch.full((3,), 1.0003))  # loading made copies


def test_parameters_without_gradient_and_a_closure():
    used, unused = nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(2).half())
    ours = MasterSGD([used, unused], lr=0.5)

    def closure():
        ours.zero_grad()
        loss = used.sum()
        loss.backward()
        return loss

    assert ours.step(closure).item() == 2.0
    assert used.tolist() == [0.5, 0.5] and unused.tolist() == [1.0, 1.0]
    assert unused not in ours.state


def test_a_learning_rate_that_is_none_is_refused():
    for rate in (0.0, float("nan")):
        with pytest.raises(ValueError, match="has to be above 0"):
            MasterSGD([nn.Parameter(torch.ones(1))], lr=rate)
