"""fp8 casts against ml_dtypes, products against float64 within the derived bound,
delayed scales against a loop in Python.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from amp_course.frontiers import fp8
from amp_course.frontiers.fp8 import (
    E4M3,
    E5M2,
    CurrentScaling,
    DelayedScaling,
    multiply,
    product_error_bound,
    scale_for,
    simulated_because,
    to_fp8,
)
from amp_course.frontiers.fp8_linear import Fp8Linear

NUMPY = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
ONE = torch.tensor(1.0)


@pytest.fixture(params=["torch's own", "simulated"])
def arithmetic(request, monkeypatch):
    """Run a test with `scaled_mm`, and as on a torch that has none."""
    if request.param == "simulated":
        monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)
        fp8._problem.cache_clear()
        assert "has no torch.nn.functional.scaled_mm" in simulated_because()
        request.addfinalizer(fp8._problem.cache_clear)
    elif simulated_because():
        pytest.skip(simulated_because())
    return request.param


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_numbers_are_stored_as_ml_dtypes_stores_them(dtype):
    torch.manual_seed(0)
    largest = torch.finfo(dtype).max
    ends = torch.tensor([0.0, -0.0, largest, -largest])
    x = torch.cat([torch.randn(5000) * 10.0 ** torch.randint(-6, 3, (5000,)), ends])
    inside = x.clamp(-largest, largest).numpy().astype(NUMPY[dtype]).astype(np.float32)
    assert np.array_equal(to_fp8(x, ONE, dtype).float().numpy(), inside)


def test_what_is_past_the_largest_is_clipped_and_inf_and_nan_stay():
    x = torch.tensor([1e6, -449.0, torch.inf, -torch.inf, torch.nan])
    assert to_fp8(x, ONE, E4M3).float().tolist()[:2] == [448.0, -448.0]
    assert to_fp8(x, ONE, E4M3).float()[2:].isnan().all()
    stored = to_fp8(x, ONE, E5M2).float()
    assert stored[:4].tolist() == [57344.0, -448.0, torch.inf, -torch.inf] and stored[4].isnan()
    far = to_fp8(torch.tensor([1e30, -1e30]), torch.tensor(1e-10))  # inf in fp32 on the way
    assert far.float().tolist() == [448.0, -448.0]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("amax", [1e-40, 1e-30, 3.0, 3e38])
def test_with_its_scale_the_largest_number_is_the_largest_of_the_format(amax, dtype):
    x = torch.tensor([amax, -amax / 2])
    scale = scale_for(x.amax(), dtype)
    stored = to_fp8(x, scale, dtype).float()
    if amax > 1e-35:
        assert stored[0] == torch.finfo(dtype).max
        assert torch.allclose(stored * scale, x, rtol=1e-6, atol=0)
    assert (stored * scale).isfinite().all()


@pytest.mark.parametrize("amax", [0.0, torch.inf, torch.nan])
def test_an_amax_of_zero_inf_or_nan_leaves_the_scale_at_one(amax):
    assert scale_for(torch.tensor(amax), E4M3) == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fnuz])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"choose torch\.float8_e4m3fn or"):
        to_fp8(torch.ones(1), ONE, dtype)


def test_a_delayed_scale_is_that_of_the_largest_amax_before():
    scaling, window = DelayedScaling(3), 3
    history = []
    amaxes = [2.0, 8.0, 1.0, torch.inf, 0.5, torch.nan, 0.25, 0.125, 0.0, 700.0, 1.0]
    for amax in amaxes:
        _, scale = scaling(torch.tensor([amax, 0.1]))
        before = max(history[-window:], default=0.0)
        assert float(scale) == pytest.approx(before / 448 if before else 1.0), amax
        if amax < 1e30:
            history.append(max(amax, 0.1))
    assert scaling.history.tolist() == pytest.approx([1.0, 700.0, 0.1])
    clipped = 2.0 > 448, 8.0 > 2, 700.0 > 0.25
    assert int(scaling.clipped) == sum(clipped)


def test_a_history_of_zeros_a_window_of_none_and_evaluation_mode():
    scaling = DelayedScaling(2)
    for _ in range(3):
        stored, scale = scaling(torch.zeros(4))
        assert scale == 1.0 and stored.float().eq(0).all()
    scaling.eval()(torch.full((2,), 7.0))
    assert scaling.history.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="at least 1 amax"):
        DelayedScaling(0)


@pytest.mark.parametrize("sizes", [(16, 32, 48), (1, 1, 1), (5, 7, 3), (64, 1000, 8)])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
def test_a_product_is_within_the_bound_of_the_float64_product(arithmetic, sizes, dtypes):
    m, k, n = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    x = torch.randn(m, k, generator=generator) * 3e-3
    y = torch.randn(k, n, generator=generator) * 50
    scales = scale_for(x.abs().amax(), dtypes[0]), scale_for(y.abs().amax(), dtypes[1])
    a, b = to_fp8(x, scales[0], dtypes[0]), to_fp8(y, scales[1], dtypes[1])
    got = multiply(a, b, *scales)
    exact = (a.double() * scales[0].double()) @ (b.double() * scales[1].double())
    bound = product_error_bound(a, b, *scales)
    assert got.dtype == torch.float32 and ((got.double() - exact).abs() <= bound).all()
    sums = (a.double().abs() @ b.double().abs()) * float(scales[0] * scales[1])
    assert (bound <= 2e-4 * sums + 1e-44).all()


def test_wrong_products_are_noticed(monkeypatch, request):
    if not hasattr(torch.nn.functional, "scaled_mm"):
        pytest.skip("this torch has no scaled_mm")
    request.addfinalizer(fp8._problem.cache_clear)

    def unable(*_, **__):
        raise NotImplementedError("no kernel\nfor this")

    for scaled_mm, problem in (
        (lambda *_, **__: torch.zeros(16, 16), "scaled_mm gives wrong products on this cpu"),
        (unable, "scaled_mm does not run on this cpu: no kernel"),
    ):
        fp8._problem.cache_clear()
        monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm)
        assert simulated_because() == problem


@pytest.mark.parametrize("scaling", [CurrentScaling, DelayedScaling])
def test_a_layer_is_the_float64_layer_of_its_fp8_numbers(arithmetic, scaling):
    torch.manual_seed(0)
    layer = Fp8Linear(24, 12, scaling=scaling)
    for _ in range(2):  # in the second, a delayed scale is that of the first
        layer.zero_grad()
        x = torch.randn(2, 5, 24, requires_grad=True)
        arriving = torch.randn(2, 5, 12) * 1e-4
        scalings = (layer.input_scaling, layer.weight_scaling, layer.gradient_scaling)
        scales = [s.history.max() if scaling is DelayedScaling else None for s in scalings]
        y = layer(x)
        y.backward(arriving)
    x64, w64, g64 = (
        _rounded(*each)
        for each in zip((x, layer.weight, arriving), scales, (E4M3, E4M3, E5M2), strict=True)
    )
    wanted = {
        "y": (y, x64 @ w64.t() + layer.bias.double()),
        "x": (x.grad, (g64 @ w64)),
        "weight": (layer.weight.grad, g64.flatten(0, 1).t() @ x64.flatten(0, 1)),
        "bias": (layer.bias.grad, arriving.double().sum((0, 1))),
    }
    for name, (got, exact) in wanted.items():
        assert (got.double() - exact).abs().max() <= 1e-5 * exact.abs().max(), name


def _rounded(tensor, known, dtype):
    """Round with ml_dtypes, by a scale worked out here."""
    values = tensor.detach().numpy()
    largest = np.float32(torch.finfo(dtype).max)
    scale = np.float32(np.abs(values).max() if known is None else known) / largest
    stored = np.clip(values / scale, -largest, largest).astype(NUMPY[dtype])
    return torch.from_numpy(stored.astype(np.float64) * np.float64(scale))


def test_the_layer_keeps_a_byte_a_number_for_backward_and_follows_its_input():
    layer = Fp8Linear(64, 32, bias=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = layer(torch.randn(16, 64, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert sorted(t.nbytes for t in kept if t.numel() > 1) == [16 * 64, 32 * 64]


def test_it_shares_the_weights_of_the_layer_that_it_replaces_and_is_saved():
    linear = nn.Linear(8, 4).eval()
    layer = Fp8Linear.from_linear(linear, scaling=DelayedScaling)
    assert layer.weight is linear.weight and layer.bias is linear.bias and not layer.training
    assert layer.input_scaling.history.device.type == "cpu"
    layer.train()(torch.ones(1, 8))
    fresh = Fp8Linear(8, 4, scaling=DelayedScaling)
    fresh.load_state_dict(layer.state_dict())
    assert fresh.input_scaling.history[0] == 1
    half = Fp8Linear(16, 16, scaling=DelayedScaling).to(torch.bfloat16)
    for _ in range(2):
        half(torch.randn(4, 16, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert half.input_scaling.history.dtype is torch.float32 and half.weight.grad.isfinite().all()


def test_frozen_weights_and_inputs_get_no_gradient():
    layer = Fp8Linear(8, 4).requires_grad_(False)
    x = torch.ones(2, 8, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and layer.weight.grad is None
    layer.requires_grad_(True)
    layer(x.detach()).sum().backward()
    assert layer.weight.grad is not None
