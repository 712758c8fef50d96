"""The layer at fault is found, and pinned to float32 it no longer overflows."""

import copy
import io
import math
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from amp_course.scaler.collapse import first_nonfinite, pin_to_fp32


def tall():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {"up": nn.Linear(8, 8), "norm": nn.LayerNorm(8), "head": nn.Linear(8, 2)}
        model = nn.Sequential(OrderedDict(parts))
        nn.init.constant_(model.up.weight, 5e4)
    return model


X = torch.ones(4, 8)


def at_fault(model, x=X, dtype=torch.float16):
    with torch.autocast("cpu", dtype=dtype):
        return first_nonfinite(model, x)


def test_names_the_layer_that_overflows_in_fp16_and_none_in_bf16():
    assert at_fault(tall()) == "up"
    assert at_fault(tall(), dtype=torch.bfloat16) is None
    assert first_nonfinite(tall(), X) is None  # float32


def test_names_the_first_even_if_later_ones_make_nan_too():
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(8, 8)), nn.LogSoftmax(-1))
    nn.init.constant_(model[1][0].weight, math.inf)
    assert first_nonfinite(model, X) == "1.0"


def test_a_pinned_layer_equals_float32_and_leaves_the_others_in_fp16():
    model = tall()
    want = copy.deepcopy(model).up(X)
    pin_to_fp32(model.up)
    with torch.autocast("cpu", dtype=torch.float16):
        got, out = model.up(X.half()), model(X)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(got, want) and got.dtype == torch.float32
    assert out.dtype == torch.float16 and at_fault(model) is None


def by_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), by_file]
)
def test_a_copy_of_a_pinned_layer_is_pinned_and_runs_its_own_weights(copied):
    model = tall()
    pin_to_fp32(model.up)
    pin_to_fp32(model.up)  # twice is as once
    twin = copied(model)
    nn.init.zeros_(twin.up.weight)
    with torch.autocast("cpu", dtype=torch.float16):
        assert (
            torch.equal(twin.up(X), twin.up.bias.expand(4, 8)) and twin.up(X).dtype == torch.float32
        )
        assert model.up(X).abs().max() > 65504
    assert set(twin.state_dict()) == set(tall().state_dict())


def test_a_pinned_layer_trains_and_autocast_is_back_after_an_error():
    model = tall()
    pin_to_fp32(model.up)
    with torch.autocast("cpu", dtype=torch.float16):
        model(X).sum().backward()
        with pytest.raises(RuntimeError):
            model.up(torch.ones(4, 3))
        assert torch.is_autocast_enabled("cpu")
    assert model.up.weight.grad.isfinite().all() and model.up.weight.grad.dtype == torch.float32


def test_an_infinite_input_is_the_datas_fault_and_no_hook_stays():
    model = tall()
    with pytest.raises(ValueError, match="in the data"):
        at_fault(model, X * math.inf)
    at_fault(model)
    assert not any(layer._forward_hooks for layer in model.modules())


def test_hooks_go_when_the_forward_raises():
    model = tall()
    with pytest.raises(RuntimeError):
        first_nonfinite(model, torch.ones(4, 3))
    assert not any(layer._forward_hooks for layer in model.modules())


def test_half_weights_are_refused():
    with pytest.raises(ValueError, match=r"layer.float\(\)"):
        pin_to_fp32(nn.Linear(2, 2).half())


def test_an_op_between_the_layers_is_not_blamed_on_the_layer_after_it():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Linear(8, 2)

        def forward(self, x):
            return self.second(torch.exp(1000 * self.first(x)))

    assert first_nonfinite(Between(), X) is None
