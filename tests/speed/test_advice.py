"""What is advised, and in which order, from findings that are made up one by one."""

import pytest
import torch

from amp_course.speed.counting import OpCall
from amp_course.speed.explain.advice import advise
from amp_course.speed.explain.evidence import CastRecord, Evidence
from amp_course.speed.explain.findings import Findings
from amp_course.speed.explain.kinds import (
    CAST,
    FP32_MATMUL,
    KINDS,
    LAUNCH,
    LOW_MATMUL,
    OPTIMIZER,
    SYNC,
    WAIT,
)
from amp_course.speed.explain.sampling import Line, LineTimes
from amp_course.speed.explain.trials import MatmulTrial

F32, B16, F64 = torch.float32, torch.bfloat16, torch.float64
HERE, THERE = Line("/mine.py", 3), Line("/mine.py", 7)


def call(kind="matmul", dtype=F32):
    return OpCall("aten.mm", kind, dtype, 10, 10, ((8, 8), (8, 8)))


def trial(dtype, seconds, other, padded=None):
    return MatmulTrial(0, 1, dtype, ((255, 255), (255, 255)), seconds, other, padded)


def findings(times=(), trials=(), **more):
    known = {"evidence": Evidence([call()], lines=[None]), "lines": LineTimes(), **more}
    full = dict.fromkeys(KINDS, 0.0) | dict(times)
    return Findings(1.0, full, trials=tuple(trials), low=B16, device="cpu", **known)


def causes_of(found):
    return [(one.cause, pytest.approx(one.seconds)) for one in advise(found)]


MATMULS = {LOW_MATMUL: 0.6, FP32_MATMUL: 0.2}
BOTH = Evidence([call(), call(dtype=B16)], lines=[HERE, None])
ADAM = [("AdamW", 0.2)]
IN_FP32 = {"times": {FP32_MATMUL: 0.8}, "trials": [trial(F32, 0.8, {B16: 0.2})]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # the CPU shows why the step waits for data
        (findings({WAIT: 0.4}, fetch_busy=0.9), ("data-preparation", 0.4)),
        (findings({WAIT: 0.4}, fetch_busy=0.1), ("slow-source", 0.4)),
        (findings({WAIT: 0.4}, fetch_busy=0.1, crowded=True), ("waiting-for-data", 0.4)),
        (findings({WAIT: 0.4}, fetch_busy=0.9, crowded=True), ("data-preparation", 0.4)),
        (findings({WAIT: 0.4}, workers=2), ("slow-workers", 0.4)),
        (findings({WAIT: 0.4}), ("waiting-for-data", 0.4)),
        (findings({WAIT: 0.02}), None),  # too little to be worth a line
        # an island that is faster than 16 bits would be is none
        (findings(MATMULS, [trial(F32, 0.4, {B16: 0.5})], evidence=BOTH), None),
        # fp64 is named before fp32
        (
            findings({FP32_MATMUL: 0.8}, [trial(F64, 0.8, {F32: 0.4, B16: 0.1})]),
            ("fp64-island", 0.7),
        ),
        # autocast has to gain more than its casts
        (findings(**IN_FP32, cast_seconds=0.1), ("no-autocast", 0.5)),
        (findings(**IN_FP32, cast_seconds=0.7), None),
        # odd sizes need a trial that gained
        (findings({LOW_MATMUL: 0.8}, [trial(B16, 0.8, {}, padded=0.5)]), ("odd-sizes", 0.3)),
        (findings({LOW_MATMUL: 0.8}, [trial(B16, 0.8, {}, padded=0.79)]), None),
        (findings({LOW_MATMUL: 0.8}, [trial(B16, 0.8, {})]), None),
        (findings({OPTIMIZER: 0.5}, fused=ADAM), ("unfused-optimizer", 0.4)),
        (findings({OPTIMIZER: 0.5}, fused=[("AdamW", 0.99)]), None),
        (findings(threads=(16, 2), other_threads=(0.8, 0.2)), ("too-many-threads", 0.75)),
        (findings(threads=(1, 2), other_threads=(0.8, 0.4)), ("too-few-threads", 0.5)),
        (findings(threads=(16, 2), other_threads=(0.8, 0.9)), None),
        (findings(fault_seconds=0.2, faults=2000), ("returned-memory", 0.2)),
        # small ops are what no line explains, and only if they are many
        (findings({LAUNCH: 0.6}), ("small-ops", 0.6)),
        (findings({LAUNCH: 0.2}), None),
    ],
)
def test_one_cause_gives_one_advice(found, expected):
    assert causes_of(found) == ([expected] if expected else [])


def test_low_matmuls_that_are_slower_than_fp32_and_an_island_that_would_gain():
    slow = findings(MATMULS, [trial(B16, 0.8, {F32: 0.2})])
    # 0.8 of matmuls, a quarter of it left
    assert causes_of(slow) == [("slower-in-16-bits", 0.6)]
    assert "take 4.0 times as long" in advise(slow)[0].evidence
    # AMP gains on the whole, and one op has a slow kernel
    one_op = findings(MATMULS, [trial(B16, 0.4, {F32: 0.1}), *[trial(B16, 0.1, {F32: 0.3})] * 3])
    assert causes_of(one_op) == [("slower-in-16-bits", 0.3 * 0.8 / 0.7)]
    assert "`mm` takes 4.0 times as long in bfloat16" in advise(one_op)[0].evidence
    trials = [trial(F32, 0.4, {B16: 0.1}), trial(B16, 0.4, {F32: 0.9})]
    island = findings(MATMULS, trials, evidence=BOTH)
    assert causes_of(island) == [("fp32-island", 0.3)] and "line 3" in advise(island)[0].evidence


def test_reads_logging_and_python_are_distinguished_by_line():
    evidence, lines = Evidence([call()], lines=[None]), LineTimes(gaps=10, steps=20)
    evidence.reads[HERE] = 500
    lines.python.update({HERE: 6, THERE: 4})
    lines.logging.update({HERE: 6})
    found = findings({LAUNCH: 0.5, SYNC: 0.1}, evidence=evidence, lines=lines)
    assert causes_of(found) == [("host-waits", 0.4), ("python", 0.2)]
    words = advise(found)[0].evidence
    assert "500 times, 500 of them in line 3" in words and "On a GPU" in words
    # what is computed on that line is computed to be read, unless the model runs there
    lines.ops.update({HERE: 4})
    assert causes_of(found)[0] == ("host-waits", 0.4 + 4 / 20)
    evidence.lines[0] = HERE
    assert causes_of(found)[0] == ("host-waits", 0.4)
    lines.logs.add(HERE)  # then the reads' own time is left
    assert causes_of(found) == [("logging", 6 / 20), ("python", 0.2), ("host-waits", 0.1)]


def test_a_tensor_that_is_cast_again_and_again():
    cast, other = (
        CastRecord((address, 0, (64, 64)), F32, B16, 6 * 64 * 64, HERE) for address in (1, 2)
    )
    evidence = Evidence([call("cast")] * 5, lines=[HERE] * 5, casts=[cast] * 4 + [other])
    found = findings({CAST: 0.5}, evidence=evidence)
    assert causes_of(found) == [("repeated-casts", 0.5 * 3 / 5)]
    words = advise(found)[0].evidence
    assert "64 × 64" in words and " 4 times" in words
    once = Evidence([call()], lines=[None], casts=[cast, other])
    assert causes_of(findings({CAST: 0.5}, evidence=once)) == []


def test_reads_stand_above_the_small_ops_that_belong_to_them():
    evidence = Evidence([call("other")] * 40, lines=[HERE] * 40)
    evidence.reads[HERE] = 20
    times = {LAUNCH: 0.6, SYNC: 0.05, OPTIMIZER: 0.3}
    found = findings(times, evidence=evidence, fused=ADAM)
    assert [cause for cause, _ in causes_of(found)] == [
        "host-waits",
        "small-ops",
        "unfused-optimizer",
    ]
    found.times[SYNC] = 0.01  # too little to be worth a line
    assert "host-waits" not in [cause for cause, _ in causes_of(found)]


def test_the_largest_gain_comes_first_and_each_has_words():
    times = {WAIT: 0.2, OPTIMIZER: 0.5, LAUNCH: 0.3}
    found = findings(times, fused=ADAM, threads=(16, 2), other_threads=(1.0, 0.9))
    causes = ["unfused-optimizer", "small-ops", "waiting-for-data", "too-many-threads"]
    assert [cause for cause, _ in causes_of(found)] == causes
    for one in advise(found):
        assert one.evidence and one.fix
        assert not one.evidence.endswith(".") and not one.fix.endswith(".")
