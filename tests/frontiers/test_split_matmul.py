"""Pieces of bf16 against exact fractions and ml_dtypes;
errors of matmuls against bounds derived from the formats, in fp64.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amp_course.bits import BF16, FP16, FP32, TF32
from amp_course.frontiers.mismatch_figures import split_figure
from amp_course.frontiers.split_matmul import (
    BF16X1,
    BF16X3,
    BF16X6,
    BF16X9,
    EXACT_FROM,
    PLAIN,
    SCHEMES,
    TF32X1,
    Scheme,
    compare,
    matmul,
    split_bf16,
)

fp32_numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def fractions(tensor):
    return [Fraction(x) for x in tensor.flatten().tolist()]


@given(st.lists(fp32_numbers, min_size=1, max_size=40))
def test_three_pieces_sum_to_the_number(numbers) -> None:
    x = torch.tensor(numbers, dtype=torch.float32)
    pieces = split_bf16(x)
    for piece in pieces:
        as_bf16 = piece.numpy().astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(piece.numpy(), as_bf16)  # each has a value of bf16
    for number, parts in zip(
        x.tolist(), zip(*(piece.tolist() for piece in pieces), strict=True), strict=True
    ):
        if not math.isfinite(parts[0]):
            assert abs(number) >= (2 - 2**-8) * 2.0**127 and parts[1:] == (0, 0)
            continue
        error = abs(Fraction(number) - sum(map(Fraction, parts)))
        assert error == 0 if abs(number) >= EXACT_FROM else error <= Fraction(1, 2**134)


@pytest.mark.parametrize(("parts", "left"), [(1, 8), (2, 17)])
def test_one_and_two_pieces_leave_a_known_rest(parts: int, left: int) -> None:
    significands = (
        torch.arange(2**23, dtype=torch.int32)[::37] + 0x3F800000
    )  # all of [1, 2), thinned
    x = torch.cat(
        [
            significands.view(torch.float32),
            torch.tensor([1 + 2**-8, 1 + 2**-8 + 2**-23, 2 - 2**-23]),
        ]
    )
    rest = x.double() - sum(piece.double() for piece in split_bf16(x, parts))
    assert (rest.abs() <= 2.0**-left * x.double()).all()
    assert (rest.abs() > 0.99 * 2.0**-left).any()  # and no less is true


def test_the_numbers_around_the_limits() -> None:
    exact = torch.tensor([EXACT_FROM * (1 + 2**-23), EXACT_FROM * (2 - 2**-23), 0.0])
    assert fractions(exact) == [
        sum(map(Fraction, parts))
        for parts in zip(*map(torch.Tensor.tolist, split_bf16(exact)), strict=True)
    ]
    below = torch.tensor([EXACT_FROM / 2 * (1 + 2**-23)])  # its last bit is worth 2^-134
    assert fractions(below)[0] - sum(
        Fraction(piece.item()) for piece in split_bf16(below)
    ) == Fraction(1, 2**134)
    largest_kept = torch.tensor(np.nextafter(np.float32((2 - 2**-8) * 2.0**127), np.float32(0)))
    assert sum(Fraction(piece.item()) for piece in split_bf16(largest_kept)) == Fraction(
        largest_kept.item()
    )
    for number in (math.inf, -math.inf, (2 - 2**-8) * 2.0**127, FP32.max):
        first, *others = (piece.item() for piece in split_bf16(torch.tensor(number)))
        assert first == math.copysign(math.inf, number) and others == [0, 0]
    first, *others = (piece.item() for piece in split_bf16(torch.tensor(math.nan)))
    assert math.isnan(first) and others == [0, 0]


def test_which_products_are_taken() -> None:
    assert BF16X3.pairs == ((0, 0), (0, 1), (1, 0))
    assert set(BF16X6.pairs) == {(i, j) for i in range(3) for j in range(3) if i + j <= 2}
    assert len(BF16X9.pairs) == 9


def test_what_is_left_out() -> None:
    expected = {BF16X1: 2**-7, TF32X1: 2**-10, BF16X3: 2**-15, BF16X6: 2**-24, BF16X9: 0, PLAIN: 0}
    assert {scheme: scheme.left_out for scheme in SCHEMES} == {
        scheme: pytest.approx(value, rel=0.01) for scheme, value in expected.items()
    }


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_single_products_stay_within_what_is_left_out(scheme: Scheme) -> None:
    """A dot product of one term: no sums but those of the products,
    and the error an exact fraction.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(800, 1, 1, generator=generator) + 1 for _ in range(2))
    a[:3, 0, 0] = torch.tensor([1 + 2**-8, 1 + 2**-11, 1 + 2**-8 + 2**-17])
    b[:3] = a[:3]
    got = torch.stack([matmul(x, y, scheme) for x, y in zip(a, b, strict=True)])
    worst = max(
        abs(x * y - z) / (x * y)
        for x, y, z in zip(fractions(a), fractions(b), fractions(got), strict=True)
    )
    assert worst <= Fraction(scheme.bound(1))
    assert worst > Fraction(scheme.left_out) / 4


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.0**-40, 2.0**40])
def test_errors_of_matmuls_are_below_their_bounds_and_in_order(
    positive: bool, scale: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    draw = torch.rand if positive else torch.randn
    a, b = draw(48, 200, generator=generator) * scale, draw(200, 40, generator=generator)
    errors = {error.scheme: error for error in compare(a, b)}
    for scheme, error in errors.items():
        assert 0 < error.typical <= error.largest <= error.bound == scheme.bound(200)
    one, tf32, three, six = (errors[scheme].typical for scheme in (BF16X1, TF32X1, BF16X3, BF16X6))
    assert 5 < one / tf32 < 12  # 8 bits against 11: 2^3
    assert 16 < tf32 / three < 256  # 11 against 16, and the sign of a remainder
    assert three / six > (
        2 if positive else 16
    )  # of positive numbers the sums, all rounded to fp32, are the larger error


def test_weights_of_a_layer_are_as_random_numbers(one_thread: None) -> None:
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 128, 64)
    torch.nn.init.uniform_(layer.weight, -0.1, 0.1, generator=torch.Generator().manual_seed(2))
    x = torch.rand(32, 128, generator=torch.Generator().manual_seed(3)).relu()
    for error in compare(x, layer.weight.detach().T):
        assert error.largest <= error.bound


def test_integers_come_out_exactly_where_their_bits_fit() -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = (
        torch.randint(-999, 1000, size, generator=generator) for size in ((8, 16), (16, 8))
    )  # 10 bits
    exact = (a @ b).float()  # below 2^24
    assert all(
        torch.equal(matmul(a.float(), b.float(), s), exact) for s in (TF32X1, BF16X6, BF16X9, PLAIN)
    )
    assert not torch.equal(matmul(a.float(), b.float(), BF16X1), exact)


def test_infinities_zeros_and_empty_matrices() -> None:
    assert matmul(torch.full((1, 1), math.inf), torch.ones(1, 1), BF16X1).item() == math.inf
    assert math.isnan(
        matmul(torch.full((1, 1), math.inf), torch.ones(1, 1), BF16X3).item()
    )  # inf times a piece of 0
    assert all(error.largest == 0 for error in compare(torch.zeros(2, 3), torch.ones(3, 2)))
    assert matmul(torch.zeros(0, 3), torch.zeros(3, 2), BF16X9).shape == (0, 2)


def test_the_setting_for_matmuls_leaves_pieces_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(64, 64, generator=generator), torch.randn(64, 64, generator=generator)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        errors = compare(a, b, (BF16X3, BF16X9))
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(error.largest <= error.bound for error in errors)


def test_bad_input_is_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match=r"this is torch\.float64: convert it"):
        split_bf16(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(TypeError, match="this is list"):
        split_bf16([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 parts: take 1, 2 or 3"):
        split_bf16(torch.zeros(1), 4)
    with pytest.raises(ValueError, match="10 products: 3 pieces of each operand have 1 to 9"):
        Scheme("bf16×10", BF16, 3, 10)
    with pytest.raises(ValueError, match="0 pieces"):
        Scheme("none", BF16, 0)


def test_the_figure_shows_every_error_and_its_bound() -> None:
    generator = torch.Generator().manual_seed(6)
    errors = compare(torch.rand(4, 8, generator=generator), torch.rand(8, 4, generator=generator))
    figure = split_figure(errors)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "fp32: 1 matmul", "bf16×9: 9 matmuls", "bf16×6: 6 matmuls", "bf16×3: 3 matmuls", "TF32: 1 "
        "matmul", "bf16×1: "
        "1 matmul",
    ]  # fmt: skip
    drawn = {marker: [] for marker in "ox|"}
    for line in axis.lines:
        if line.get_marker() in drawn:
            drawn[line.get_marker()].append(line.get_xdata()[0])
    assert drawn["o"] == [error.typical for error in errors[::-1]]
    assert drawn["x"] == [error.largest for error in errors[::-1]]
    assert drawn["|"] == [error.bound for error in errors[::-1]]
    assert axis.get_xscale() == "log"
    assert all(
        f"{error.scheme.name} {error.typical:.1e} and {error.largest:.1e}" in figure.alt
        for error in errors
    )


def test_other_formats_and_dtypes_are_refused_and_autocast_changes_nothing() -> None:
    for operand, pieces in ((TF32, 2), (FP16, 1), (FP32, 3)):
        with pytest.raises(ValueError, match="a single one in bf16, TF32 or fp32"):
            Scheme("other", operand, pieces)
    a, b = torch.randn(8, 16), torch.randn(16, 8)
    for scheme in SCHEMES:
        plain = matmul(a, b.requires_grad_(), scheme)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (
                torch.equal(matmul(a, b, scheme), plain)
                and plain.dtype is torch.float32
                and not plain.requires_grad
            )
        with pytest.raises(
            TypeError, match=r"only float32 is multiplied, and this is torch\.float64"
        ):
            matmul(a.double(), b.double(), scheme)
