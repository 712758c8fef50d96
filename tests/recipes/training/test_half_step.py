"""The record of a half step: held against the same step written out, and against torch's own SGD."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from amp_course.checking.values import fresh
from amp_course.recipes.judges.dying import _CASES, KINDS, _draw, first_death, idle_share, lost_share
from amp_course.recipes.training import record_half_step


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))


def test_it_records_what_a_half_model_computes(model: nn.Module) -> None:
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    step = record_half_step(model, x, y, cross_entropy, 0.1)
    half = copy.deepcopy(model).half()
    loss = cross_entropy(half(x.half()), y)
    loss.backward()
    assert torch.equal(step.loss, loss.detach()) and step.loss.dtype == torch.float16
    for name, parameter in half.named_parameters():
        assert torch.equal(step.gradients[name], parameter.grad)
        assert torch.equal(step.weights[name], parameter.detach())
    assert list(step.outputs) == ["0", "1.0", "1.1"]
    assert torch.equal(step.outputs["0"], half[0](x.half()).detach())


def test_exact_gradients_are_those_of_the_rounded_weights(model: nn.Module) -> None:
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    step = record_half_step(model, x, y, mse_loss, 0.1)
    rounded = copy.deepcopy(model).half().float()
    mse_loss(rounded(x.half().float()), y.half().float()).backward()
    for name, parameter in rounded.named_parameters():
        assert torch.equal(step.exact_gradients[name], parameter.grad)
        assert torch.allclose(step.gradients[name].float(), parameter.grad, rtol=0.02, atol=2e-3)


def test_gradients_stand_in_the_order_of_backward_and_the_model_stays_as_it_was(model: nn.Module) -> None:
    before = copy.deepcopy(model.state_dict())
    step = record_half_step(model, torch.randn(6, 4), torch.randn(6, 3), mse_loss, 0.1)
    names = list(step.gradients)
    assert {name.rsplit(".", 1)[0] for name in names[:2]} == {"1.1"} and set(names) == set(before)
    assert list(step.exact_gradients) == names
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("wanted", dict.fromkeys(_CASES))
def test_drawn_steps_die_as_they_are_to(wanted: str) -> None:
    generator = fresh()
    for _ in range(3):
        step, truth = _draw(wanted, generator)
        kind = wanted.split()[0]
        assert (truth[0] if truth else None) == (kind if kind in KINDS else None)
        assert truth == first_death(step)


def test_idle_weights_are_those_that_torch_s_sgd_leaves() -> None:
    step, truth = _draw("update", fresh())
    assert truth is not None
    for name, gradient in step.gradients.items():
        weight = nn.Parameter(step.weights[name].clone())
        weight.grad = gradient.clone()
        torch.optim.SGD([weight], lr=step.lr).step()
        moved = (weight.detach() != step.weights[name])[gradient != 0].float().mean().item()
        assert idle_share(step, name) == pytest.approx(1 - moved, abs=0.02)


def test_lost_gradients_are_counted_among_those_that_are_there() -> None:
    step, truth = _draw("dead units", fresh())
    assert truth is None
    zeros = (step.gradients["0.weight"] == 0).float().mean().item()
    assert zeros > 0.7 and lost_share(step, "0.weight") < 0.4
