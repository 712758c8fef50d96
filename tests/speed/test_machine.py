"""Measuring the machine: what is refused before it is tried, what is measured, and that the
user's settings stay as they were.

No rate is asserted: they differ from machine to machine, and from minute to minute.
"""

import itertools
import json

import pytest
import torch

from amp_course.speed import machine as module
from amp_course.speed.figures import rates_figure
from amp_course.speed.machine import (
    Machine,
    Rate,
    free_memory,
    measure_bandwidth,
    measure_machine,
    measure_rates,
)

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(scope="module")
def measured():
    """A machine, measured without a trace for its caller."""
    stream, precision, ticks = torch.get_rng_state(), torch.get_float32_matmul_precision(), []
    with torch.autocast("cpu", torch.bfloat16):
        machine = measure_machine("cpu", sizes=(16, 8), seconds=0.1, tick=ticks.append)
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert torch.equal(stream, torch.get_rng_state())
    assert torch.get_float32_matmul_precision() == precision
    assert ticks == [
        "launch",
        "bandwidth",
        *(f"{rate.format} {rate.size}" for rate in machine.rates),
    ]
    return machine


def test_measures_every_format_at_every_size(measured):
    formats = ("fp32", "bf16", "fp16")
    assert [(rate.size, rate.format) for rate in measured.rates] == [
        *itertools.product((8, 16), formats)
    ]
    assert all(rate.flops > 0 and not rate.why for rate in measured.rates)
    roofline = measured.roofline()
    assert (roofline.name, roofline.bandwidth) == ("this machine (cpu)", measured.bandwidth)
    assert measured.bandwidth > 0 and measured.launch_seconds > 0
    assert roofline.peak_flops == {
        fmt: max(rate.flops for rate in measured.rates if rate.format == fmt) for fmt in formats
    }


def test_is_the_same_after_a_round_through_json(measured):
    again = Machine.from_dict(json.loads(json.dumps(measured.to_dict())))
    assert again == measured and again.peaks == measured.peaks


def test_a_factor_compares_at_the_largest_size_that_both_were_timed_at():
    rates = (
        Rate("fp32", 8, 10.0),
        Rate("bf16", 8, 5.0),
        Rate("fp32", 16, 20.0),
        Rate("bf16", 16, None, "too slow"),
    )
    machine = Machine("cpu", (*rates, Rate("fp16", 8, None, "unsupported")), 1e10, 1e-6)
    assert [machine.factor(fmt) for fmt in ("bf16", "fp32", "fp16")] == [0.5, 1.0, None]
    assert machine.peaks == {"fp32": 20.0, "bf16": 5.0}


def test_a_busy_machine_shows_its_numbers_and_compares_no_formats():
    rates = (Rate("fp32", 8, 1e10), Rate("bf16", 8, 5e10))
    quiet, busy = (Machine("cpu", rates, 1e10, 1e-6, waited=waited) for waited in (0.1, 0.5))
    assert str(quiet) == "memory     10 GB/s\nlaunch     1.00 µs for one small op\n" + (
        "fp32       10 GFLOP/s\nbf16       50 GFLOP/s, 5 times fp32's rate at the largest size"
    )
    assert "50 GFLOP/s\nThis machine was too busy to tell" in str(busy)
    assert "times fp32" not in str(busy)
    alts = [rates_figure(one).alt for one in (quiet, busy)]
    assert ["too busy to tell" in alt for alt in alts] == [False, True]
    title = rates_figure(busy).axes[0].get_title(loc="left")
    assert title == "This machine was too busy to tell"
    old = {name: value for name, value in quiet.to_dict().items() if name != "waited"}
    assert Machine.from_dict(old).busy == ""


def tried(monkeypatch, free, flops=1e12):
    """Replace the measurement by a note of what would be measured,
    on a machine with `free` bytes.
    """
    sizes = []

    def rate(device, fmt, size, budget):
        sizes.append((fmt, size))
        return Rate(fmt, size, flops)

    monkeypatch.setattr(module, "free_memory", lambda device: free)
    monkeypatch.setattr(module, "_rate", rate)
    return sizes


def test_a_size_that_does_not_fit_is_left_out_before_it_is_tried(monkeypatch):
    sizes = tried(monkeypatch, free=GIB)
    rates = measure_rates(CPU, (8192, 16384, 32768), ("fp32", "bf16"), 1.0)
    # Three matrices in 0.8 GiB: of fp32 up to 8,461 wide, of bf16 up to 11,966.
    assert sizes == [("fp32", 8192), ("bf16", 8192)]
    whys = {(rate.format, rate.size): rate.why for rate in rates if rate.flops is None}
    assert whys["fp32", 16384] == "left out: size 16,384 needs 3.00 GiB, and 1.00 GiB are free"
    assert whys["fp32", 32768] == whys["fp32", 16384]  # what the first refusal said
    assert whys["bf16", 16384] == "left out: size 16,384 needs 1.50 GiB, and 1.00 GiB are free"


def test_a_size_that_would_take_too_long_is_left_out_and_so_are_larger_ones(monkeypatch):
    sizes = tried(monkeypatch, free=None, flops=2.5e9)
    rates = measure_rates(CPU, (2048, 512, 1024), ("bf16",), 1.0)
    assert sizes == [("bf16", 512)]  # 2 · 1024³ FLOPs take 0.86 s, more than half a second
    assert [rate.why for rate in rates] == [
        "",
        *["left out: one of size 1,024 would take 0.9 s"] * 2,
    ]


def test_a_format_that_torch_refuses_is_left_out_with_its_words(monkeypatch):
    def refuse(op, device, *, least, budget):
        raise RuntimeError('"addmm" not implemented for Half\nand a stack')

    monkeypatch.setattr(module, "fastest_seconds", refuse)
    (rate,) = measure_rates(CPU, (8,), ("fp16",), 1.0)
    assert (rate.flops, rate.why) == (None, '"addmm" not implemented for Half')


def test_a_copy_fits_into_the_memory_that_is_free(monkeypatch):
    sizes, real = [], torch.ones
    monkeypatch.setattr(module, "free_memory", lambda device: 1000)
    monkeypatch.setattr(torch, "ones", lambda size, **on: sizes.append(size) or real(size, **on))
    assert measure_bandwidth(CPU) > 0
    assert sizes == [100]  # twice 400 bytes: 0.8 of what is free


def test_free_memory_is_a_number_or_unknown():
    free = free_memory(CPU)
    assert free is None or free > 0
    assert free_memory(torch.device("meta")) is None


def test_formats_take_turns_so_that_a_busy_second_changes_no_rate(monkeypatch):
    tried, rates = [], iter([1e9, 9e12, 5e12, 8e12, 4e12, 7e12])

    def rate(device, fmt, size, budget):
        tried.append(fmt)
        return Rate(fmt, size, next(rates))

    monkeypatch.setattr(module, "_rate", rate)
    found = measure_rates(CPU, (64,), ("fp32", "bf16"), 1.0)
    assert tried == ["fp32", "bf16"] * 3 and [one.flops for one in found] == [5e12, 9e12]
