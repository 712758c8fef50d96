"""Rotations against SciPy's Hadamard matrix; rounded layers against products of operands that
are rounded one by one here.
"""

import pytest
import scipy.linalg
import torch
from torch import nn

from amp_course.bits import BF16
from amp_course.frontiers import MXFP4, MXFP8_E4M3, fp8, quantize
from amp_course.frontiers.fp8 import E4M3, CurrentScaling, DelayedScaling, to_fp8
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.hadamard import hadamard, random_signs, rotate
from amp_course.frontiers.layers import (
    ByBlocks,
    OneScale,
    Operands,
    Rotated,
    Rounded,
    Unscaled,
    replace_layers,
)
from amp_course.kit.models import DigitsResNet

BLOCKS = Operands(*[ByBlocks(MXFP4)] * 3)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_matrix_is_scipys(size):
    wanted = torch.from_numpy(scipy.linalg.hadamard(size)).float() / size**0.5
    assert torch.allclose(hadamard(size), wanted)


@pytest.mark.parametrize("size", [0, 3, 0.5])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="powers of two"):
        rotate(torch.ones(48), size)


@pytest.mark.parametrize("shape", [(4, 64), (3, 40), (2, 7), (5, 1)])
def test_a_rotation_keeps_norms_and_cancels_in_a_product(shape):
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    signs = random_signs(32, seed=5)
    turned = rotate(x, 32, signs=signs)
    assert turned.shape == x.shape and torch.allclose(turned.norm(), x.norm())
    assert torch.allclose(turned @ rotate(w, 32, signs=signs).t(), x @ w.t(), atol=1e-6)
    assert shape[1] == 1 or not torch.allclose(turned, x)
    assert torch.allclose(rotate(x.t(), 32, dim=0, signs=signs), turned.t())
    assert rotate(x.half()).dtype == torch.float16


def by_hand(x, weight, gradient, round_):
    """Return the three products of a linear layer in float64,
    each operand rounded along the dimension that is summed over.
    """
    y = round_(x, 1).double() @ round_(weight, 1).double().t()
    of_x = round_(gradient, 1).double() @ round_(weight, 0).double()
    of_weight = round_(gradient, 0).double().t() @ round_(x, 0).double()
    return y, of_x, of_weight


@pytest.mark.parametrize("block_format", [MXFP4, MXFP8_E4M3])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_linear_layer_rounds_along_what_it_sums_over(block_format, rotated):
    torch.manual_seed(0)
    linear = nn.Linear(40, 24)
    operand = ByBlocks(block_format)
    layer = Rounded(linear, Operands(*[Rotated(operand) if rotated else operand] * 3))
    x, gradient = torch.randn(36, 40, requires_grad=True), torch.randn(36, 24)
    y = layer(x.view(4, 9, 40))
    y.backward(gradient.view(4, 9, 24))

    def round_(tensor, dim):
        turned = tensor.detach()
        if rotated:
            turned = rotate(turned, 32, dim, random_signs(32, 0))
        return quantize(turned, block_format, dim)

    exact = by_hand(x, linear.weight, gradient, round_)
    found = (y.view(36, 24) - linear.bias, x.grad, linear.weight.grad)
    for got, wanted in zip(found, exact, strict=True):
        assert torch.allclose(got.double(), wanted, atol=1e-4)
    plain = x.detach().double() @ linear.weight.double().t()
    assert (exact[0] - plain).norm() / plain.norm() > 0.01  # the rounding is there


def test_a_convolution_is_a_linear_layer_where_its_kernel_is_one_pixel():
    torch.manual_seed(0)
    convolution = nn.Conv2d(40, 24, 1)
    x, gradient = torch.randn(36, 40, 1, 1, requires_grad=True), torch.randn(36, 24, 1, 1)
    Rounded(convolution, BLOCKS)(x).backward(gradient)
    flat = [one.detach().flatten(1) for one in (x, convolution.weight, gradient)]
    _, of_x, of_weight = by_hand(*flat, lambda tensor, dim: quantize(tensor, MXFP4, dim))
    assert torch.allclose(x.grad.flatten(1).double(), of_x, atol=1e-4)
    assert torch.allclose(convolution.weight.grad.flatten(1).double(), of_weight, atol=1e-4)


@pytest.mark.parametrize(
    ("plain", "shape"),
    [
        (nn.Linear(6, 5), (4, 6)),
        (nn.Conv2d(6, 5, 3, stride=2, padding=1, dilation=2), (4, 6, 9, 9)),
    ],
    ids=["linear", "convolution"],
)
def test_without_rounding_they_are_torchs_own(plain, shape):
    layer = Rounded(plain, Operands(*[lambda tensor, dim: tensor] * 3))
    x = torch.randn(shape, requires_grad=True)
    found = []
    for one in (plain, layer):
        x.grad = None
        one.zero_grad()
        y = one(x)
        y.square().sum().backward()
        found.append([y, x.grad.clone(), plain.weight.grad.clone(), plain.bias.grad.clone()])
    for wanted, got in zip(*found, strict=True):
        assert torch.allclose(wanted, got, atol=1e-5)


def test_what_does_not_depend_on_the_dimension_is_rounded_once():
    calls = []

    def operand(tensor, dim):
        calls.append(tensor.shape)
        return tensor.bfloat16().float()

    layer = Rounded(nn.Linear(8, 4), Operands(operand, operand, operand, by_dimension=False))
    layer(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert [tuple(shape) for shape in calls] == [(2, 8), (4, 8), (2, 4)]


def test_operands_by_name():
    x = torch.tensor([1.0 + 2**-9, 300.0])
    assert torch.equal(Unscaled(BF16)(x, 0), x.bfloat16().float())
    assert OneScale(E4M3, CurrentScaling())(x, 0).tolist() == pytest.approx(x.tolist(), rel=0.03)
    first, second = (ByBlocks(MXFP4, "stochastic", seed=3) for _ in range(2))
    many = torch.rand(64, 64)
    drawn = first(many, 1)
    assert torch.equal(drawn, second(many, 1)) and not torch.equal(drawn, first(many, 1))


def test_the_networks_of_the_course_train_with_them():
    model = DigitsResNet(8)
    model.extra = model.head  # a layer in two places is replaced in both
    replace_layers(model, lambda layer: Rounded(layer, BLOCKS))
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(Rounded) == 6 and model.extra is model.head
    model(torch.rand(4, 1, 8, 8)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_wrong_input_is_refused():
    whole = torch.ones(2, 8, dtype=torch.int64)
    for refused in (rotate, Fp8Linear(8, 4), lambda x: to_fp8(x, torch.tensor(1.0))):
        with pytest.raises(TypeError, match=r"this one is torch\.int64: convert it with"):
            refused(whole)


def test_autocast_changes_no_arithmetic_in_here(monkeypatch):
    monkeypatch.setattr(fp8, "_problem", lambda device: "simulated for the test")
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 32, bias=False), torch.randn(16, 64) * 1e3
    for layer in (Fp8Linear.from_linear(linear), Rounded(linear, BLOCKS)):
        plain = layer(x)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert torch.equal(layer(x), plain) and plain.dtype is torch.float32
                assert rotate(x).dtype is torch.float32


@pytest.mark.parametrize(
    ("plain", "shape"), [(nn.Linear(32, 16), (4, 32)), (nn.Conv2d(4, 8, 3), (2, 4, 8, 8))]
)
def test_the_result_has_the_dtype_of_the_input(plain, shape):
    layer, x = Rounded(plain, BLOCKS).bfloat16(), torch.randn(shape).bfloat16().requires_grad_()
    y = layer(x)
    y.float().sum().backward()
    assert {y.dtype, x.grad.dtype, layer.weight.grad.dtype} == {torch.bfloat16}


def test_delayed_scales_stop_and_are_saved_with_their_layer():
    def layer():
        scales = (OneScale(E4M3, DelayedScaling(4)) for _ in range(3))
        return Rounded(nn.Linear(8, 4), Operands(*scales, by_dimension=False))

    first, fresh = layer(), layer()
    first(torch.full((2, 8), 3.0))
    history = first.scalings[0].history.clone()
    assert history[0] == 3
    first.eval()(torch.full((2, 8), 9.0))
    assert torch.equal(first.scalings[0].history, history)
    fresh.load_state_dict(first.state_dict())
    assert torch.equal(fresh.operands.inputs.scaling.history, history)


def test_the_first_call_decides_nothing_for_later_ones():
    with torch.inference_mode():
        rotate(torch.ones(16), 16, signs=random_signs(16))
    x = torch.ones(16, requires_grad=True)
    rotate(x, 16, signs=random_signs(16)).sum().backward()
    hadamard(16).mul_(5)
    assert x.grad is not None
    assert torch.allclose(hadamard(16) @ hadamard(16), torch.eye(16), atol=1e-6)
