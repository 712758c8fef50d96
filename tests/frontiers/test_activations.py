"""Codes packed into bytes against numpy's packbits; 2-bit activations whose gradients are right
on average.
"""

import contextlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from amp_course.frontiers.activations import CompressedActivations, is_weight
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.packing import compress, pack, unpack


@settings(max_examples=50)
@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_codes_are_packed_as_numpy_packs_their_bits(bits, data):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40))
    as_bits = [code >> n & 1 for code in codes for n in range(bits)]  # the lowest bit first
    packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
    wanted = np.packbits(np.array(as_bits, dtype=np.uint8), bitorder="little")
    assert packed.dtype == torch.uint8 and np.array_equal(packed.numpy(), wanted)
    assert unpack(packed, len(codes), bits).tolist() == codes


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(1,), (7, 100), (3, 5, 256)])
def test_every_number_lands_on_a_level_next_to_it(bits, shape):
    torch.manual_seed(0)
    x = torch.randn(shape) * 3 + 1
    packed = compress(x, bits, 64)
    back = packed.restore()
    assert back.shape == x.shape and back.dtype == x.dtype
    step = packed.step.float().repeat_interleave(64)[: x.numel()].view(x.shape)
    assert ((back - x).abs() <= step * (1 + 1e-6)).all()


def test_groups_of_equal_numbers_and_zeros_are_kept_exactly():
    x = torch.cat([torch.zeros(64), torch.full((64,), 0.5), torch.full((64,), 1 / 3)])
    back = compress(x, 2, 64).restore()
    assert torch.equal(back[:128], x[:128]) and (back[128:] - 1 / 3).abs().max() < 2**-9


@pytest.mark.parametrize("has_zeros", [False, True])
def test_it_is_right_on_average(has_zeros):
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    if has_zeros:
        x = x.relu()
        x[:128] = 0.0
    draws, generator = 2000, torch.Generator().manual_seed(1)
    packed = compress(x.expand(draws, 512), 2, 128, generator)
    step = packed.step[:4].float().repeat_interleave(128)
    off = (packed.restore().double().mean(0) - x).abs()
    assert (off <= 5 * 0.5 * step / math.sqrt(draws) + 1e-9).all()


def test_zeros_stay_zeros_and_what_is_above_stays_above():
    x = torch.relu(torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    for bits in (2, 4, 8):
        back = compress(x, bits, 256).restore()
        assert torch.equal(back == 0, x == 0) and (back >= 0).all()


def gradient(net, x, saved=None):
    """Return the gradient of all parameters for the mean of the squared outputs,
    the loss outside the hooks.
    """
    net.zero_grad()
    with saved or contextlib.nullcontext():
        out = net(x)
    out.square().mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double()


@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_through_relus_are_right_on_average(bits):
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)]
    net, x = nn.Sequential(*layers), torch.randn(64, 32)
    exact = gradient(net, x)
    saved = CompressedActivations(bits, 64, generator=torch.Generator().manual_seed(2))
    draws = torch.stack([gradient(net, x, saved) for _ in range(60)])
    deviation = draws.std(0) / math.sqrt(60)
    off = draws.mean(0) - exact
    drawn = deviation > 0
    assert (off / deviation)[drawn].square().mean().sqrt() < 1.3
    assert off[~drawn].abs().max() < 1e-6


def test_gradients_of_inputs_are_exact():
    torch.manual_seed(0)
    layer, out = nn.Linear(64, 8), torch.randn(64, 8)
    inner = torch.randn(64, 64, requires_grad=True) * 1.0  # no leaf: an activation
    exact = torch.autograd.grad(layer(inner), [layer.weight, inner], out, retain_graph=True)
    with CompressedActivations(2, 64) as saved:
        result = layer(inner)
    weight, before = torch.autograd.grad(result, [layer.weight, inner], out)
    assert torch.equal(before, exact[1])  # it takes the weight alone, which is kept
    assert not torch.equal(weight, exact[0]) and 0 < saved.kept < saved.whole / 10


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights_and_their_casts_are_kept_and_never_written(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    before = [p.detach().clone() for p in net.parameters()]
    found = []

    class Watching(CompressedActivations):
        def _pack(self, tensor):
            found.append(is_weight(tensor))
            return super()._pack(tensor)

    with Watching(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = net(torch.randn(32, 64)).float().square().mean()
    loss.backward()
    # the second layer's weight; the first layer's input has no gradient
    assert found.count(True) == 1 and found.count(False) >= 3
    assert all(torch.equal(a, p) for a, p in zip(before, net.parameters(), strict=True))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_what_several_ops_save_of_one_tensor_is_kept_and_counted_once():
    # the ReLU's result is the input of the next layer
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    inner = torch.randn(64, 64, requires_grad=True) * 1.0
    with CompressedActivations() as saved:
        net(inner)
    assert saved.whole == 2 * 64 * 64 * 4 and saved.whole / saved.kept > 15
    with saved:
        outputs = [nn.Linear(64, 64)(inner) for _ in range(3)]
    assert saved.whole == 64 * 64 * 4
    sum(out.sum() for out in outputs).backward()
    with saved:  # tensors that come and go, at the same addresses: none is taken for another
        for _ in range(20):
            x = torch.randn(64, 64, requires_grad=True)
            out = (x * 1.0).square()
            (got,) = torch.autograd.grad(out.sum(), x)
            assert (got - 2 * x).abs().max() < 6


def test_weights_are_known_from_what_is_made_of_them():
    frozen, free = nn.Linear(64, 64).requires_grad_(False), nn.Embedding(100, 64)
    weight = frozen.weight
    for one in (weight.t(), weight[3:].view(-1), free.weight.bfloat16().t()):
        assert is_weight(one)
    rows = free(torch.arange(100))
    product = torch.randn(3, 3, requires_grad=True) @ weight[:3, :3]
    for activation in (rows, rows.relu(), free.weight.sin(), product):
        assert not is_weight(activation)
    x = torch.randn(64, 64, requires_grad=True)
    with CompressedActivations() as saved:
        out = frozen(x * 1)
    (got,) = torch.autograd.grad(out.sum(), x)
    assert saved.kept == 0 and torch.allclose(got, weight.sum(0).expand(64, 64), atol=1e-5)


@pytest.mark.parametrize(
    "out_of",
    [
        lambda: (torch.randn(2048, requires_grad=True) * math.inf).exp(),
        lambda: (3e38 * torch.tensor([1.0, -1.0]).repeat(1024)).requires_grad_().square(),
        lambda: Fp8Linear(64, 64, bias=False)(torch.randn(64, 64)),
    ],
    ids=["inf", "the ends of fp32", "fp8"],
)
def test_what_cannot_be_kept_in_few_bits_stays_as_it_is(out_of):
    with CompressedActivations() as saved:
        out_of().sum().backward()
    assert saved.kept == 0


def test_bad_input_is_refused_with_a_reason():
    with pytest.raises(ValueError, match="codes of 1, 2, 4 or 8 bits"):
        CompressedActivations(3)
    with pytest.raises(ValueError, match="has to fill whole bytes"):
        CompressedActivations(2, 6)
    with pytest.raises(TypeError, match="codes are integers"):
        pack(torch.ones(3))
    with pytest.raises(ValueError, match="go from 0 to 3, and these from 0 to 4"):
        pack(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="hold 4 codes of 2 bits, not 5"):
        unpack(torch.zeros(1, dtype=torch.uint8), 5)
