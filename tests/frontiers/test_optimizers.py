"""bf16 and 8-bit optimizers, against torch's own in fp32, against loops over exact fractions,
and against a slow table search.
"""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from amp_course.frontiers.bf16_optimizers import Bf16AdamW, Bf16SGD
from amp_course.frontiers.eight_bit import (
    BLOCK,
    AdamW8bit,
    dynamic_table,
    from_eight_bit,
    to_eight_bit,
)


def gradients(count, shape=(7, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (lambda p: Bf16SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            lambda p: Bf16AdamW(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
        ),
        (
            lambda p: AdamW8bit(p, lr=0.01, weight_decay=0.1),  # below `smallest`: in fp32
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
def test_in_fp32_they_are_torchs_own(ours, torchs):
    a = nn.Parameter(gradients(1, seed=9)[0])
    b = nn.Parameter(a.detach().clone())
    first, second = ours([a]), torchs([b])
    for gradient in gradients(20):
        a.grad, b.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def nearest_bf16(value):
    return Fraction(float(torch.tensor(float(value), dtype=torch.float64).bfloat16()))


def test_kahan_is_the_sum_with_a_second_number_in_exact_fractions():
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.bfloat16))
    optimizer = Bf16SGD([weight], lr=2.0**-12, rounding="kahan")
    value, carried = Fraction(1), Fraction(0)
    for step in range(100):
        gradient = -1.0 if step % 3 else 2.5
        weight.grad = torch.tensor([gradient], dtype=torch.bfloat16)
        optimizer.step()
        wanted = -(Fraction(2) ** -12) * Fraction(gradient) + carried
        after = nearest_bf16(value + wanted)
        carried = nearest_bf16(wanted - (after - value))
        value = after
        assert float(weight.detach()) == value
        assert float(optimizer.state[weight]["compensation"]) == carried


@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "kahan"])
@pytest.mark.parametrize(
    "make", [Bf16SGD, lambda p, **how: Bf16AdamW(p, weight_decay=0.0, **how)], ids=["SGD", "AdamW"]
)
def test_small_updates_arrive_unless_they_are_rounded_to_nearest(make, rounding):
    weight = nn.Parameter(torch.ones(400, dtype=torch.bfloat16))
    optimizer = make([weight], lr=2.0**-12, rounding=rounding)
    for _ in range(256):  # of 2^-12 each, a sixteenth of the way to the next number: in all 2^-4
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
    moved = float(weight.detach().float().mean()) - 1
    assert moved == 0 if rounding == "nearest" else moved == pytest.approx(2**-4, rel=0.05)
    tensors = [weight, *optimizer.state[weight].values()]
    assert {one.dtype for one in tensors if isinstance(one, torch.Tensor)} == {torch.bfloat16}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Bf16SGD(p, lr=0.01, rounding="stochastic", seed=4),
        lambda p: Bf16AdamW(p, lr=0.01, rounding="kahan"),
        lambda p: AdamW8bit(p, lr=0.01, smallest=1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_saved_or_copied_training_goes_on_bit_for_bit(make, dtype, tmp_path):
    whole = nn.Parameter(gradients(1, (20, 30))[0].to(dtype))
    optimizer = make([whole])
    todo = gradients(8, (20, 30), seed=1)
    for step, gradient in enumerate(todo):
        if step == 4:
            torch.save([whole.detach(), optimizer.state_dict()], tmp_path / "saved.pt")
            copied = copy.deepcopy((whole, optimizer))
        whole.grad = gradient.to(dtype)
        optimizer.step()
    weights, state = torch.load(tmp_path / "saved.pt", weights_only=False)
    resumed = nn.Parameter(weights)
    second = make([resumed])
    second.load_state_dict(state)
    for weight, stepping in ((resumed, second), copied):
        for gradient in todo[4:]:
            weight.grad = gradient.to(dtype)
            stepping.step()
        assert torch.equal(weight, whole)


@pytest.mark.parametrize("make", [Bf16SGD, Bf16AdamW, AdamW8bit])
def test_a_rate_below_zero_and_an_unknown_rounding_are_refused(make):
    weight = nn.Parameter(torch.zeros(1))
    for rate in (-0.1, math.nan):
        with pytest.raises(ValueError, match="it has to be 0 or more"):
            make([weight], lr=rate)
    if make is not AdamW8bit:
        with pytest.raises(ValueError, match="choose “nearest”, “stochastic” or “kahan”"):
            make([weight], lr=0.1, rounding="up")


def test_parameters_without_a_gradient_and_closures():
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Bf16SGD([one, other], lr=0.5)

    def closure():
        loss = one.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert torch.equal(other, torch.ones(2)) and not torch.equal(one, torch.ones(2))


@pytest.mark.parametrize("signed", [True, False])
def test_each_number_of_a_block_becomes_the_nearest_of_the_table(signed):
    generator = torch.Generator().manual_seed(2)
    powers = torch.randint(-5, 3, (3, 400), generator=generator)
    x = torch.randn(3, 400, generator=generator) * 10.0**powers
    x[0, 256:] = 0.0
    x = x if signed else x.abs()
    codes, scales = to_eight_bit(x, signed=signed)
    back = from_eight_bit(codes, scales, x.shape, signed=signed)
    table = dynamic_table(signed).double().numpy()
    for start in range(0, x.numel(), BLOCK):
        block = x.flatten()[start : start + BLOCK].double().numpy()
        scale = np.abs(block).max()
        got = back.flatten()[start : start + BLOCK].double().numpy()
        distance = np.abs(block[:, None] / (scale or 1) - table).min(axis=1)
        if not signed:
            distance = np.where((block > 0) & (block < scale * table[1]), table[1], distance)
            assert np.array_equal(got == 0, block == 0)
        assert np.all(np.abs(got - block) <= scale * (distance + 1e-6)), start
    assert back.shape == x.shape and codes.nbytes + scales.nbytes == 5 * BLOCK + 5 * 4


def test_the_table_has_seven_decades():
    for signed in (True, False):
        table = dynamic_table(signed)
        positive = table[table > 0]
        assert len(table) == len(table.unique()) == 256 and table.max() == 1 and 0.0 in table
        counts = [
            int(((positive < 10.0**-n) & (positive >= 10.0 ** -(n + 1))).sum()) for n in range(7)
        ]
        assert counts == [(64 if signed else 128) >> n for n in range(7)]


def test_a_v_that_is_small_next_to_its_block_makes_no_huge_update():
    ours, theirs = (nn.Parameter(torch.zeros(4096)) for _ in range(2))
    optimizers = AdamW8bit([ours], lr=1e-3), torch.optim.AdamW([theirs], lr=1e-3)
    for step in range(3):
        gradient = torch.full((4096,), 1e-4 if step == 0 else 0.0)
        gradient[0] = 1.0
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert ours.detach().abs().max() <= theirs.detach().abs().max() * 1.01


@pytest.mark.parametrize("make", [Bf16AdamW, AdamW8bit])
def test_fp16_weights_are_taken_though_a_mean_of_squares_would_underflow(make):
    weight, exact = nn.Parameter(torch.ones(64).half()), nn.Parameter(torch.ones(64))
    optimizer = make([weight], lr=1e-3)
    torchs = torch.optim.AdamW([exact], lr=1e-3, betas=optimizer.defaults["betas"])
    for step in range(30):
        exact.grad = torch.full((64,), 1e-4 * (step != 20))
        weight.grad = exact.grad.half()
        optimizer.step()
        torchs.step()
    assert (weight.float() - exact).abs().max() < 0.02


@pytest.mark.parametrize("make", [Bf16AdamW, AdamW8bit])
def test_a_state_of_torchs_own_is_taken(make):
    big = nn.Parameter(torch.zeros(5000))
    big.grad = -torch.ones(5000)
    first, second = torch.optim.AdamW([big], lr=1e-3), make([big], lr=1e-3)
    first.step()
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        second.step()
    state = second.state[big]
    large = [one for one in state.values() if isinstance(one, torch.Tensor) and one.numel() >= 5000]
    kept = torch.float32 if make is Bf16AdamW else torch.uint8
    assert [one.dtype for one in large] == [kept] * 2
    assert float(big.detach()[0]) == pytest.approx(6e-3, rel=0.05)


def test_state_takes_two_bytes_a_weight_and_fp32_where_weights_are_few():
    weights = nn.Parameter(torch.zeros(64, 128)), nn.Parameter(torch.zeros(128))
    optimizer = AdamW8bit(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    state_bytes = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    assert state_bytes == 2 * 64 * 128 * (1 + 4 / BLOCK) + 2 * 4 * 128
