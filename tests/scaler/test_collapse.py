"""The layer at fault is found, and pinned to float32 it no longer overflows."""

import copy
import math
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
