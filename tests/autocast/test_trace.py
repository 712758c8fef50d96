"""`trace` against plain forward hooks under a plain `torch.autocast`;
and that it leaves everything as it was.
"""

import random
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_course.autocast import TraceError, is_fake, trace
from amp_course.autocast.isolation import _get, moved_copy
from amp_course.autocast.trace_html import panel_html
from amp_course.kit.compiled import uncompiled_run
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet
from amp_course.kit.tensors import short, tensors_in
from tests.autocast.test_chapter import Product


def models():
    torch.manual_seed(0)
    return {
        "SimpleNet": (SimpleNet(8), (torch.randn(2, 8),)),
        "DigitsResNet": (DigitsResNet(4), (torch.rand(2, 1, 8, 8),)),
        "CharGPT": (
            CharGPT(9, context=8, layers=2, heads=2, width=8),
            (torch.randint(0, 9, (2, 8)),),
        ),
        "encoder": (
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
            (torch.randn(2, 5, 16),),
        ),
        "LSTM": (nn.LSTM(3, 4), (torch.randn(5, 2, 3),)),
    }


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
        assert (
            torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
        )
        assert model(x).dtype == torch.bfloat16
    assert inside.ops == alone.ops
    assert off.casts() == [] and off["(model)"].outputs == (torch.float32,)


def test_simple_net_exactly():
    """7 casts: three weights, three biases, and the input;
    the activations in between are low already.
    """
    model, inputs = models()["SimpleNet"]
    traced = trace(model, *inputs)
    expected = [f"linear{n}.{part}" for n in (1, 2, 3) for part in ("bias", "weight")]
    assert sorted(op.source for op in traced.casts()) == sorted([*expected, "activation"])
    assert (
        traced.cast_bytes()
        == 2 * sum(p.numel() for p in model.parameters()) + 2 * inputs[0].numel()
    )
    back = traced.casts("backward")
    assert sorted(op.source for op in back) == sorted(expected)
    assert traced.cast_bytes("backward") == 4 * sum(p.numel() for p in model.parameters())
    assert {op.inputs + op.outputs for op in back} == {(torch.bfloat16, torch.float32)}
    products = [op for op in traced if op.phase == "backward" and op.op == "mm"]
    assert [op.module for op in products] == ["linear3", "linear3", "linear2", "linear2", "linear1"]
    assert {op.outputs for op in products} == {(torch.bfloat16,)}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return self.line(self.line(x).relu_())


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


@pytest.mark.skipif(
    not is_fake("cuda"), reason="with a GPU, autocast('cuda') in a model needs no fake"
)
def test_cuda_without_a_gpu_says_that_it_is_fake():
    traced = trace(SimpleNet(8), torch.randn(2, 8), device_type="cuda", dtype=torch.float16)
    assert traced.fake and "fake" in str(traced)
    assert not traced.has_backward and "real GPU" in traced.notes[0]
    assert traced["linear1"].outputs == (torch.float16,)


def test_an_island_of_fp32():
    traced = trace(Island(), torch.randn(2, 4))
    assert traced["inner"].inputs == traced["inner"].outputs == (torch.float32,)
    assert traced["inner"].casts == 0
    assert traced["line"].outputs == (torch.bfloat16,)


class Both(nn.Module):
    """An op on which the two policies differ."""

    def forward(self, x):
        return torch.softmax(x @ x.T, -1)


@pytest.mark.parametrize("name", ["DigitsResNet", "encoder"])
def test_models_are_traced_on_cuda_by_a_copy(name):
    model, inputs = models()[name]
    before = {key: one.clone() for key, one in model.state_dict().items()}
    traced = trace(model, *inputs, device_type="cuda", dtype=torch.float16)
    assert traced.casts() and {path for path, _ in model.named_modules() if path} >= {
        row.path for row in traced.modules if row.path != "(model)"
    }
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())


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
    traced = trace(Both(), x @ torch.eye(4))
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


class Decides(nn.Module):
    def forward(self, x):
        return x * 2 if (x @ x.T).sum() > 0 else x


@pytest.mark.skipif(not is_fake("cuda"), reason="only fake tensors have no values")
def test_a_result_that_depends_on_values_is_explained_among_fakes():
    trace(Decides(), torch.randn(3, 3), device_type="cpu")
    with pytest.raises(TraceError, match="depends on values, and a fake tensor has none"):
        trace(Decides(), torch.randn(3, 3), device_type="cuda")


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


@pytest.mark.parametrize(
    "index",
    [
        *(-1, slice(None, None, 2), None, ..., (slice(None), -1), (None, 1, ..., slice(2))),
        *([1, 0, 1], torch.tensor([True, False]), (slice(None), torch.tensor([2, 0]))),
    ],
    ids=str,
)
def test_indexing_of_fakes_is_that_of_tensors(index):
    x = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(_get(x, index), x[index])


def test_a_copy_on_another_device_computes_the_same_and_keeps_tied_weights():
    model, inputs = models()["CharGPT"]
    model.head.weight = model.characters.weight
    moved, arguments = moved_copy(model, (inputs, {}), "cpu", fake=False)
    assert torch.equal(moved(*arguments[0]), model(*inputs))
    assert moved.head.weight is moved.characters.weight is not model.head.weight
    assert moved.head.weight.requires_grad


def test_a_model_that_cannot_be_copied_says_why():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 2)
            self.output = self.line(torch.ones(2))  # no leaf, which deepcopy refuses

    with pytest.raises(ValueError, match="register_buffer"):
        moved_copy(Holds(), ((), {}), "cpu", fake=False)


def test_scripted_models_are_traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in newer versions
        scripted = torch.jit.script(SimpleNet(8))
        assert len(trace(scripted, torch.randn(2, 8)).casts()) == 7


class Calls(nn.Module):
    """Multiplies by its weight, with any function or with its own compiled method."""

    def __init__(self, product=None):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.product = product or self.method

    @torch.compile(backend="eager")
    def method(self, x, w):
        return x @ w

    def forward(self, x):
        return self.product(x, self.weight)


def plain_product(x, w):
    return x @ w


@pytest.mark.parametrize("how", ["function", "method", "loss", "in the backward pass"])
def test_compiled_code_that_is_no_module_is_traced_uncompiled_and_said_to_be(how):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x @ w

        @staticmethod
        def backward(ctx, gradient):
            return compiled(gradient, torch.eye(4, dtype=gradient.dtype)), None

    def of_loss(output):
        return output.mean()

    compiled = torch.compile(plain_product, backend="eager")
    product = {
        "function": compiled,
        "method": None,
        "in the backward pass": Square.apply,
    }.get(how, plain_product)
    loss = torch.compile(of_loss, backend="eager") if how == "loss" else None
    x = torch.rand(2, 4, requires_grad=True)
    traced = trace(Calls(product), x, loss=loss)
    assert [note for note in traced.notes if "ran uncompiled" in note] == list(traced.notes) != []
    if how != "in the backward pass":
        assert [(op.op, op.cast) for op in traced.of("(model)")] == [
            (op.op, op.cast) for op in trace(Calls(plain_product), x).of("(model)")
        ]
    assert trace(Calls(plain_product), x).notes == ()


def test_what_is_kept_from_the_compiler_is_not_taken_for_compiled_and_compiling_works_afterwards():
    excluded, sizes = torch.compiler.disable(plain_product), []

    def backend(graph, inputs):
        sizes.append(len(inputs))
        return graph.forward

    x, compiled = torch.rand(2, 4), torch.compile(plain_product, backend=backend)
    assert trace(Calls(excluded), x).notes == () != trace(Calls(compiled), x).notes
    assert sizes == []
    compiled(x, torch.rand(4, 4))
    assert sizes == [2]


def test_one_cast_is_no_casts():
    traced = trace(Calls(plain_product), torch.rand(2, 4).bfloat16(), backward=False)
    assert len(traced.casts()) == 1 and "1 cast inserted" in str(traced)
    assert "<b>1</b> cast inserted" in panel_html(traced, "forward", "")


def test_compiled_code_is_compiled_again_though_the_outer_of_two_watches_ends_first():
    graphs = []

    def backend(graph, inputs):
        graphs.append(1)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    runs = [uncompiled_run(), uncompiled_run()]
    called = [run.__enter__() for run in runs]
    compiled(torch.ones(1))
    for run in runs:
        run.__exit__(None, None, None)
    assert not graphs and all(one() for one in called)
    compiled(torch.ones(1))
    assert graphs == [1]
