"""One op: its costs by formula, in fp32 and under AMP; the real one counts as the fake one;
what is too large is not tried.
"""

import dataclasses

import pytest
import torch

from amp_course.speed import one_op
from amp_course.speed.cards import find_card
from amp_course.speed.counting import MATMUL, count_ops, totals
from amp_course.speed.one_op import KINDS, Setting, count_op, predict, time_op
from amp_course.speed.roofline import Roofline

CPU = torch.device("cpu")
M, N, K = 33, 64, 16
BF16 = torch.bfloat16
FAST = Roofline("a fast machine", {"fp32": 1e15, "bf16": 1e15, "fp16": 1e15}, 1e15, 1e-9)
SLOW = Roofline("a slow machine", {"fp32": 1e3, "bf16": 1e3, "fp16": 1e3}, 1e3, 1e-6)


@pytest.mark.parametrize(
    ("kind", "flops", "numbers", "kernels"),
    [
        ("linear", 2 * M * N * K, M * K + K * N + N + M * N, 1),
        (
            "linear_step",
            6 * M * N * K,
            3 * (M * K + K * N + M * N) + N + (M * N + N),
            4,
        ),  # one matmul more for each gradient
        ("relu", 0, 2 * M * N, 1),
        ("cast", 0, 0, 0),
    ],
)
def test_costs_in_fp32_by_formula(kind, flops, numbers, kernels):
    whole = totals(count_op(kind, Setting(M, N, K)))
    assert (whole.flops, whole.bytes, whole.kernels) == (flops, 4 * numbers, kernels)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        ("linear", ["cast", "cast", "matmul"]),  # weight and bias
        ("linear_step", ["cast", "cast", "matmul", "matmul", "matmul", "other", "cast", "cast"]),
        ("attention", ["matmul"]),
        ("relu", ["other"]),
        ("cast", ["cast"]),
    ],
)
def test_kernels_under_amp_by_hand(kind, kernels):
    assert [call.kind for call in count_op(kind, Setting(M, N, K, BF16, arrives=BF16))] == kernels


@pytest.mark.parametrize(
    ("kind", "more"),
    [("linear", 1), ("linear_step", 2), ("attention", 3), ("relu", 0), ("cast", 0)],
)
def test_an_input_in_fp32_is_cast_too(kind, more):
    low, high = (
        count_op(kind, Setting(M, N, K, BF16, arrives=arrives)) for arrives in (BF16, torch.float32)
    )
    # for a step, the input's gradient goes back to fp32; attention has three inputs
    assert len(high) - len(low) == more
    assert totals(low, MATMUL) == totals(high, MATMUL)


def test_layer_norm_runs_in_fp32_on_a_gpu_and_as_it_comes_on_a_cpu():
    cpu, gpu = (
        count_op("layer_norm", Setting(M, N, K, BF16, arrives=BF16, gpu=gpu))
        for gpu in (False, True)
    )
    assert [call.kind for call in cpu] == ["other"]
    assert [call.kind for call in gpu] == [
        "cast",
        "other",
    ]
    assert gpu[-1].dtype == torch.float32


@pytest.mark.parametrize("arrives", [BF16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_real_op_counts_as_the_fake_one(kind, dtype, arrives):
    on = Setting(M, N, K, dtype, torch.float32 if torch.float32 in (dtype, arrives) else dtype)
    with CPU:
        call = KINDS[kind].make(on)
    with one_op._region(on, CPU), count_ops() as counter:
        call()
    fake = count_op(kind, on)
    counted = [(one.op, one.kind, one.flops) for one in counter.calls]
    assert [(one.op, one.kind, one.flops) for one in fake] == counted
    # a norm's statistics differ
    assert totals(fake).bytes == pytest.approx(totals(counter.calls).bytes, rel=0.05)


def test_predicts_with_the_roofline():
    roofline = find_card("A100 SXM 40 GB").roofline()
    on = Setting(4096, 4096, 4096, BF16, arrives=BF16)
    predicted = predict("linear", on, roofline)
    # the bias's cast is a launch
    matmul, casts = 2 * 4096**3 / 312e12, (4096**2 * 6) / 1555e9 + 5e-6
    assert predicted.seconds == pytest.approx(matmul + casts)
    assert (predicted.name, predicted.fmt, predicted.bound) == ("AMP bf16", "bf16", "compute")
    assert predicted.cast_seconds == pytest.approx(casts)
    assert sum(predicted.seconds_by.values()) == pytest.approx(predicted.seconds)
    with pytest.raises(KeyError, match="bf16"):
        predict("linear", on, find_card("T4").roofline())


@pytest.mark.parametrize("kind", KINDS)
def test_times_every_kind(kind):
    for on in (Setting(M, N, K), Setting(M, N, K, BF16, BF16), Setting(M, N, K, torch.float16)):
        assert time_op(kind, on, FAST, CPU, seconds=0.0) > 0


def refuse_to_run(*_, **__):
    pytest.fail("it was run")


def test_what_does_not_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr(one_op, "_run", refuse_to_run)
    monkeypatch.setattr(one_op, "free_memory", lambda device: 2**20)
    with pytest.raises(ValueError, match=r"it needs up to 12\.0 MiB, and 1\.00 MiB are free"):
        time_op("linear", Setting(1023, 1023, 1024), FAST, CPU)


def test_what_would_take_too_long_is_not_tried(monkeypatch):
    monkeypatch.setattr(one_op, "_run", refuse_to_run)
    words = r"one call would take about 4\.\d+ s, and the limit is 2\.00 s"
    with pytest.raises(ValueError, match=words):
        time_op("linear", Setting(16, 16, 8), SLOW, CPU)


def test_a_part_that_takes_much_longer_than_predicted_stops_the_rest(monkeypatch):
    rows = []
    slower = dataclasses.replace(SLOW, peak_flops={"fp32": 4e3}, bandwidth=1e9)
    monkeypatch.setattr(one_op, "_run", lambda kind, on, *_, budget: rows.append(on.m) or 0.5)
    words = r"1 of its 64 rows took 500 ms, so all would take about 32\.0 s"
    with pytest.raises(ValueError, match=words):
        time_op("linear", Setting(64, 8, 4), slower, CPU)
    assert rows == [1]


def test_timing_changes_nothing_for_its_caller():
    stream = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        time_op("linear_step", Setting(8, 8, 8), FAST, CPU, seconds=0.0)
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    with torch.inference_mode():
        time_op("linear_step", Setting(8, 8, 8, BF16), FAST, CPU, seconds=0.0)
        assert totals(count_op("linear_step", Setting(8, 8, 8))).kernels == 4
    assert torch.equal(stream, torch.get_rng_state())
