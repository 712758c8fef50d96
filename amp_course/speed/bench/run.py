"""Measure a machine for its page, part by part; the page of an interrupted run shows the parts that
are done.

malloc is left as it is. It may give freed memory back to the system and fetch it again in every
step, but it does the same in your training script; the page shows what that costs, as a part of the
gap. `faults.keep_freed_memory` would hide it.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amp_course import __version__
from amp_course.kit.hardware import MachineReport, machine_report
from amp_course.kit.measure import CpuWait, clock, seconds_text
from amp_course.loop.recipe import FP32, Recipe, recipes_for
from amp_course.loop.workloads import Workload, char_gpt, digits_resnet, simple_net
from amp_course.speed.bench.page import LeftOut, Page, Result
from amp_course.speed.machine import Machine, measure_machine
from amp_course.speed.prediction import predict_workload

_ENVIRONMENT = (  # variables that affect the times
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
)
# in a comparison of a slow recipe: one to warm up, two timed, and the ops of a step four times
_SLOW_STEPS = 7
_ROUNDS = 10_000  # as many as there is time for

Tick = Callable[
    [str, float], None
]  # what comes next, and the planned seconds of the part just done


@dataclass(frozen=True)
class Plan:
    """How long to measure, and what.

    machine_seconds: for rates, bandwidth and launch together
    seconds:         for one training under one recipe; one that needs more is left out
    sizes:           of the matrices; None takes those for the device
    """

    name: str
    machine_seconds: float
    seconds: float
    sizes: tuple[int, ...] | None = None
    workloads: Callable[[torch.device], Sequence[Workload]] = lambda device: (
        simple_net(device),
        digits_resnet(device),
        char_gpt(device),
    )


QUICK, FULL = Plan("quick", 5.0, 4.0), Plan("full", 20.0, 20.0)


class Bench:
    """One run on a device; `page()` returns what has been measured so far."""

    def __init__(self, device: torch.device, plan: Plan) -> None:
        self.device, self.plan = device, plan
        self.recipes = [recipe for recipe in recipes_for(device) if recipe.name != FP32.name]
        self.report: MachineReport | None = None
        self.measured: Machine | None = None
        self.results: list[Result] = []
        self.left_out: list[LeftOut] = []
        self.complete = False
        self._wait = CpuWait()
        self._began, self._date = time.monotonic(), datetime.datetime.now(datetime.UTC)
        self._load = _load()

    @property
    def planned_seconds(self) -> float:
        return self.plan.machine_seconds + 3 * len(self.recipes) * self.plan.seconds

    def run(self, tick: Tick = lambda what, seconds: None) -> None:
        """Measure everything; a KeyboardInterrupt leaves every part that is done."""
        with self._wait:
            self._run(tick)

    def _run(self, tick: Tick) -> None:
        tick("number formats", 0.0)
        self.report = machine_report(self.device)
        tick("the machine", 0.0)
        self.measured = measure_machine(
            self.device,
            sizes=self.plan.sizes,
            seconds=self.plan.machine_seconds,
            tick=lambda what: tick(f"the machine: {what}", 0.0),
        )
        done = self.plan.machine_seconds
        for workload in self.plan.workloads(self.device):
            for recipe in self.recipes:
                tick(f"{workload.title.partition(',')[0]}, {recipe.label}", done)
                self._compare(workload, recipe)
                done = self.plan.seconds
        tick("done", done)
        self.complete = True

    def _compare(self, workload: Workload, recipe: Recipe) -> None:
        most = self.plan.seconds / _SLOW_STEPS  # a slower step would take longer than planned
        try:
            seconds = self._step_seconds(workload, recipe, most)
            if seconds > most:
                times = seconds / self._step_seconds(workload, FP32, most)
                why = (
                    f"one step takes {seconds_text(seconds)}, "
                    f"{times:.{0 if times >= 9.95 else 1}f} times as long as in fp32"
                )
                self._leave_out(workload, recipe, why, times)
                return
            prediction = predict_workload(
                workload, recipe, self.device, seconds=self.plan.seconds, rounds=_ROUNDS
            )
            self.results.append(Result.of(workload.name, prediction))
        except (RuntimeError, ArithmeticError, ValueError, MemoryError) as error:
            # most often because the memory is too small
            why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            self._leave_out(workload, recipe, why)

    def _leave_out(
        self, workload: Workload, recipe: Recipe, why: str, times_fp32: float | None = None
    ) -> None:
        row = LeftOut(workload.title, recipe.name, f"left out: {why}", times_fp32)
        self.left_out.append(row)

    def _step_seconds(self, workload: Workload, recipe: Recipe, most: float) -> float:
        """Return the seconds of a step; of the faster of two if the first, which loads, is slow."""
        session = workload.start(recipe)
        batch, best = next(session.batches), float("inf")
        for _ in range(2):
            with recipe.precision():
                best = min(best, clock(lambda: session.stepper.step(*batch), self.device))
            if best <= most:
                break
        return best

    def page(self) -> Page:
        assert self.report is not None, "nothing has been measured yet"
        return Page(
            date=self._date.isoformat(timespec="seconds"),
            complete=self.complete,
            took_seconds=round(time.monotonic() - self._began, 1),
            versions={
                "course": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            settings=self._settings(),
            machine=self.report.to_dict(),
            measured=self.measured,
            results=tuple(self.results),
            left_out=tuple(self.left_out),
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "plan": self.plan.name,
            "machine_seconds": self.plan.machine_seconds,
            "seconds": self.plan.seconds,
            "keeps_freed_memory": False,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            "load_average": {"before": self._load, "after": _load()},
            "waited": self._wait.share,
        }


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
