"""Try `explain` and the predicted speed-up out: do the kinds add up, what does explaining cost, is
the planted cause named first?

Each of the ten planted steps is explained, and so is the same step with its cause fixed: is the
cause still named? Then both are timed without any tool, in turn. Then the three workloads: what AMP
should buy, and what it does.

    python -m benchmarks.explain
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.loop.workloads import char_gpt, digits_resnet, simple_net
from amp_course.speed.experiments.workbench import low_recipe
from amp_course.speed.explain import Explanation, explain
from amp_course.speed.prediction import predict_workload
from benchmarks.interleaved import Record, arguments, spread, warn_if_busy
from benchmarks.planted_slow import MANY_THREADS, PLANTED, Planted


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads while the body runs."""
    now = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(now)


SHOWN = 1.05  # times as long as its cure: with less, a step hardly has the fault that was planted


def thread_count(planted: Planted, fixed: bool) -> int:
    """Return how many threads a step is to run with."""
    return MANY_THREADS if planted.many_threads and not fixed else torch.get_num_threads()


def plain_seconds(planted: Planted, fixed: bool, chosen: Any) -> list[float]:
    """Return seconds of a step, waiting for its batch included, without any tool."""
    step, batches = planted.build(fixed)
    seconds: list[float] = []
    with threads(thread_count(planted, fixed)):
        while len(seconds) < chosen.steps + 2:
            iterator = iter(batches)
            for _ in range(len(batches)):  # type: ignore[arg-type]
                start = time.perf_counter()
                step(*next(iterator))
                seconds.append(time.perf_counter() - start)
                if len(seconds) == chosen.steps + 2:
                    break
    return seconds[2:]


def explained(planted: Planted, fixed: bool, seconds: float) -> Explanation:
    """Explain a planted step, or its cure."""
    step, batches = planted.build(fixed)
    with threads(thread_count(planted, fixed)):
        return explain(step, batches, seconds=seconds)


def try_planted(planted: Planted, chosen: Any) -> dict[str, Any]:
    """Explain a planted step and its cure; time both, in turn."""
    budget = 0.3 if chosen.tiny else 3.0
    start = time.perf_counter()
    found = explained(planted, False, budget)
    took = time.perf_counter() - start
    after = [one.cause for one in explained(planted, True, budget).advice]
    sides: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(chosen.rounds):
        for fixed, seconds in sides.items():
            seconds += plain_seconds(planted, fixed, chosen)
    plain, fixed = spread(sides[False]), spread(sides[True])
    first = found.advice[0].cause if found.advice else None
    return {
        "expected": list(planted.causes),
        "same_work": planted.same_work,
        "named": [one.cause for one in found.advice],
        "evidence": found.advice[0].evidence if found.advice else "",
        "first_is_planted": first in planted.causes,
        "named_when_fixed": after,
        "fixed_is_accused": any(cause in planted.causes for cause in after)
        if planted.same_work
        else None,
        "shown": not planted.same_work or plain["median"] > SHOWN * fixed["median"],
        "explained_seconds": found.seconds,
        "plain_seconds": plain,
        "fixed_seconds": fixed,
        "kinds": found.kinds,
        "kinds_over_plain": sum(found.kinds.values()) / plain["median"],
        "recorded_over_plain": found.recorded / found.seconds,
        "explain_took_seconds": took,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; return 1 if fewer than nine of the ten causes are named first."""
    chosen = arguments((__doc__ or "").split("\n")[0], rounds=3, steps=20, argv=argv, limited=False)
    warn_if_busy()
    record = Record("explain", machine_report(chosen.device), chosen)
    planted = record.data["planted"] = {}
    for one in PLANTED[: 3 if chosen.tiny else None]:
        tried = planted[one.name] = try_planted(one, chosen)
        times = [seconds_text(tried[side]["median"]) for side in ("plain_seconds", "fixed_seconds")]
        sign = "yes" if tried["first_is_planted"] else "NO" if tried["shown"] else "–"
        ratios = (
            f"kinds/step {tried['kinds_over_plain']:.2f}   recorded/step "
            f"{tried['recorded_over_plain']:.2f}"
        )
        named, after = (", ".join(tried[key]) or "nothing" for key in ("named", "named_when_fixed"))
        print(
            f"{sign:4}{one.name:28}{times[0]:>8}, fixed {times[1]:>8}   {ratios}   {named}; fixed: "
            f"{after}"
        )
    recipe = low_recipe(chosen.device)
    for workload in (simple_net, digits_resnet, char_gpt)[: 1 if chosen.tiny else None]:
        small = {"batch_size": 2} if chosen.tiny else {}
        seconds = 0.3 if chosen.tiny else 4.0
        found = predict_workload(
            workload(chosen.device, **small), recipe, chosen.device, seconds=seconds
        )
        record.data["workloads"][workload.__name__] = {**found.to_dict(), "error": found.error}
        gap = ", ".join(f"{name} {value * 1e3:+.2f} ms" for name, value in found.gap().items())
        print(
            f"{found.title:34}{recipe.label}   ceiling {found.ceiling:.3f}, predicted "
            f"{found.predicted:.3f}, measured {found.measured:.3f} ({found.error:+.1%})   {gap}"
        )
    right = sum(tried["first_is_planted"] for tried in planted.values())
    shown = sum(tried["shown"] for tried in planted.values())
    record.data |= {"named_first": right, "shown": shown}
    print(
        f"{right} of {len(planted)} planted causes named first; {shown} of them make a step more "
        f"than {SHOWN - 1:.0%} slower on this machine. Written to {record.write()}."
    )
    return 0 if right >= len(planted) - 1 or chosen.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
