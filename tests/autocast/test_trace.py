"""What `trace` counts and says, of models of every kind."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_course.autocast import TraceError, trace
from amp_course.autocast.trace_html import panel_html
from amp_course.kit.models import SimpleNet
from amp_course.kit.tensors import short
from tests.autocast.test_chapter import Product
from tests.autocast.traced import Twice, models


def test_simple_net_exactly():
    """7 casts: three weights, three biases, and the input."""
    model, inputs = models()["SimpleNet"]
    traced = trace(model, *inputs)
    expected = [f"linear{n}.{part}" for n in (1, 2, 3) for part in ("bias", "weight")]
    assert sorted(op.source for op in traced.casts()) == sorted([*expected, "activation"])
    weights = sum(p.numel() for p in model.parameters())
    assert traced.cast_bytes() == 2 * weights + 2 * inputs[0].numel()
    back = traced.casts("backward")
    assert sorted(op.source for op in back) == sorted(expected)
    assert traced.cast_bytes("backward") == 4 * weights
    assert {op.inputs + op.outputs for op in back} == {(torch.bfloat16, torch.float32)}
    products = [op for op in traced if op.phase == "backward" and op.op == "mm"]
    assert [op.module for op in products] == ["linear3", "linear3", "linear2", "linear2", "linear1"]
    assert {op.outputs for op in products} == {(torch.bfloat16,)}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_module_used_twice_casts_its_weight_once(device_type):
    traced = trace(Twice(), torch.randn(2, 4), device_type=device_type)
    row = traced["line"]
    assert (row.calls, row.casts, row.reused) == (2, 3, 2)
    assert row.inputs == (torch.float32, torch.bfloat16) and row.cast_bytes == 2 * (16 + 4 + 8)
    assert [op.reused for op in traced if op.reused] == [("line.bias", "line.weight")]


def test_inference_mode_caches_weights_only_in_an_older_torch():
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert trace(Twice(), x)["line"].casts == 3
    with torch.inference_mode():
        row = trace(Twice(), x)["line"]
    if caches_under_inference():  # before pytorch PR#165068
        assert (row.casts, row.reused, row.cast_bytes) == (3, 2, 2 * (16 + 4 + 8))
    else:
        assert (row.casts, row.reused, row.cast_bytes) == (5, 0, 2 * (16 + 4 + 8 + 16 + 4))


def caches_under_inference():
    """Return True if a weight that changes between two uses in a region keeps its first copy."""
    line, x = nn.Linear(4, 4), torch.ones(1, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        before = line(x)
        line.weight.data.add_(1)
        return torch.equal(before, line(x))


def test_frozen_weights_are_cast_at_each_use():
    row = trace(Twice().requires_grad_(False), torch.randn(2, 4))["line"]
    assert (row.casts, row.reused) == (5, 0)


class OwnCasts(nn.Module):
    def forward(self, x):
        y = x.to(torch.float16).float().type(torch.float64).to(dtype=torch.float32)
        return y.half() + y.bfloat16() @ y.bfloat16().T


def test_the_models_own_casts_are_not_autocasts():
    traced = trace(OwnCasts(), torch.randn(3, 3))
    assert traced.casts() == []
    assert [op.call for op in traced if op.cast == "model"] == ["to"] * 7


class Island(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.line(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.inner(x.float())


def test_an_island_of_fp32():
    traced = trace(Island(), torch.randn(2, 4))
    assert traced["inner"].inputs == traced["inner"].outputs == (torch.float32,)
    assert traced["inner"].casts == 0
    assert traced["line"].outputs == (torch.bfloat16,)


@dataclass
class Packed:
    logits: torch.Tensor
    nothing: None = None


class Gives(nn.Module):
    def __init__(self, pack):
        super().__init__()
        self.line, self.pack = nn.Linear(4, 4), pack

    def forward(self, x):
        return self.pack(self.line(x))


@pytest.mark.parametrize("pack", [lambda y: (y, [y.long()]), lambda y: Packed({"deep": y})])
def test_outputs_in_any_wrapping(pack):
    traced = trace(Gives(pack), torch.randn(2, 4))
    assert traced["(model)"].outputs == (torch.bfloat16,) and traced.has_backward


def test_an_output_of_none_and_one_without_a_gradient():
    for pack in (lambda y: None, lambda y: y.argmax()):
        traced = trace(Gives(pack), torch.randn(2, 4))
        assert not traced.has_backward and "nothing in the output depends" in traced.notes[0]
        assert traced["line"].casts == 3


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x.float()).abs(), x.int() + 1, torch.view_as_real(x + 0j)


def test_complex_and_integer_tensors_and_no_parameters():
    traced = trace(Complex(), torch.randn(2, 4))
    assert traced.casts() == [] and "nothing in the output depends" in traced.notes[0]
    assert "complex64" in {short(dtype) for op in traced for dtype in op.outputs}
    assert trace(nn.Identity(), torch.arange(3))["(model)"].outputs == ()
    assert trace(nn.Identity(), None).device_type == "cpu"


def test_inputs_that_need_gradients_have_a_backward_pass():
    x = torch.randn(2, 4, requires_grad=True)
    traced = trace(nn.Softmax(-1), x @ torch.eye(4))
    assert traced.has_backward and x.grad is None


def test_a_loss_of_ones_own():
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    model = SimpleNet(8)
    traced = trace(model, x, loss=lambda output: F.mse_loss(output, y))
    row = traced["(loss)"]
    assert (row.inputs, row.outputs) == ((torch.bfloat16,), (torch.float32,))
    assert any(op.op == "mse_loss_backward" and op.module == "(loss)" for op in traced)
    for loss, got in ((lambda output: output, r"a tensor of \(2, 8\)"), (lambda _: 3.0, "float")):
        with pytest.raises(ValueError, match=f"{got}, and a backward pass starts from a scalar"):
            trace(model, x, loss=loss)


def test_what_forward_raises_is_told_with_what_had_run():
    class Late(SimpleNet):
        def forward(self, x):
            return super().forward(x) @ torch.zeros(3, 3)

    with pytest.raises(
        TraceError, match=r"forward pass of Late raised RuntimeError after \d+ ops, the last one"
    ) as caught:
        trace(Late(8), torch.randn(2, 8))
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError) and str(cause) in str(caught.value)
    assert caught.value.trace["linear3"].outputs == (torch.bfloat16,)


def test_what_backward_raises_is_told():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("no way back")

    with pytest.raises(TraceError, match="backward pass of Gives raised KeyError"):
        trace(Gives(Bad.apply), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((3,), {}, TypeError, "needs an nn.Module, but got an int: pass the model itself"),
        ((SimpleNet,), {}, TypeError, "the class SimpleNet: pass the model itself"),
        ((Twice(), torch.ones(2, 4)), {"loss": "mse"}, TypeError, "you passed a str: write"),
        ((Twice().to("meta"), torch.ones(2, 4)), {}, ValueError, "has no autocast, in the model"),
        ((Twice(), torch.ones(2, 4)), {"device_type": "tpu"}, ValueError, "has no autocast here"),
        ((Twice(), torch.ones(2, 4)), {"dtype": torch.float32}, ValueError, "leave autocast off"),
    ],
)
def test_bad_input_is_refused_with_cause_and_remedy(arguments, options, error, words):
    with pytest.raises(error) as caught:
        trace(*arguments, **options)
    assert words in str(caught.value)


def test_prints_as_a_table():
    traced = trace(Twice(), torch.randn(2, 4))
    text = str(traced)
    assert "line ×2" in text and "fp32 bf16" in text and "2 saved by the weight cache" in text
    html = traced._repr_html_()
    assert 'aria-label="modules, backward"' in html and "line × 2" in html
    with pytest.raises(KeyError, match="there are: \\(model\\), line"):
        traced["nowhere"]


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_what_attention_casts_inside_itself_is_not_put_down_to_autocast(device_type):
    model, inputs = models()["CharGPT"]
    assert {op.call for op in trace(model, *inputs, device_type=device_type).casts()} == {"linear"}


def test_the_backward_pass_is_traced_outside_of_the_region():
    class Own(Twice):
        def forward(self, x):
            return Product.apply(x, self.line.weight)

    first, *back = [op.outputs[0] for op in trace(Own(), torch.randn(2, 4)) if op.op == "mm"]
    assert first == torch.bfloat16 and set(back) == {torch.float32}


def test_one_cast_is_no_casts():
    traced = trace(nn.Linear(4, 4, bias=False), torch.ones(4).bfloat16(), backward=False)
    assert len(traced.casts()) == 1 and "1 cast inserted" in str(traced)
    assert "<b>1</b> cast inserted" in panel_html(traced, "forward", "")
