"""What chapter 04 says in prose, and about cells whose outputs are not compared."""

import inspect
import warnings
from threading import Thread

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch

from amp_course.autocast import is_fake, region, stage, trace
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet


def test_answers_to_the_panels_questions():
    net = trace(SimpleNet(8), torch.randn(2, 8))
    assert (net["linear1"].casts, net["linear2"].casts) == (3, 2)
    gpt = trace(CharGPT(9, context=8, layers=1, heads=2, width=8), torch.randint(0, 9, (2, 8)))
    assert gpt["blocks.0"].inputs == gpt["blocks.0"].outputs == (torch.float32,)
    assert not [op for op in gpt.of("blocks.0") if op.cast]  # type promotion, no cast
    norm = trace(DigitsResNet(4), torch.rand(2, 1, 8, 8))["norm"]
    assert norm.inputs == norm.outputs == (torch.bfloat16,) and norm.casts == 0
    assert norm.computed == (torch.bfloat16, torch.float32)


def test_which_ops_can_overflow_in_fp16_on_a_gpu_is_what_chapter_11_says(cuda):
    expected = {
        "lower": ("matmul", "conv2d"),
        "unchanged": ("add", "mul", "mean"),
        "fp32": ("exp", "pow", "sum", "softmax", "layer_norm", "cross_entropy"),
    }
    assert {
        verdict: tuple(op for op in ops if cuda[op].verdict == verdict)
        for verdict, ops in expected.items()
    } == expected


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient.float() @ w.T, x.T @ gradient.float()


@pytest.mark.skipif(
    not hasattr(functorch, "backward_pass_autocast"), reason="this torch has no such setting"
)
def test_a_compiled_backward_runs_under_the_forwards_autocast_unless_told_not_to(monkeypatch):
    net, x = nn.Linear(8, 8), torch.randn(4, 8)

    def island(x):
        with torch.autocast("cpu", enabled=False):
            return net(x).square().mean()

    def gradient(function):
        torch._dynamo.reset()
        net.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = function(x)
        loss.backward()
        return net.weight.grad.clone()

    right = gradient(island)
    assert not torch.equal(gradient(torch.compile(island, backend="aot_eager")), right)
    monkeypatch.setattr(functorch, "backward_pass_autocast", "off")
    assert torch.equal(gradient(torch.compile(island, backend="aot_eager")), right)


def test_a_custom_function_fails_without_and_works_with_the_decorators():
    class Naive(Product):
        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return gradient @ w.T, x.T @ gradient

    class Safe(Naive):
        forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="cpu"))
        backward = staticmethod(torch.amp.custom_bwd(Naive.backward, device_type="cpu"))

    class Full(Naive):
        forward = staticmethod(
            torch.amp.custom_fwd(Product.forward, device_type="cpu", cast_inputs=torch.float32)
        )
        backward = staticmethod(torch.amp.custom_bwd(Naive.backward, device_type="cpu"))

    x, w = torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        naive, safe, full = (function.apply(x, w) for function in (Naive, Safe, Full))
    with pytest.raises(RuntimeError, match="same dtype"):
        naive.sum().backward()
    safe.sum().backward()
    assert (
        w.grad.dtype == torch.float32
        and safe.dtype == torch.bfloat16
        and full.dtype == torch.float32
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the old names work")
def test_the_old_names_warn_and_switch_themselves_off():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler = torch.cuda.amp.GradScaler()
        with torch.cuda.amp.autocast():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert not scaler.is_enabled()
    assert [warning.category for warning in caught] == [FutureWarning, UserWarning] * 2


def test_data_parallel_carries_on_or_off_and_no_dtype():
    source = inspect.getsource(torch.nn.parallel.parallel_apply)
    assert "enabled=autocast_enabled" in source and "get_autocast_dtype" not in source
    dtypes = []
    with stage("cuda"), region("cuda", torch.bfloat16):
        thread = Thread(target=lambda: dtypes.append(torch.get_autocast_dtype("cuda")))
        thread.start()
        thread.join()
    assert dtypes == [torch.float16]


@pytest.mark.skipif(not is_fake("cuda"), reason="real CUDA autocast needs no stand-in")
def test_autocast_for_cuda_leaves_tensors_on_the_cpu_alone():
    with region("cuda", torch.float16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_a_model_cast_once_is_half_and_autocast_comes_on_top():
    net, x = SimpleNet(16), torch.randn(1, 16)
    size = sum(p.numel() * 4 for p in net.parameters())
    with torch.inference_mode():
        assert trace(net, x).cast_bytes() == size // 2 + 2 * x.numel()
        assert trace(net.bfloat16(), x.bfloat16()).cast_bytes() == 0


def test_nested_regions_share_the_cache_until_the_outermost_ends():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)

    def twice():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.equal(before, layer(x))

    assert not twice()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert twice()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert not twice()  # inner regions take it over
