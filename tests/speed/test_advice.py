"""What is advised, and in which order, from findings that are made up one by one."""

import pytest
import torch

from amp_course.speed.counting import OpCall
from amp_course.speed.explain import kinds
from amp_course.speed.explain.advice import advise
from amp_course.speed.explain.evidence import CastSeen, Evidence
from amp_course.speed.explain.findings import Findings
from amp_course.speed.explain.kinds import KINDS
from amp_course.speed.explain.lines import LineTimes
from amp_course.speed.explain.sampling import Line
from amp_course.speed.explain.trials import MatmulTrial

F32, B16, F64 = torch.float32, torch.bfloat16, torch.float64
HERE, THERE = Line("/mine.py", 3), Line("/mine.py", 7)


def call(kind="matmul", dtype=F32):
    return OpCall("aten.mm", kind, dtype, 10, 10, ((8, 8), (8, 8)))


def trial(dtype, seconds, other, padded=None, count=1):
    return MatmulTrial(0, count, dtype, ((255, 255), (255, 255)), seconds, other, padded, 10)


def findings(seconds=1.0, times=None, evidence=None, trials=(), **more):
    full = dict.fromkeys(KINDS, 0.0) | (times or {})
    evidence = evidence or Evidence(calls=[call()], lines=[None])
    return Findings(
        seconds, full, evidence, more.pop("lines", LineTimes()), tuple(trials), B16, "cpu", **more
    )


def causes(found):
    return [one.cause for one in advise(found)]


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"fetch_busy": 0.9}, "data-preparation"),
        ({"fetch_busy": 0.1}, "slow-source"),
        ({"fetch_busy": 0.1, "crowded": True}, "waiting-for-data"),
        ({"fetch_busy": 0.9, "crowded": True}, "data-preparation"),
        ({"workers": 2}, "slow-workers"),
        ({}, "waiting-for-data"),
    ],
)
def test_waiting_for_data_is_told_by_what_the_cpu_does_meanwhile(more, cause):
    assert causes(findings(times={kinds.WAIT: 0.4}, **more)) == [cause]
    assert causes(findings(times={kinds.WAIT: 0.02}, **more)) == []  # too little to be worth a line


def test_low_matmuls_that_are_slower_than_fp32_and_an_island_that_would_gain():
    times = {kinds.LOW_MATMUL: 0.6, kinds.FP32_MATMUL: 0.2}
    slow = findings(times=times, trials=[trial(B16, 0.8, {F32: 0.2})])
    (found,) = advise(slow)
    assert found.cause == "slower-in-16-bits" and found.seconds == pytest.approx(
        0.6
    )  # 0.8 of matmuls, a quarter of it left
    assert "take 4.0 times as long" in found.evidence
    one_op = findings(
        times=times, trials=[trial(B16, 0.4, {F32: 0.1}), *[trial(B16, 0.1, {F32: 0.3})] * 3]
    )
    (found,) = advise(one_op)  # AMP gains on the whole, and one op has a slow kernel
    assert (
        found.cause == "slower-in-16-bits"
        and "`mm` takes 4.0 times as long in bfloat16" in found.evidence
    )
    assert found.seconds == pytest.approx(0.3 * 0.8 / 0.7)
    both = Evidence(calls=[call(), call(dtype=B16)], lines=[HERE, None])
    island = findings(
        times=times,
        evidence=both,
        trials=[trial(F32, 0.4, {B16: 0.1}), trial(B16, 0.4, {F32: 0.9})],
    )
    (found,) = advise(island)
    assert (
        found.cause == "fp32-island"
        and found.seconds == pytest.approx(0.3 * 0.8 / 0.8)
        and "line 3" in found.evidence
    )
    # An island that is faster than 16 bits would be is none.
    assert causes(findings(times=times, evidence=both, trials=[trial(F32, 0.4, {B16: 0.5})])) == []


def test_fp64_is_named_before_fp32():
    found = advise(
        findings(times={kinds.FP32_MATMUL: 0.8}, trials=[trial(F64, 0.8, {F32: 0.4, B16: 0.1})])
    )
    assert [one.cause for one in found] == ["fp64-island"] and found[0].seconds == pytest.approx(
        0.7
    )


def test_no_autocast_is_advised_only_if_it_gains_more_than_its_casts():
    trials = [trial(F32, 0.8, {B16: 0.2})]
    assert causes(findings(times={kinds.FP32_MATMUL: 0.8}, trials=trials, cast_seconds=0.1)) == [
        "no-autocast"
    ]
    assert causes(findings(times={kinds.FP32_MATMUL: 0.8}, trials=trials, cast_seconds=0.7)) == []


def test_odd_sizes_need_a_trial_that_gained():
    times = {kinds.LOW_MATMUL: 0.8}
    assert causes(findings(times=times, trials=[trial(B16, 0.8, {}, padded=0.5)])) == ["odd-sizes"]
    assert causes(findings(times=times, trials=[trial(B16, 0.8, {}, padded=0.79)])) == []
    assert causes(findings(times=times, trials=[trial(B16, 0.8, {})])) == []


def test_reads_logging_and_python_are_told_apart_by_line():
    evidence = Evidence(calls=[call()], lines=[None])
    evidence.reads[HERE] = 500
    lines = LineTimes(gaps=10, steps=20)
    lines.python.update({HERE: 6, THERE: 4})
    lines.logging.update({HERE: 6})
    times = {kinds.LAUNCH: 0.5, kinds.SYNC: 0.1}
    found = advise(findings(times=times, evidence=evidence, lines=lines))
    assert [(one.cause, round(one.seconds, 3)) for one in found] == [
        ("host-waits", 0.4),
        ("python", 0.2),
    ]
    assert (
        "500 times, 500 of them in line 3" in found[0].evidence and "On a GPU" in found[0].evidence
    )
    lines.ops.update(
        {HERE: 4}
    )  # what is computed on that line is computed to be read, unless the model runs there
    assert advise(findings(times=times, evidence=evidence, lines=lines))[
        0
    ].seconds == pytest.approx(0.4 + 4 / 20)
    evidence.lines[0] = HERE
    assert advise(findings(times=times, evidence=evidence, lines=lines))[
        0
    ].seconds == pytest.approx(0.4)
    lines.logs.add(HERE)
    found = advise(findings(times=times, evidence=evidence, lines=lines))
    assert [one.cause for one in found] == [
        "logging",
        "python",
        "host-waits",
    ]  # the reads' own time is left
    assert found[0].seconds == pytest.approx(6 / 20)


def test_a_tensor_that_is_cast_again_and_again():
    cast = CastSeen((1, 0, (64, 64)), F32, B16, 6 * 64 * 64, HERE)
    other = CastSeen((2, 0, (64, 64)), F32, B16, 6 * 64 * 64, HERE)
    evidence = Evidence(calls=[call("cast")] * 5, lines=[HERE] * 5, casts=[cast] * 4 + [other])
    (found,) = advise(findings(times={kinds.CAST: 0.5}, evidence=evidence))
    assert (
        found.cause == "repeated-casts"
        and "64 × 64" in found.evidence
        and " 4 times" in found.evidence
    )
    assert found.seconds == pytest.approx(0.5 * 3 / 5)
    assert (
        causes(
            findings(
                times={kinds.CAST: 0.5},
                evidence=Evidence(casts=[cast, other], calls=[call()], lines=[None]),
            )
        )
        == []
    )


def test_an_optimizer_threads_and_memory():
    assert causes(findings(times={kinds.OPTIMIZER: 0.5}, fused=[("AdamW", 0.2)])) == [
        "unfused-optimizer"
    ]
    assert causes(findings(times={kinds.OPTIMIZER: 0.5}, fused=[("AdamW", 0.99)])) == []
    (found,) = advise(findings(threads=(16, 2), other_threads=(0.8, 0.2)))
    assert (
        found.cause == "too-many-threads"
        and found.seconds == pytest.approx(0.75)
        and "16 threads" in found.evidence
    )
    assert causes(findings(threads=(1, 2), other_threads=(0.8, 0.4))) == ["too-few-threads"]
    assert causes(findings(threads=(16, 2), other_threads=(0.8, 0.9))) == []
    assert causes(findings(fault_seconds=0.2, faults=2000)) == ["returned-memory"]


def test_small_ops_are_what_no_line_explains_and_only_if_they_are_many():
    assert causes(findings(times={kinds.LAUNCH: 0.6})) == ["small-ops"]
    assert causes(findings(times={kinds.LAUNCH: 0.2})) == []


def test_reads_stand_above_the_small_ops_that_belong_to_them():
    evidence = Evidence(calls=[call("other")] * 40, lines=[HERE] * 40)
    evidence.reads[HERE] = 20
    times = {kinds.LAUNCH: 0.6, kinds.SYNC: 0.05, kinds.OPTIMIZER: 0.3}
    found = findings(times=times, evidence=evidence, fused=[("AdamW", 0.2)])
    assert causes(found) == ["host-waits", "small-ops", "unfused-optimizer"]
    times[kinds.SYNC] = 0.01  # too little to be worth a line
    assert causes(findings(times=times, evidence=evidence)) == ["small-ops"]


def test_the_largest_gain_comes_first_and_each_has_words():
    found = advise(
        findings(
            times={kinds.WAIT: 0.2, kinds.OPTIMIZER: 0.5, kinds.LAUNCH: 0.3},
            fused=[("AdamW", 0.1)],
            threads=(16, 2),
            other_threads=(1.0, 0.9),
        )
    )
    assert [one.cause for one in found] == [
        "unfused-optimizer",
        "small-ops",
        "waiting-for-data",
        "too-many-threads",
    ]
    for one in found:
        assert (
            one.evidence
            and one.fix
            and not one.evidence.endswith(".")
            and not one.fix.endswith(".")
        )
