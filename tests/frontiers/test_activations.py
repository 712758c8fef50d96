"""Codes packed into bytes against numpy's packbits; 2-bit activations whose gradients are right
on average.
"""

import contextlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amp_course.frontiers.activations import CompressedActivations, is_weight
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.packing import compress, pack, unpack


@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_codes_are_packed_as_numpy_packs_their_bits(bits, data) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40))
    as_bits = [code >> n & 1 for code in codes for n in range(bits)]  # the lowest bit first
    packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
    assert packed.dtype == torch.uint8 and np.array_equal(
        packed.numpy(), np.packbits(np.array(as_bits, dtype=np.uint8), bitorder="little")
    )
    assert unpack(packed, len(codes), bits).tolist() == codes


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 100), (3, 5, 256), ()])
def test_every_number_lands_on_a_level_next_to_it(bits: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * 3 + 1
    packed = compress(x, bits, 64)
    back = packed.restore()
    assert back.shape == x.shape and back.dtype == x.dtype
    step = packed.step.float().repeat_interleave(64)[: x.numel()].view(x.shape)
    assert ((back - x).abs() <= step * (1 + 1e-6)).all()


def test_groups_of_equal_numbers_and_zeros_are_kept_exactly() -> None:
    x = torch.cat([torch.zeros(64), torch.full((64,), 0.5), torch.full((64,), 1 / 3)])
    back = compress(x, 2, 64).restore()
    assert torch.equal(back[:128], x[:128]) and (back[128:] - 1 / 3).abs().max() < 2**-9


def test_it_is_right_on_average() -> None:
    torch.manual_seed(0)
    x = torch.randn(512)
    generator = torch.Generator().manual_seed(1)
    draws = 3000
    mean = sum(compress(x, 2, 128, generator).restore().double() for _ in range(draws)) / draws
    step = compress(x, 2, 128).step.float().repeat_interleave(128)
    assert ((mean - x) / step).abs().max() < 5 * 0.5 / math.sqrt(draws)


def test_bytes() -> None:
    packed = compress(torch.randn(1024, 256), 2, 256)
    assert packed.nbytes == 1024 * (64 + 4) and 1024 * 256 * 4 / packed.nbytes > 15


def test_gradients_of_weights_are_right_on_average_and_those_of_inputs_exact() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 8)
    x = torch.randn(64, 64, requires_grad=True)
    inner = x * 1.0  # no leaf: an activation
    out = torch.randn(64, 8)
    exact = torch.autograd.grad(layer(inner), [layer.weight, inner], out, retain_graph=True)
    generator = torch.Generator().manual_seed(2)
    draws, total, squares = 400, torch.zeros(8, 64).double(), torch.zeros(8, 64).double()
    for _ in range(draws):
        with CompressedActivations(2, 64, generator=generator) as saved:
            result = layer(inner)
        weight, before = torch.autograd.grad(result, [layer.weight, inner], out, retain_graph=True)
        assert torch.equal(before, exact[1])  # it takes the weight alone, which is kept
        total += weight.double()
        squares += weight.double() ** 2
    assert 0 < saved.kept < saved.whole / 10
    mean = total / draws
    deviation = ((squares / draws - mean**2) / draws).sqrt()
    assert ((mean - exact[0]).abs() / deviation).max() < 5.5 and deviation.max() > 0


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights_and_their_casts_are_kept_and_never_written(dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    before = [p.detach().clone() for p in net.parameters()]
    seen: list[bool] = []

    class Watching(CompressedActivations):
        def _pack(self, tensor):
            seen.append(is_weight(tensor))
            return super()._pack(tensor)

    with Watching(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = net(torch.randn(32, 64)).float().square().mean()
    loss.backward()
    assert (
        seen.count(True) == 1
    )  # the second layer's; the first needs none, for its input has no gradient
    assert seen.count(False) >= 3
    assert all(torch.equal(a, p) for a, p in zip(before, net.parameters(), strict=True))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def gradient(
    net: nn.Module, x: torch.Tensor, saved: CompressedActivations | None = None
) -> torch.Tensor:
    """Return the gradient of all parameters for the mean of the squared outputs,
    the loss outside the hooks.
    """
    net.zero_grad()
    with saved or contextlib.nullcontext():
        out = net(x)
    out.square().mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double()


@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_through_relus_are_right_on_average(bits: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )
    x = torch.randn(64, 32)
    exact = gradient(net, x)
    saved = CompressedActivations(bits, 64, generator=torch.Generator().manual_seed(2))
    draws = torch.stack([gradient(net, x, saved) for _ in range(200)])
    deviation = draws.std(0) / math.sqrt(200)
    off = ((draws.mean(0) - exact) / deviation)[deviation > 0]
    assert (
        off.square().mean().sqrt() < 1.3
        and (draws.mean(0) - exact)[deviation == 0].abs().max() < 1e-6
    )


def test_zeros_stay_zeros_and_what_is_above_stays_above() -> None:
    x = torch.relu(torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    x[:512] = 0.0
    for bits in (2, 4, 8):
        back = compress(x, bits, 256).restore()
        assert torch.equal(back == 0, x == 0) and (back >= 0).all()
    mean = (
        sum(
            compress(x, 2, 256, torch.Generator().manual_seed(n)).restore().double()
            for n in range(2000)
        )
        / 2000
    )
    step = compress(x, 2, 256).step.float().repeat_interleave(256)[:5000]
    assert ((mean - x).abs() <= 5 * 0.5 * step / math.sqrt(2000) + 1e-9).all()


def test_what_several_ops_save_of_one_tensor_is_kept_and_counted_once() -> None:
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)
    )  # the ReLU's result is the input of the next layer
    inner = torch.randn(64, 64, requires_grad=True) * 1.0
    with CompressedActivations() as saved:
        net(inner)
    assert saved.whole == 2 * 64 * 64 * 4 and saved.whole / saved.kept > 15
    layers = [nn.Linear(64, 64) for _ in range(3)]
    with saved:
        outputs = [layer(inner) for layer in layers]
    assert saved.whole == 64 * 64 * 4
    sum(out.sum() for out in outputs).backward()
    with saved:
        for _ in range(
            20
        ):  # tensors that come and go, at the same addresses: none is taken for another
            x = torch.randn(64, 64, requires_grad=True)
            out = (x * 1.0).square()
            (got,) = torch.autograd.grad(out.sum(), x)
            assert (got - 2 * x).abs().max() < 6


def test_weights_are_known_from_what_is_made_of_them() -> None:
    frozen, free = nn.Linear(64, 64).requires_grad_(False), nn.Embedding(100, 64)
    assert (
        is_weight(frozen.weight.t())
        and is_weight(frozen.weight[3:].view(-1))
        and is_weight(free.weight.bfloat16().t())
    )
    ids = torch.arange(100)
    for activation in (
        free(ids),
        free(ids).relu(),
        free.weight.sin(),
        torch.randn(3, 3, requires_grad=True) @ frozen.weight[:3, :3],
    ):
        assert not is_weight(activation)
    x = torch.randn(64, 64, requires_grad=True)
    with CompressedActivations() as saved:
        out = frozen(x * 1)
    (got,) = torch.autograd.grad(out.sum(), x)
    assert saved.kept == 0 and torch.allclose(got, frozen.weight.sum(0).expand(64, 64), atol=1e-5)


def test_numbers_at_the_ends_of_fp32_are_kept_as_they_are() -> None:
    x = (3e38 * torch.tensor([1.0, -1.0]).repeat(1024)).requires_grad_()
    with CompressedActivations() as saved:
        (x * 1.0).square().sum()
        (x * 1.0).abs().mul(1e-30).sum().backward()
    assert (
        saved.kept == 0 and x.grad is not None and torch.allclose(x.grad.abs(), torch.tensor(1e-30))
    )


def test_what_holds_inf_stays_as_it_is() -> None:
    x = torch.randn(2048, requires_grad=True)
    with CompressedActivations() as saved:
        y = (x * math.inf).exp()
    assert saved.kept == 0 and y.numel()


def test_what_is_kept_in_fp8_stays_as_it_is() -> None:
    layer = Fp8Linear(64, 64, bias=False)
    with CompressedActivations() as saved:
        layer(torch.randn(64, 64)).sum().backward()
    assert saved.kept == 0 and layer.weight.grad is not None


def test_bad_input_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="codes of 1, 2, 4 or 8 bits"):
        CompressedActivations(3)
    with pytest.raises(ValueError, match="has to fill whole bytes"):
        compress(torch.ones(4), 2, 6)
    with pytest.raises(ValueError, match="holds inf, NaN or numbers near the ends"):
        compress(torch.tensor([1.0, math.nan]))
    with pytest.raises(TypeError, match="only floating-point"):
        compress(torch.arange(3))
    with pytest.raises(ValueError, match="go from 0 to 3, and these from 0 to 4"):
        pack(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="hold 4 codes of 2 bits, not 5"):
        unpack(torch.zeros(1, dtype=torch.uint8), 5)
