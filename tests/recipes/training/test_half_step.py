"""The record of a half step, compared with the same step written out,
and with torch's own SGD.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from amp_course.recipes.exercises import where_it_dies
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


def test_gradients_stand_in_the_order_of_backward_and_the_model_stays_as_it_was(
    model: nn.Module,
) -> None:
    before = copy.deepcopy(model.state_dict())
    step = record_half_step(model, torch.randn(6, 4), torch.randn(6, 3), mse_loss, 0.1)
    names = list(step.gradients)
    assert {name.rsplit(".", 1)[0] for name in names[:2]} == {"1.1"} and set(names) == set(before)
    assert list(step.exact_gradients) == names
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(
    ("inputs", "factor", "lr", "failure"),
    [
        (1.0, 1.0, 0.1, None),
        (1e6, 1.0, 0.1, ("activation", "0")),
        (1.0, 1e6, 0.1, ("loss", "loss")),
        (1.0, 1e-9, 0.1, ("gradient", "1.1")),
        (1.0, 1.0, 1e-6, ("update", "1.1")),
    ],
)
def test_a_real_step_dies_where_the_exercise_says(
    model: nn.Module, inputs: float, factor: float, lr: float, failure: tuple[str, str] | None
) -> None:
    x, y = torch.randn(6, 4) * inputs, torch.randn(6, 3)
    found = where_it_dies.judge.right(
        record_half_step(model, x, y, lambda a, b: mse_loss(a, b) * factor, lr)
    )
    assert found == failure or (
        found and failure and found[0] == failure[0] and found[1].startswith(failure[1])
    )
