"""Time the course's models with the watch of `first_nonfinite` and with `watch_ranges` on, in turn
with a plain step.

python -m benchmarks.debugging
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from amp_course.debugging.nonfinite import Watch
from amp_course.debugging.ranges import watch_ranges
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.loop.recipe import FP32
from amp_course.loop.workloads import Workload, digits_resnet
from benchmarks.interleaved import (
    Batch,
    Record,
    Side,
    arguments,
    interleaved,
    speed_ratio,
    spread,
    take_batches,
    warn_if_busy,
    workloads_for,
)

WATCH_LIMIT, RANGES_LIMIT = 15.0, 1.3  # times the step


def compare(workload: Workload, chosen: Any) -> dict[str, Any]:
    """Train three copies of a workload: plain, watched for inf and NaN,
    and with its ranges measured every tenth pass.
    """

    def side(watching: Callable[[nn.Module], AbstractContextManager[Any]]) -> Side:
        stepper = workload.start(FP32).stepper
        watch = watching(stepper.model)

        def run(batches: Sequence[Batch]) -> list[float]:
            with watch:
                return [stepper.step(x, y).item() for x, y in batches]

        return Side(run)

    sides = {
        "plain": side(lambda model: nullcontext()),
        "first_nonfinite": side(lambda model: Watch([model])),
        "watch_ranges": side(lambda model: watch_ranges(model, say=lambda text: None)),
    }
    interleaved(
        sides,
        take_batches(workload),
        chosen.device,
        steps=chosen.steps,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
    )
    same = len({tuple(one.losses) for one in sides.values()}) == 1
    return {
        "title": workload.title,
        "same_results": same,
        "seconds": {name: spread(one.seconds_per_step) for name, one in sides.items()},
        "times_plain": {
            name: spread(speed_ratio(sides["plain"], sides[name])) for name in list(sides)[1:]
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if a tool costs more than it may."""
    chosen = arguments((__doc__ or "").split("\n")[0], rounds=8, steps=10, argv=argv)
    warn_if_busy()
    record = Record("debugging", machine_report(chosen.device), chosen)
    fine = True
    for workload in [
        *workloads_for(chosen.device, chosen.tiny),
        digits_resnet(chosen.device, 8 if chosen.tiny else None),
    ]:
        found = record.data["workloads"][workload.name] = compare(workload, chosen)
        ratios = {name: one["median"] for name, one in found["times_plain"].items()}
        print(
            f"{found['title']:45} step {seconds_text(found['seconds']['plain']['median'])}   "
            + "   ".join(f"{name} {ratio:.2f} times" for name, ratio in ratios.items())
        )
        if not found["same_results"]:
            print("    the losses differ: a tool changes the training")
        fine = (
            fine
            and found["same_results"]
            and ratios["first_nonfinite"] <= WATCH_LIMIT
            and ratios["watch_ranges"] <= RANGES_LIMIT
        )
    print(f"\nwritten: {record.write().name}")
    return 0 if fine or chosen.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
