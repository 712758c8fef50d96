"""`trace` finds what plain forward hooks find under a plain autocast, and changes nothing."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_course.autocast import TraceError, trace
from amp_course.kit.tensors import tensors_in
from tests.autocast.traced import models


def hooked_dtypes(model, inputs, dtype):
    """The oracle: output dtypes of every module, in the order of calls, from ordinary hooks."""
    found, handles = {}, []
    for path, module in model.named_modules():

        def hook(module, args, output, path=path or "(model)"):
            found[path] = tuple(one.dtype for one in tensors_in(output))

        handles.append(module.register_forward_hook(hook))
    try:
        with (
            torch.random.fork_rng(),
            torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None),
        ):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def cannot_run(model, inputs, dtype):
    """Return True if this processor has no kernel for it, which `trace` then has to say."""
    try:
        hooked_dtypes(model, inputs, dtype)
    except RuntimeError as error:
        with pytest.raises(TraceError) as caught:
            trace(model, *inputs, device_type="cpu", dtype=dtype)
        assert str(caught.value.__cause__) == str(error) and isinstance(model, nn.LSTM)
        return True
    return False


@pytest.mark.parametrize(
    ("dtype", "training"), [(torch.bfloat16, True), (torch.float16, False)], ids=str
)
@pytest.mark.parametrize("name", models())
def test_agrees_with_forward_hooks_on_every_module(name, dtype, training):
    model, inputs = models()[name]
    model.train(training)
    if cannot_run(model, inputs, dtype):
        return
    expected = hooked_dtypes(model, inputs, dtype)
    traced = trace(model, *inputs, device_type="cpu", dtype=dtype)
    found = {row.path: row.outputs for row in traced.modules if row.calls}
    assert found == {path: tuple(dict.fromkeys(outputs)) for path, outputs in expected.items()}
    assert len(found) > 1 or name == "LSTM"


def test_the_encoders_fast_path_stays_the_fast_path():
    model, inputs = models()["encoder"]
    model.eval()
    with torch.inference_mode():
        traced = trace(model, *inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = model(*inputs)
    assert [row.path for row in traced.modules] == ["(model)"]  # it calls no module inside
    assert traced["(model)"].outputs == (expected.dtype,)
    assert {op.call for op in traced} == {"_transformer_encoder_layer_fwd"}
    assert not traced.has_backward and "switched off" in traced.notes[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
@pytest.mark.parametrize("name", models())
def test_changes_no_bit_of_the_result(name, dtype):
    model, inputs = models()[name]
    if cannot_run(model, inputs, dtype):
        return
    outputs = []
    model.register_forward_hook(
        lambda module, args, output: outputs.append([one.clone() for one in tensors_in(output)])
    )
    torch.manual_seed(3)
    trace(model, *inputs, device_type="cpu", dtype=dtype)
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        model(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


class Counter(nn.Module):
    """Has everything that a careless tracer changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.line = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.eval()
        x.mul_(2)
        return F.dropout(self.line(self.norm(x)), 0.5) + random.random()


class Breaks(Counter):
    def forward(self, x):
        super().forward(x)
        raise OverflowError("the third wheel came off")


@pytest.mark.parametrize("kind", [Counter, Breaks])
def test_leaves_everything_as_it_was(kind):
    model, x = kind(), torch.randn(3, 4)
    model.line.weight.grad = torch.ones(4, 4)
    torch.manual_seed(7)
    random.seed(7)
    before_x, before = x.clone(), {name: one.clone() for name, one in model.state_dict().items()}
    modules = dict(nn.Module.__dict__)
    try:
        trace(model, x, device_type="cpu", dtype=torch.float16)
    except TraceError as error:
        assert isinstance(error.__cause__, OverflowError) and kind is Breaks
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(x, before_x) and torch.equal(model.line.weight.grad, torch.ones(4, 4))
    assert model.norm.weight.grad is None and model.training and model.line.training
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.is_autocast_cache_enabled() and torch.is_grad_enabled()
    assert dict(nn.Module.__dict__) == modules
    after, again = torch.rand(1), random.random()
    torch.manual_seed(7)
    random.seed(7)
    assert after == torch.rand(1) and again == random.random()


def test_inside_a_region_of_the_caller():
    model, (x,) = models()["SimpleNet"]
    alone = trace(model, x, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)  # leaves casts in the cache
        inside = trace(model, x, dtype=torch.float16)
        off = trace(model, x, dtype=None)
        assert model(x).dtype == torch.bfloat16
    assert inside.ops == alone.ops
    assert off.casts() == [] and off["(model)"].outputs == (torch.float32,)
