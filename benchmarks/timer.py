"""Time what our measuring costs: `train`, which clocks and logs every step, next to a bare loop
that does neither.

End to end, that cost drowns in the noise of a step of milliseconds. So it is also measured on a
step of next to no work, where it is most of the difference, in microseconds. Also the direct cost
of a StepTimer's start and stop, and what a whole call of `train` as it comes (which counts the
bytes of one step, and has a bar at the ready) takes beyond one without.

    python -m benchmarks.timer
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import StepTimer, seconds_text, synchronize
from amp_course.loop.recipe import FP32, Recipe
from amp_course.loop.train import run
from amp_course.loop.workloads import Session, Workload, simple_net
from benchmarks.interleaved import (
    Batch,
    Record,
    Side,
    arguments,
    interleaved,
    recipes_for,
    speed_ratio,
    spread,
    take_batches,
    warn_if_busy,
    workloads_for,
)
from benchmarks.peers import course

CLOCKED = 1000  # start-stop pairs in a sample of the direct cost
TINY_STEPS = 100  # of a net so small that a step is nearly all overhead
CALLS = 5  # whole calls of train, with and without the count of bytes


def bare(session: Session, device: torch.device) -> Side:
    """Train by the loop that a reader would write, with nothing measured and nothing logged."""
    stepper = session.stepper
    model, optimizer, loss_fn = stepper.model, stepper.optimizer, stepper.loss_fn
    scaler, dtype = stepper.scaler, stepper.dtype

    def plain(batches: Sequence[Batch]) -> Sequence[float]:
        for inputs, targets in batches:
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return []

    def amp(batches: Sequence[Batch]) -> Sequence[float]:
        for inputs, targets in batches:
            with torch.autocast(device.type, dtype=dtype):
                loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return []

    def amp_scaled(batches: Sequence[Batch]) -> Sequence[float]:
        for inputs, targets in batches:
            with torch.autocast(device.type, dtype=dtype):
                loss = loss_fn(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return []

    return Side(plain if dtype is None else amp if scaler is None else amp_scaled)


def start_stop_seconds(device: torch.device, samples: int) -> list[float]:
    """Return the seconds of a StepTimer's start and stop together,
    on a device with nothing to do.
    """
    seconds = []
    for _ in range(samples):
        timer = StepTimer(device)
        synchronize(device)
        began = time.perf_counter()
        for _ in range(CLOCKED):
            timer.start()
            timer.stop()
        seconds.append((time.perf_counter() - began) / CLOCKED)
        synchronize(device)
    return seconds


def overhead_seconds(recipe: Recipe, device: torch.device, rounds: int) -> list[float]:
    """Return what `train` takes longer than the bare loop, in seconds per step, round by round,
    on a tiny net.
    """
    workload = simple_net(device, width=8, batch_size=2)
    sides = {
        "bare": bare(workload.start(recipe), device),
        "train": course(workload.start(recipe), device),
    }
    with FP32.precision():
        interleaved(sides, take_batches(workload), device, steps=TINY_STEPS, rounds=rounds)
    both = zip(sides["train"].seconds_per_step, sides["bare"].seconds_per_step, strict=True)
    return [with_measuring - without for with_measuring, without in both]


def whole_calls(
    workload: Workload, recipe: Recipe, batches: Sequence[Batch], calls: int
) -> dict[str, Any]:
    """Return the seconds of new trainings by `train` as it comes,
    and by `train` that counts no bytes, in turn.
    """
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(-1, calls):
        for memory in (True, False) if number % 2 else (False, True):
            stepper = workload.start(recipe).stepper
            began = time.perf_counter()
            with contextlib.redirect_stderr(
                io.StringIO()
            ):  # a slow machine's bar is made, not shown
                run(stepper, batches, recipe, memory=memory, progress=memory)
            # No need to synchronise: run() reads the losses at its end.
            if number >= 0:
                seconds[memory].append(time.perf_counter() - began)
    extra = [a - b for a, b in zip(seconds[True], seconds[False], strict=True)]
    return {
        "steps": len(batches),
        "seconds_as_it_comes": spread(seconds[True]),
        "seconds_without_memory_and_bar": spread(seconds[False]),
        "extra_seconds": spread(extra),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print the table, write the record."""
    chosen = arguments(__doc__.partition("\n")[0], rounds=80, steps=10, argv=argv)
    device = chosen.device
    warn_if_busy()
    machine = machine_report(device)
    recipes, left_out = recipes_for(machine)
    clock = spread(start_stop_seconds(device, samples=3 if chosen.tiny else 20))
    overhead = {
        recipe.name: spread(overhead_seconds(recipe, device, chosen.rounds)) for recipe in recipes
    }
    record = Record(
        "timer",
        machine,
        chosen,
        left_out=left_out,
        start_stop_seconds=clock,
        overhead_seconds=overhead,
    )
    print(f"{machine.device_name}, {machine.threads} threads, torch {machine.torch_version}")
    print(f"StepTimer, start and stop together: {seconds_text(clock['median'])}")
    for recipe in recipes:
        cost = overhead[recipe.name]
        quartiles = f"{seconds_text(cost['q1'])} to {seconds_text(cost['q3'])}"
        print(
            f"train() over a bare loop, {recipe.label}, tiny net: {seconds_text(cost['median'])} a "
            f"step ({quartiles})"
        )
    for workload in workloads_for(device, chosen.tiny):
        batches = take_batches(workload)
        print(f"\n{workload.title}, in {chosen.rounds} rounds of {chosen.steps} steps")
        print(
            "  recipe    bare step   train() costs on top of it          StepTimer alone   a call "
            "with all defaults"
        )
        found: dict[str, Any] = {}
        for recipe in recipes:
            sides = {
                "bare": bare(workload.start(recipe), device),
                "train": course(workload.start(recipe), device),
            }
            with FP32.precision():
                interleaved(
                    sides,
                    batches,
                    device,
                    steps=chosen.steps,
                    rounds=chosen.rounds,
                    seconds=chosen.seconds,
                )
            step = spread(sides["bare"].seconds_per_step)
            found[recipe.name] = {
                "bare_seconds_per_step": step,
                "train_seconds_per_step": spread(sides["train"].seconds_per_step),
                "page_faults_per_step": {
                    name: spread(side.faults_per_step)["median"] for name, side in sides.items()
                },
                "cost": spread(ratio - 1 for ratio in speed_ratio(sides["bare"], sides["train"])),
                "overhead_share_of_step": overhead[recipe.name]["median"] / step["median"],
                "start_stop_share_of_step": clock["median"] / step["median"],
                "defaults": whole_calls(workload, recipe, batches, 1 if chosen.tiny else CALLS),
            }
            print(_row(recipe.label, found[recipe.name], clock["median"]))
        record.data["workloads"][workload.name] = {"title": workload.title, "recipes": found}
    print(f"\nwritten: {record.write()}")
    return 0


def _row(label: str, found: dict[str, Any], clock: float) -> str:
    step, cost, calls = found["bare_seconds_per_step"]["median"], found["cost"], found["defaults"]
    percent = f"{cost['median']:+.2%} ({cost['q1']:+.2%} to {cost['q3']:+.2%})"
    extra = calls["extra_seconds"]["median"]
    return (
        f"  {label:<9} {seconds_text(step):<11} {percent:<35} {clock / step:<17.4%} "
        f"{extra * 1e3:+.1f} ms in {calls['steps']} steps, as {extra / step:.1f} steps"
    )


if __name__ == "__main__":
    sys.exit(main())
