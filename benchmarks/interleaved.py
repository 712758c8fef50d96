"""Time several sides of one training in turn, compare them round by round, and keep a record of the
run.

A round gives every side one block of steps, on the same batches. What slows the machine for a while
slows all sides of that round, so the ratio of two sides is taken round by round; the median of
those ratios is the answer.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amp_course.kit.hardware import MachineReport, pick_device
from amp_course.kit.measure import order_of_round, synchronize
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32, Recipe
from amp_course.loop.workloads import Workload, char_gpt, simple_net
from amp_course.speed.faults import keep_freed_memory, page_faults

RESULTS = Path(__file__).resolve().parent / "results"
WARMUP_BLOCKS = 2  # of each side, before the first round: memory is allocated, kernels are chosen
LEAST_ROUNDS = 3  # that are taken even if time is up
BATCHES = 16  # held on the device and used again and again, so that no side's time is a data set's

Batch = tuple[Tensor, Tensor]


@dataclass
class Side:
    """One way to train.

    run:    batches → the loss of each step as numbers (or none, from a side that logs nothing)
    before: what to put in place before a block; not timed
    """

    run: Callable[[Sequence[Batch]], Sequence[float]]
    before: Callable[[], None] = lambda: None
    losses: list[float] = field(default_factory=list)
    seconds_per_step: list[float] = field(default_factory=list)  # one a round
    faults_per_step: list[float] = field(
        default_factory=list
    )  # pages that the system had to hand out, one a round


def interleaved(
    sides: Mapping[Any, Side],
    batches: Sequence[Batch],
    device: torch.device,
    *,
    steps: int,
    rounds: int,
    seconds: float | None = None,
) -> None:
    """Give each side a block of `steps` steps in each of `rounds` rounds; the times and losses are
    left in the sides.

    No round begins after `seconds`, but LEAST_ROUNDS are taken.

    Every side is timed by the same clock, from idle device to idle device, around its whole block.
    A step that is not timed goes before each block, so that none finds the caches full of its
    predecessor's weights. The order moves on by one from round to round, and is reversed in every
    other one.
    """
    feeds = {name: itertools.cycle(batches) for name in sides}
    names, start = list(sides), time.monotonic()
    for number in range(-WARMUP_BLOCKS, rounds):
        if number >= LEAST_ROUNDS and seconds is not None and time.monotonic() - start > seconds:
            return
        for name in order_of_round(names, number):
            side = sides[name]
            side.before()
            side.losses += side.run([next(feeds[name])])
            block = list(itertools.islice(feeds[name], steps))
            synchronize(device)
            faults, began = page_faults(), time.perf_counter()
            losses = side.run(block)
            synchronize(device)
            seconds, faults = time.perf_counter() - began, page_faults() - faults
            side.losses += losses
            if number >= 0:
                side.seconds_per_step.append(seconds / steps)
                side.faults_per_step.append(faults / steps)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median and quartiles, to six figures: [1, 2, 3] → {"median": 2.0, "q1": 1.5, "q3":
    2.5}.
    """
    values = list(values)
    q1, median, q3 = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {
        name: float(f"{value:.6g}") for name, value in (("median", median), ("q1", q1), ("q3", q3))
    }


def speed_ratio(side: Side, other: Side) -> list[float]:
    """Return, round by round, the steps per second of `side` over those of `other`:
    above 1, `side` is faster.
    """
    return [b / a for a, b in zip(side.seconds_per_step, other.seconds_per_step, strict=True)]


def workloads_for(device: torch.device, tiny: bool) -> list[Workload]:
    """Return SimpleNet and the character GPT in the size for the device;
    `tiny` is for trying the programs out.
    """
    if tiny:
        return [simple_net(device, width=32, batch_size=4), char_gpt(device, batch_size=1)]
    return [simple_net(device), char_gpt(device)]


def recipes_for(machine: MachineReport) -> tuple[list[Recipe], dict[str, str]]:
    """Return the recipes to time on a machine, and those left out, each with the reason."""
    state = {support.name: support.state for support in machine.dtypes}
    if state["fp16"] == "native":
        return [FP32, AMP_BF16, AMP_FP16], {}
    why = f"fp16 is {state['fp16']} on this device, so its speed says nothing about AMP"
    return [FP32, AMP_BF16], {AMP_FP16.name: why}


def take_batches(workload: Workload) -> list[Batch]:
    """Return the workload's first batches, on its device."""
    return list(itertools.islice(workload.start(FP32).batches, BATCHES))


def arguments(
    description: str,
    *,
    rounds: int,
    steps: int,
    argv: Sequence[str] | None = None,
    limited: bool = True,
) -> argparse.Namespace:
    """Read the command line that the benchmarks have in common;
    `--seconds` is for those that take turns by `interleaved`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--device", type=torch.device, default=pick_device(), help="default: %(default)s"
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="turns of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=steps, help="steps in a turn (default: %(default)s)"
    )
    if limited:
        parser.add_argument(
            "--seconds", type=float, help="most seconds for one comparison (default: no limit)"
        )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder of the record (default: benchmarks/results)",
    )
    parser.add_argument(
        "--threads", type=int, help="threads of torch (default: torch's own choice)"
    )
    parser.add_argument(
        "--usual-malloc", action="store_true", help="let malloc give freed memory back, as it does"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models: tries the program out, measures nothing"
    )
    chosen = parser.parse_args(argv)
    if chosen.rounds < 1 or chosen.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    chosen.keeps_freed_memory = not chosen.usual_malloc and keep_freed_memory()
    return chosen


def warn_if_busy() -> None:
    """Say so if other programs are at work: the ratios survive it, the times do not."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.25 * (os.cpu_count() or 2):
        print(
            f"This machine is busy (load {os.getloadavg()[0]:.1f}): run this when it is quiet for "
            f"numbers to keep.\n"
        )


class Record:
    """The record of one run, as it goes into results/."""

    def __init__(
        self, benchmark: str, machine: MachineReport, chosen: argparse.Namespace, **more: Any
    ) -> None:
        """Note the machine, the versions, the settings and the date."""
        self.name, self.folder = (
            f"{benchmark}-{chosen.device.type}-{slug(machine.device_name)}",
            chosen.out,
        )
        self.began = datetime.datetime.now(datetime.UTC)
        self.data: dict[str, Any] = {
            "benchmark": benchmark,
            "date": self.began.isoformat(timespec="seconds"),
            "machine": machine.to_dict(),
            "versions": {
                "python": platform.python_version(),
                **_versions("torch", "accelerate", "lightning-fabric"),
            },
            "settings": {
                "device": str(chosen.device),
                "rounds": chosen.rounds,
                "steps_per_block": chosen.steps,
                "seconds": getattr(chosen, "seconds", None),
                "warmup_blocks": WARMUP_BLOCKS,
                "tiny": chosen.tiny,
                "keeps_freed_memory": chosen.keeps_freed_memory,
                "threads": torch.get_num_threads(),
                "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            },
            "load_average": {"before": _load()},
            **more,
            "workloads": {},
        }

    def write(self) -> Path:
        """Write results/<benchmark>-<device>-<machine>-<date>.json and return where;
        a day's last run is kept.
        """
        self.data["load_average"]["after"] = _load()
        seconds = (datetime.datetime.now(datetime.UTC) - self.began).total_seconds()
        self.data["took_seconds"] = round(seconds, 1)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.name}-{self.began:%Y-%m-%d}.json"
        path.write_text(_neat(json.dumps(self.data, indent=1)) + "\n")
        return path


def _neat(text: str) -> str:
    """Put each list of numbers on one line: they are many, and nobody reads them one by one."""
    return re.sub(
        r"\[\s+([-\d.e,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text
    )


def slug(name: str) -> str:
    """Return a name as a file's may be: "AMD EPYC" → "amd-epyc"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "unknown"


def _versions(*names: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
