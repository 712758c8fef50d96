"""The layer at fault is found, and pinned to float32 it no longer overflows, whatever people do
with the model.
"""

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


def pinned():
    model = tall()
    pin_to_fp32(model.up)
    return model


X = torch.ones(4, 8)


def at_fault(model, x=X, dtype=torch.float16):
    with torch.autocast("cpu", dtype=dtype):
        return first_nonfinite(model, x)


def in_fp32(layer):
    """Return True if the layer's result from low inputs is the same in a region as without one."""
    x = torch.rand(3, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert torch.is_autocast_enabled("cpu")
    return y.dtype == torch.float32 and torch.equal(
        y, nn.functional.linear(x.float(), layer.weight, layer.bias)
    )


def test_names_the_layer_that_overflows_in_fp16_and_none_in_bf16():
    assert at_fault(tall()) == "up"
    assert at_fault(tall(), dtype=torch.bfloat16) is None
    assert first_nonfinite(tall(), X) is None  # float32


def test_names_the_first_even_if_later_ones_make_nan_too():
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(8, 8)), nn.LogSoftmax(-1))
    nn.init.constant_(model[1][0].weight, math.inf)
    assert first_nonfinite(model, X) == "1.0"


def test_an_op_between_the_layers_is_not_blamed_on_the_layer_after_it():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Linear(8, 2)

        def forward(self, x):
            return self.second(torch.exp(1000 * self.first(x)))

    assert first_nonfinite(Between(), X) is None


def test_an_infinite_input_is_the_datas_fault_and_no_hook_stays():
    model = tall()
    with pytest.raises(ValueError, match="in the data"):
        at_fault(model, X * math.inf)
    at_fault(model)
    with pytest.raises(RuntimeError):
        first_nonfinite(model, torch.ones(4, 3))
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_pinned_layer_equals_float32_and_leaves_the_others_in_fp16():
    model = pinned()
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(X).dtype == torch.float16
    assert in_fp32(model.up) and at_fault(model) is None
    assert repr(model) == repr(tall())


def by_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def replicated(model):
    """What `nn.DataParallel` makes of a layer: an attribute copy that gets weights of its own."""
    made = nn.ModuleDict({"up": model.up._replicate_for_data_parallel()})
    made.up._parameters = {
        name: nn.Parameter(p.clone()) for name, p in model.up._parameters.items()
    }
    return made


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), by_file, replicated],
    ids=["deepcopy", "pickle", "torch.save", "replica"],
)
def test_a_copy_of_a_pinned_layer_is_pinned_and_runs_its_own_weights(copied):
    model = pinned()
    pin_to_fp32(model.up)  # twice is as once
    twin = copied(model)
    nn.init.constant_(twin.up.weight, 0.1234567)
    assert in_fp32(twin.up) and in_fp32(model.up)
    assert not torch.equal(twin.up.weight, model.up.weight)


def test_the_state_dict_is_that_of_a_plain_layer():
    plain = tall()
    plain.load_state_dict(pinned().state_dict())
    assert not in_fp32(plain.up)


def test_a_pinned_layer_trains_and_autocast_is_back_after_an_error():
    model = pinned()
    with torch.autocast("cpu", dtype=torch.float16):
        model(X).sum().backward()
        with pytest.raises(RuntimeError):
            model.up(torch.ones(4, 3))
        assert torch.is_autocast_enabled("cpu")
    assert model.up.weight.grad.isfinite().all() and model.up.weight.grad.dtype == torch.float32
    assert in_fp32(model.up)


def test_keywords_and_a_layer_inside_itself():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x, *, again):
            x = x @ self.weight
            return self(x, again=False) if again else x

    layer = Twice()
    pin_to_fp32(layer)
    x = torch.rand(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, again=True)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(y, x.float() @ layer.weight @ layer.weight)


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler looks at .grad of tensors that have none
def test_compiled_it_computes_the_same():
    compiled = torch.compile(nn.Sequential(pinned().up), backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = compiled(X)
        assert torch.is_autocast_enabled("cpu")
    assert y.dtype == torch.float32 and torch.equal(y, tall().up(X))


def test_what_cannot_be_pinned_is_refused():
    with pytest.raises(ValueError, match=r"layer.float\(\)"):
        pin_to_fp32(nn.Linear(2, 2).half())
    for wrong in ("x", None, nn.Linear):
        with pytest.raises(TypeError, match="pin_to_fp32 needs a layer"):
            pin_to_fp32(wrong)
