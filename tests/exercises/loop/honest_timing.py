"""Answers to `honest_timing`, written without a look at its table of mistakes."""

import statistics
import time

from amp_course.checking import edited


def plain(step, load, wait, clock, warmup, repeats):
    times = []
    for _ in range(warmup + repeats):
        batch = load()
        wait()  # idle
        start = clock()
        step(batch)
        wait()
        times.append(clock() - start)
    return statistics.median(times[warmup:])


LOAD, STEP, RETURN = "batch = load()", "step(batch)", "return statistics.median(times[warmup:])"
MIDDLE = "s = sorted(times[warmup:])\nreturn (s[len(s) // 2] + s[~len(s) // 2]) / 2"
QUEUE = {
    "times = []": "times, batches = [], [load() for _ in range(warmup + repeats)]",
    LOAD: "batch = batches.pop()",
}
RIGHT = {
    "the warm-up sliced off": plain,
    "all loaded before": edited(plain, QUEUE),
    "one batch, own median": edited(
        plain, {"times = []": f"times = []\n{LOAD}", LOAD: "pass", RETURN: MIDDLE}
    ),
}


def in_one_go(step, load, wait, clock, warmup, repeats):
    for number in range(warmup + repeats):
        if number == warmup:
            wait()
            start = clock()
        step(load())
    wait()
    return (clock() - start) / repeats


WRONG = {
    "in one go": (in_one_go, "one clock around all steps"),
    "all loaded, in one go": (
        lambda step, load, *more: in_one_go(
            step, iter([load() for _ in range(20)]).__next__, *more
        ),
        "one clock around all steps, loaded before",
    ),
    "another clock": (
        lambda step, load, wait, clock, *more: plain(step, load, wait, time.perf_counter, *more),
        None,
    ),
    "idle after the step only": (
        edited(plain, {"wait()  # idle": "if times: wait()"}),
        "busy without warm-up",
    ),
    "loading timed, mean": (
        edited(plain, {STEP: "step(load())", RETURN: RETURN.replace("median", "fmean")}),
        None,
    ),
    "the upper of two": (
        edited(plain, {RETURN: RETURN.replace("median", "median_high")}),
        "the upper of two",
    ),
}
