"""Rotations against SciPy's Hadamard matrix; rounded layers against products of operands that
are rounded one by one here.
"""

import pytest
import scipy.linalg
import torch
from torch import nn

from amp_course.bits import BF16
from amp_course.frontiers import MXFP4, MXFP8_E4M3, fp8, quantize
from amp_course.frontiers.fp8 import DelayedScaling, to_fp8
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.hadamard import hadamard, random_signs, rotate
from amp_course.frontiers.layers import Operands, RoundedConv2d, RoundedLinear, replace_layers
from amp_course.frontiers.operands import ByBlocks, OneScale, Rotated, Unscaled
from amp_course.kit.models import CharGPT, DigitsResNet


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_matrix_is_scipys(size: int) -> None:
    assert torch.allclose(
        hadamard(size), torch.from_numpy(scipy.linalg.hadamard(size)).float() / size**0.5
    )


@pytest.mark.parametrize("size", [0, 3, -4, 0.5])
def test_other_sizes_are_refused(size) -> None:
    with pytest.raises(ValueError, match="powers of two"):
        hadamard(size)


@pytest.mark.parametrize("shape", [(4, 64), (3, 40), (2, 7), (5, 1), (2, 0)])
def test_a_rotation_keeps_norms_and_cancels_in_a_product(shape) -> None:
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    signs = random_signs(32, seed=5)
    turned = rotate(x, 32, signs=signs)
    assert turned.shape == x.shape and torch.allclose(turned.norm(), x.norm())
    assert torch.allclose(turned @ rotate(w, 32, signs=signs).t(), x @ w.t(), atol=1e-6)
    if shape[1] > 1:
        assert not torch.allclose(turned, x)
    assert torch.allclose(rotate(x.t(), 32, dim=0, signs=signs), turned.t())


def test_it_spreads_an_outlier() -> None:
    x = torch.zeros(32)
    x[5] = 8.0
    assert torch.allclose(rotate(x).abs(), torch.full((32,), 8 / 32**0.5))


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
def test_a_linear_layer_rounds_along_what_it_sums_over(block_format, rotated: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(40, 24)
    operand = ByBlocks(block_format)
    layer = RoundedLinear(linear, Operands(*[Rotated(operand) if rotated else operand] * 3))
    x, gradient = torch.randn(36, 40, requires_grad=True), torch.randn(36, 24)
    y = layer(x.view(4, 9, 40))
    y.backward(gradient.view(4, 9, 24))

    def round_(tensor, dim):
        turned = (
            rotate(tensor.detach(), 32, dim, random_signs(32, 0)) if rotated else tensor.detach()
        )
        return quantize(turned, block_format, dim)

    exact = by_hand(x, linear.weight, gradient, round_)
    for got, wanted in zip(
        (y.view(36, 24) - linear.bias, x.grad, linear.weight.grad), exact, strict=True
    ):
        assert torch.allclose(got.double(), wanted, atol=1e-4)
    plain = x.detach().double() @ linear.weight.double().t()
    assert (exact[0] - plain).norm() / plain.norm() > 0.01  # the rounding is there


def test_a_convolution_is_a_linear_layer_where_its_kernel_is_one_pixel() -> None:
    torch.manual_seed(0)
    convolution, operand = nn.Conv2d(40, 24, 1), ByBlocks(MXFP4)
    layer = RoundedConv2d(convolution, Operands(operand, operand, operand))
    x, gradient = torch.randn(36, 40, 1, 1, requires_grad=True), torch.randn(36, 24, 1, 1)
    layer(x).backward(gradient)
    weight = convolution.weight.detach().flatten(1)
    _, of_x, of_weight = by_hand(
        x.detach().flatten(1),
        weight,
        gradient.flatten(1),
        lambda tensor, dim: quantize(tensor, MXFP4, dim),
    )
    assert torch.allclose(x.grad.flatten(1).double(), of_x, atol=1e-4)
    assert torch.allclose(convolution.weight.grad.flatten(1).double(), of_weight, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_without_rounding_they_are_torchs_own(kind: str) -> None:
    torch.manual_seed(0)
    plain = (
        nn.Linear(6, 5) if kind == "linear" else nn.Conv2d(6, 5, 3, stride=2, padding=1, dilation=2)
    )
    as_it_is = Operands(*[lambda tensor, dim: tensor] * 3)
    layer = RoundedLinear(plain, as_it_is) if kind == "linear" else RoundedConv2d(plain, as_it_is)
    x = (
        torch.randn(4, 6, requires_grad=True)
        if kind == "linear"
        else torch.randn(4, 6, 9, 9, requires_grad=True)
    )
    found = []
    for one in (plain, layer):
        x.grad = None
        one.zero_grad()
        y = one(x)
        y.square().sum().backward()
        found.append(
            [y.detach(), x.grad.clone(), plain.weight.grad.clone(), plain.bias.grad.clone()]
        )
    for wanted, got in zip(*found, strict=True):
        assert torch.allclose(wanted, got, atol=1e-5)


def test_what_does_not_depend_on_the_dimension_is_rounded_once() -> None:
    calls = []

    def operand(tensor, dim):
        calls.append(tensor.shape)
        return tensor.bfloat16().float()

    layer = RoundedLinear(nn.Linear(8, 4), Operands(operand, operand, operand, by_dimension=False))
    layer(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert [tuple(shape) for shape in calls] == [(2, 8), (4, 8), (2, 4)]


def test_operands_by_name() -> None:
    x = torch.tensor([1.0 + 2**-9, 300.0])
    assert torch.equal(Unscaled(BF16)(x, 0), x.bfloat16().float())
    assert OneScale()(x, 0).tolist() == pytest.approx([1.0045, 300.0], rel=0.03)
    delayed = OneScale(scaling=DelayedScaling())
    delayed(x, 0)
    assert delayed.scaling.history[0] == 300
    with_draws = ByBlocks(MXFP4, "stochastic", seed=3)
    again = ByBlocks(MXFP4, "stochastic", seed=3)
    many = torch.rand(64, 64)
    assert torch.equal(first := with_draws(many, 1), again(many, 1)) and not torch.equal(
        first, with_draws(many, 1)
    )


def test_layers_are_replaced_but_for_those_to_keep() -> None:
    model = CharGPT(10, 8, layers=2, heads=1, width=8)
    operands = Operands(*[Unscaled(BF16)] * 3)

    def make(module):
        return RoundedLinear(module, operands) if isinstance(module, nn.Linear) else None

    assert replace_layers(model, make, keep=["head", "blocks.0.qkv"]) == 7
    assert isinstance(model.head, nn.Linear) and isinstance(model.blocks[0].qkv, nn.Linear)
    assert isinstance(model.blocks[1].qkv, RoundedLinear)
    model(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()
    with pytest.raises(ValueError, match=r"no module is called tail: choose names"):
        replace_layers(model, make, keep=["tail"])


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"padding_mode": "circular", "padding": 1}, {"padding": "same"}]
)
def test_convolutions_that_cannot_be_rounded_are_refused(options) -> None:
    with pytest.raises(ValueError, match="one group, padded by a number of zeros"):
        RoundedConv2d(nn.Conv2d(4, 4, 3, **options), Operands(*[Unscaled(BF16)] * 3))


def test_the_networks_of_the_course_train_with_them() -> None:
    model = DigitsResNet(8)
    operand = ByBlocks(MXFP4)
    count = replace_layers(
        model,
        lambda m: RoundedConv2d(m, Operands(*[operand] * 3)) if isinstance(m, nn.Conv2d) else None,
    )
    assert count == 5
    model(torch.rand(4, 1, 8, 8)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,)])
def test_an_empty_batch_and_a_single_row(shape) -> None:
    operand = ByBlocks(MXFP4)
    for layer in (RoundedLinear(nn.Linear(8, 4), Operands(*[operand] * 3)), Fp8Linear(8, 4)):
        x = torch.ones(shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.shape == (*shape[:-1], 4) and x.grad.shape == shape
        assert layer.weight.grad.isfinite().all()


def test_integers_are_refused_and_dimensions_checked() -> None:
    whole = torch.ones(2, 8, dtype=torch.int64)
    for refused in (
        lambda: rotate(whole),
        lambda: Fp8Linear(8, 4)(whole),
        lambda: to_fp8(whole, torch.tensor(1.0)),
    ):
        with pytest.raises(
            TypeError, match=r"this one is torch\.int64: convert it with \.float\(\)"
        ):
            refused()
    with pytest.raises(IndexError, match="Dimension out of range"):
        rotate(torch.ones(2, 8), dim=2)
    half = torch.randn(4, 32).half()
    assert rotate(half).dtype == torch.float16 and torch.allclose(
        rotate(rotate(half)).float(), half.float(), atol=0.02
    )


def test_autocast_changes_no_arithmetic_in_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "_problem", lambda device: "told to simulate")
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 32, bias=False), torch.randn(16, 64) * 1e3
    operand = ByBlocks(MXFP4)
    for layer in (Fp8Linear.from_linear(linear), RoundedLinear(linear, Operands(*[operand] * 3))):
        plain = layer(x)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert torch.equal(layer(x), plain) and plain.dtype is torch.float32
                assert rotate(x).dtype is torch.float32


def test_the_result_has_the_dtype_of_the_input() -> None:
    operand = ByBlocks(MXFP4)
    linear = RoundedLinear(nn.Linear(32, 16), Operands(*[operand] * 3)).bfloat16()
    convolution = RoundedConv2d(nn.Conv2d(4, 8, 3), Operands(*[operand] * 3)).bfloat16()
    for layer, x in ((linear, torch.randn(4, 32)), (convolution, torch.randn(2, 4, 8, 8))):
        low = x.bfloat16().requires_grad_()
        y = layer(low)
        y.float().sum().backward()
        assert (
            y.dtype is torch.bfloat16
            and low.grad.dtype is torch.bfloat16
            and layer.weight.grad.dtype is torch.bfloat16
        )


def test_delayed_scales_move_stop_and_are_saved_with_their_layer() -> None:
    def operands() -> Operands:
        return Operands(
            *(OneScale(scaling=DelayedScaling(4)) for _ in range(3)), by_dimension=False
        )

    layer = RoundedLinear(nn.Linear(8, 4), operands())
    layer(torch.full((2, 8), 3.0))
    history = layer.scalings[0].history.clone()
    assert history[0] == 3
    layer.eval()(torch.full((2, 8), 9.0))
    assert torch.equal(layer.scalings[0].history, history)
    fresh = RoundedLinear(nn.Linear(8, 4), operands())
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh.operands.inputs.scaling.history, history)
    half = Fp8Linear(16, 16, scaling=DelayedScaling).to(torch.bfloat16)
    for _ in range(3):
        half(torch.randn(4, 16, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert half.input_scaling.history.dtype is torch.float32 and half.weight.grad.isfinite().all()
    half.load_state_dict(nn.Linear(16, 16).state_dict())  # has no history


def test_a_layer_in_several_places_is_replaced_in_all_and_what_is_kept_is_kept_whole() -> None:
    model = nn.Module()
    model.a = model.b = nn.Linear(8, 8)
    model.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    operands = Operands(*[Unscaled(BF16)] * 3)

    def make(module: nn.Module) -> nn.Module | None:
        return RoundedLinear(module, operands) if isinstance(module, nn.Linear) else None

    assert replace_layers(model, make, keep=["head"]) == 1
    assert (
        model.a is model.b
        and isinstance(model.a, RoundedLinear)
        and isinstance(model.head[0], nn.Linear)
    )
    with pytest.raises(TypeError, match=r"write keep=\['head'\]"):
        replace_layers(model, make, keep="head")
    with pytest.raises(ValueError, match="the model is a Linear itself"):
        replace_layers(nn.Linear(2, 2), make)


def test_other_modules_and_single_pictures_are_refused() -> None:
    operands = Operands(*[Unscaled(BF16)] * 3)
    with pytest.raises(TypeError, match="this is a Conv2d"):
        RoundedLinear(nn.Conv2d(1, 1, 1), operands)
    with pytest.raises(TypeError, match="this is a ConvTranspose2d"):
        RoundedConv2d(nn.ConvTranspose2d(1, 1, 1), operands)
    with pytest.raises(ValueError, match=r"use x\[None\]"):
        RoundedConv2d(nn.Conv2d(1, 1, 1), operands)(torch.zeros(1, 4, 4))
    for size in (24, 0):
        with pytest.raises(ValueError, match="powers of two"):
            rotate(torch.ones(48), size)
    with pytest.raises(ValueError, match="need 32 of them"):
        rotate(torch.ones(64), 32, signs=torch.ones(16))
    assert "in_features=8, out_features=4" in repr(RoundedLinear(nn.Linear(8, 4), operands))


def test_the_first_call_decides_nothing_for_later_ones() -> None:
    with torch.inference_mode():
        rotate(torch.ones(16), 16, signs=random_signs(16))
    x = torch.ones(16, requires_grad=True)
    rotate(x, 16, signs=random_signs(16)).sum().backward()
    hadamard(16).mul_(5)
    assert x.grad is not None and torch.allclose(
        hadamard(16) @ hadamard(16), torch.eye(16), atol=1e-6
    )
