"""The traces add up, and their bottleneck is what its fix shows it to be."""

import dataclasses
import random

import pytest

from amp_course.speed.exercises import name_bottleneck
from amp_course.speed.exercises.name_bottleneck import recounted
from amp_course.speed.traces import (
    BOTTLENECKS,
    FIXES,
    FP32,
    Step,
    Trace,
    draw_step,
    example_traces,
    run,
    trace_rows,
)

SEEDS = range(25)


def test_a_step_by_hand():
    # The batch takes 2 ms and each launch 1 ms, so the first kernel runs from 3 to 6 ms and the
    # second to 9 ms. The host has launched both after 4 ms, waits for them, and the read costs it
    # another 0.5 ms.
    trace = run(Step(2.0, ((FP32, 3.0), ("cast", 3.0)), 1.0, frozenset([2]), 0.5))
    assert (trace.step_ms, trace.load_ms, trace.launch_ms, trace.read_ms) == (9.5, 2.0, 2.0, 5.5)
    assert (trace.busy_ms, trace.fp32_ms, trace.cast_ms, trace.low_ms, trace.other_ms) == (
        6.0,
        3.0,
        3.0,
        0.0,
        0.0,
    )
    assert (trace.kernels, trace.fp32_kernels, trace.reads, trace.largest) == (2, 1, 1, (FP32, 3.0))


@pytest.mark.parametrize("misleading", [True, False])
@pytest.mark.parametrize("kind", BOTTLENECKS)
def test_times_add_up_and_the_cure_of_the_bottleneck_helps_most(kind, misleading):
    for seed in SEEDS:
        step = draw_step(kind, random.Random(seed), misleading=misleading)
        trace = run(step)
        assert trace.load_ms + trace.launch_ms + trace.read_ms == pytest.approx(trace.step_ms)
        assert trace.fp32_ms + trace.low_ms + trace.cast_ms + trace.other_ms == pytest.approx(
            trace.busy_ms
        )
        assert trace.busy_ms <= trace.step_ms * 1.0001
        after = {name: run(fix(step)).step_ms for name, fix in FIXES.items()}
        assert all(after[kind] * 1.5 < other for name, other in after.items() if name != kind), seed
        assert name_bottleneck.judge.right(trace) == kind, seed
        if kind in ("fp32", "memory"):
            assert (trace.largest[0] == FP32) == ((kind == "fp32") != misleading), seed


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("kind", BOTTLENECKS)
def test_other_numbers_of_kernels_and_reads_leave_the_bottleneck_clear(kind, few):
    for seed in SEEDS[::5]:
        draw = random.Random(seed)
        step = draw_step(kind, draw, misleading=few)
        other = recounted(step, kind, draw, few=few)
        kernels = run(other).kernels
        assert kernels < 0.9 * run(step).kernels if few else kernels > 1.5 * run(step).kernels
        after = {name: run(fix(other)).step_ms for name, fix in FIXES.items()}
        assert all(after[kind] * 1.5 < time for name, time in after.items() if name != kind), seed
        busy = run(other).busy_ms / run(other).step_ms
        assert busy > 0.9 if kind in ("fp32", "memory") else busy < 0.45  # whatever limit one takes


def test_no_number_of_kernels_or_reads_tells_the_bottleneck():
    traces = []
    for kind in BOTTLENECKS:
        for few in (True, False):
            draw = random.Random(3)
            traces.append(
                (kind, run(recounted(draw_step(kind, draw, misleading=few), kind, draw, few=few)))
            )
    for count in ("kernels", "reads"):
        in_order = [kind for kind, _ in sorted(traces, key=lambda one: getattr(one[1], count))]
        best = max(
            sum(kind == name for kind in half)
            for half in (in_order[:5], in_order[5:])
            for name in BOTTLENECKS
        )
        assert best < 2, count


def test_the_examples_have_one_bottleneck_each():
    named = [name_bottleneck.judge.right(trace) for trace in example_traces().values()]
    assert sorted(named) == sorted(BOTTLENECKS)


def test_the_table_has_a_row_for_each_attribute():
    head, *rows = trace_rows(example_traces())
    assert head == ["attribute", "what it is", *"ABCDE"]
    assert [row[0] for row in rows] == [field.name for field in dataclasses.fields(Trace)]
    assert all(len(row) == len(head) for row in rows)
