"""Counting: FLOPs by formula, bytes by itemsize, kernels by hand,
and fake tensors that count as real ones do.
"""

import itertools

import pytest
import torch
from torch.nn import functional as F

from amp_course.kit.models import SimpleNet
from amp_course.speed.counting import CAST, MATMUL, OTHER, Layout, count_ops, fake_tensors, totals
from amp_course.speed.opening import step_calls


def counted(run):
    with count_ops() as counter:
        run()
    return counter.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 5, 7), (64, 128, 256), (1023, 1, 9)])
def test_a_matmul_does_2mnk_flops_and_reads_and_writes_its_matrices(dtype, m, n, k):
    with fake_tensors():
        a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
        (call,) = counted(lambda: a @ b)
    assert (call.kind, call.dtype, call.op) == (MATMUL, dtype, "aten.mm")
    assert call.flops == 2 * m * n * k
    assert call.bytes == (m * k + k * n + m * n) * dtype.itemsize
    assert call.intensity == call.flops / call.bytes
    assert call.shapes == ((m, k), (k, n))


def test_flops_of_other_matmuls():
    shapes = ((6, 3, 5), (6, 5, 7), (2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 8, 16), (2, 4, 10, 16))
    with fake_tensors():
        x, weight, image, kernel, q, keys = (torch.empty(*shape) for shape in shapes)
        (batched,) = counted(lambda: x @ weight)
        (conv,) = counted(lambda: F.conv2d(image, kernel))
        (attention,) = counted(lambda: F.scaled_dot_product_attention(q, keys, keys))
    assert batched.flops == 6 * 2 * 3 * 5 * 7
    # a multiply-add for each output, input channel and tap
    assert conv.flops == 2 * (2 * 4 * 7 * 7) * (3 * 3 * 3)
    assert attention.flops == 2 * (2 * 4) * (8 * 10 * 16) * 2  # scores, and the mix of values
    assert {batched.kind, conv.kind, attention.kind} == {MATMUL}


def test_attention_backward_is_five_matmuls():
    with fake_tensors():
        q, k, v = (torch.empty(1, 1, 8, 16, requires_grad=True) for _ in range(3))
        calls = counted(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    assert totals(calls, MATMUL).flops == (2 + 5) * 2 * 8 * 8 * 16


A, B = torch.ones(10, 10), torch.ones(10, 10)


@pytest.mark.parametrize(
    ("run", "numbers"),
    [
        (lambda: A + B, 300),
        (lambda: A + A, 200),  # one tensor is read once
        (lambda: A.add_(B), 300),
        (lambda: A.copy_(B), 200),  # what is overwritten is not read
        (lambda: A.fill_(1), 100),
        (lambda: torch.add(A, B, out=torch.empty(10, 10)), 300),
        (lambda: A[:5] + 1, 100),
        (lambda: A[0].expand(10, 10).contiguous(), 110),  # a repeated row is read once
        (lambda: torch._foreach_add_([A, B], 1.0), 400),
    ],
)
def test_bytes_in_numbers_of_fp32(run, numbers):
    assert totals(counted(run)).bytes == 4 * numbers


def test_a_cast_changes_the_dtype_and_nothing_else():
    x, y = torch.ones(10), torch.ones(10, dtype=torch.bfloat16)
    runs = (
        lambda: x.bfloat16(),
        lambda: x.clone(),
        lambda: x.copy_(y),
        lambda: y.copy_(y.clone()),
        lambda: x.int(),
    )
    assert [counted(run)[-1].kind for run in runs] == [CAST, OTHER, CAST, OTHER, CAST]
    assert counted(runs[0])[0].bytes == 10 * (4 + 2)
    assert counted(lambda: x.float()) == []  # nothing to do


def test_what_starts_no_kernel_is_not_counted():
    x = torch.ones(4, 6)
    with count_ops() as counter:
        (x.T, x.view(24), x[1:], x.expand(2, 4, 6), x.detach(), x.permute(1, 0), torch.empty(3))
    assert counter.calls == []


def test_ops_without_elements():
    (call,) = counted(lambda: torch.ones(0, 3) @ torch.ones(3, 4))[-1:]
    assert (call.kind, call.flops) == (MATMUL, 0)
    (empty,) = counted(lambda: torch.ones(0).relu())[-1:]
    assert (empty.bytes, empty.intensity, empty.flops) == (0, 0.0, 0)


LOWERED = ["cast", "cast", "matmul"]  # weight, bias, then the layer itself


def test_kernels_of_two_layers_under_amp_as_counted_by_hand():
    with fake_tensors(), count_ops() as counter:
        model, x = SimpleNet(4), torch.randn(3, 4)
        counter.calls.clear()
        with torch.autocast("cpu", torch.bfloat16):
            y = model.linear2(torch.relu(model.linear1(x)))
        forward = [call.kind for call in counter.calls]
        counter.calls.clear()
        y.sum().backward()
        backward = [call.kind for call in counter.calls]
    assert forward == ["cast", *LOWERED, "other", *LOWERED]  # x first
    # sum and its gradient; gradients of the second layer and back to fp32; ReLU; those of the first
    layer = ["other", "cast", "cast"]
    assert backward == ["other", "other", "matmul", "matmul", *layer, "other", "matmul", *layer]


def test_fake_tensors_take_no_memory():
    with fake_tensors():
        model, x = SimpleNet(65536), torch.empty(512, 65536)
        calls = counted(lambda: model(x))
    assert totals(calls, MATMUL).flops == 3 * 2 * 512 * 65536**2
    ops = ["aten.addmm", "aten.relu", "aten.addmm", "aten.relu", "aten.addmm"]
    assert [call.op for call in calls] == ops


def test_totals_by_kind_add_up():
    calls = step_calls(16, torch.bfloat16)
    parts = [totals(calls, kind) for kind in (MATMUL, CAST, OTHER)]
    whole = totals(calls)
    assert whole.kernels == len(calls) == sum(part.kernels for part in parts)
    assert whole.bytes == sum(part.bytes for part in parts) and whole.flops == parts[0].flops
    assert totals([]).kernels == totals([]).bytes == 0


ROW = torch.ones(3)[None]
TENSORS = [torch.ones(3, 4).T, ROW.expand(5, 3), torch.ones(3, 8)[:0, :1], torch.ones(())]


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_a_layout_is_filled_as_it_was(tensor, dtype):
    layout = Layout(tuple(tensor.shape), tuple(tensor.stride()), dtype, "cpu")
    filled = layout.fill()
    assert (filled.shape, filled.stride(), filled.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert bool((filled >= 0.5).all()) if dtype.is_floating_point else not filled.any()


def test_each_replay_repeats_its_call():
    with count_ops() as counter:
        a = torch.ones(3, 4)
        torch.cat([a.T, torch.relu(a.T)], dim=1).sum()
    for call, replay in itertools.zip_longest(counter.calls, counter.replays):
        assert counted(replay.on_new_tensors()) == [call]
