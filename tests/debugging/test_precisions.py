"""One step in fp64, fp32 and under autocast: which of them is not finite decides the verdict;
gradients agree with a cast.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.debugging.precisions import PRECISIONS, Outcome, compare_precisions


def linear(weight: float = 1.0) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(weight)
    return layer


Loss = Callable[[nn.Module, Tensor], Tensor]
# Name → weight, loss, how many of PRECISIONS stay finite, words of the verdict
FAULTS: dict[str, tuple[float, Loss, int, str]] = {
    "sound": (1.0, lambda model, x: model(x).square().mean(), 4, "All finite, and close"),
    "zero by zero": (
        1.0,
        lambda model, x: (model(x) * 0 / (x * 0)).sum(),
        0,
        "Not finite in fp64 either",
    ),
    "exp": (
        100.0,
        lambda model, x: model(x).to(model.weight.dtype).exp().sum(),
        1,
        "a value leaves the range of fp32",
    ),
    "fp16's range": (1e5, lambda model, x: model(x).float().log().sum(), 3, "not in fp16"),
    "few bits": (
        1.0001,
        lambda model, x: (model(x) - 1).log().sum(),
        2,
        "under autocast in bf16 and fp16",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_verdict_follows_from_which_are_finite(name: str) -> None:
    weight, loss, finite, words = FAULTS[name]
    found = compare_precisions(loss, linear(weight), (torch.ones(2, 1),))
    assert [one.precision for one in found.outcomes if one.finite] == [*PRECISIONS[:finite]]
    assert words in found.verdict and found.verdict in str(found) and words in found._repr_html_()


def test_errors_are_those_of_the_gradients() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 3), torch.randn(16, 8), torch.randint(3, (16,))
    found = compare_precisions(lambda model, x, y: F.cross_entropy(model(x), y), model, (x, y))

    def gradient(own: nn.Module, inputs: Tensor) -> Tensor:
        F.cross_entropy(own(inputs), y).backward()
        return torch.cat([weight.grad.double().flatten() for weight in own.parameters()])

    exact = gradient(copy.deepcopy(model).double(), x.double())
    single = gradient(copy.deepcopy(model), x)
    assert found["fp32"].error == pytest.approx(float((single - exact).norm() / exact.norm()))
    assert found["fp64"].error == 0.0
    assert found["fp32"].error < 1e-6 < found["amp_fp16"].error < found["amp_bf16"].error < 0.02


def test_dropout_is_the_same_in_each_precision_and_all_is_left_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Dropout(0.5))
    x = torch.randn(8, 64)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = compare_precisions(lambda model, x: model(x).square().mean(), model, x)
    assert found["amp_bf16"].error < 0.05
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_small_loss_is_scaled_in_fp16() -> None:
    def in_fp16(factor: float) -> Outcome:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).float().square().mean() * factor

        return compare_precisions(loss, linear(), torch.ones(2, 1))["amp_fp16"]

    small, smaller, large = map(in_fp16, (1e-7, 1e-14, 1e3))
    assert small.scale == 65536 and small.error < 0.01
    assert smaller.zero == 1.0  # too small even so
    assert large.finite and 1.0 <= large.scale < 65536


def test_what_one_precision_raises_is_in_its_row() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if model.weight.dtype == torch.float64:
            raise TypeError("no doubles here")
        return model(x).sum()

    found = compare_precisions(loss, linear(), torch.ones(2, 1))
    assert found["fp64"].raised == "TypeError: no doubles here" and "no doubles here" in str(found)
    assert math.isnan(found["fp32"].error)


def test_a_step_that_runs_nowhere_gets_no_praise() -> None:
    found = compare_precisions(lambda model, x: (model(x).sum(), 1), linear(), torch.ones(2, 1))
    assert found.verdict.startswith("It runs in none of them (TypeError")


def test_the_wrong_order_of_the_arguments_is_named() -> None:
    with pytest.raises(TypeError, match=r"compare_precisions\(loss, model, batch\)"):
        compare_precisions(linear(), lambda model, x: model(x).sum(), torch.ones(2, 1))


def test_a_region_around_it_changes_nothing() -> None:
    model, x = nn.Linear(8, 4), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compare_precisions(lambda model, x: model(x).square().mean(), model, x)
    assert found["fp32"].error < 1e-5
