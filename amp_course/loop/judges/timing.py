"""Judge a stopwatch on a machine with a clock of its own, so that no real time passes and nothing is noisy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from amp_course.checking import Wrong
from amp_course.checking.witness import drawn_seed

LAUNCH, LOAD = 0.0002, 0.030  # seconds of the CPU: to hand a step to the device, to load a batch


class PretendMachine:
    """A device that works through a queue while the CPU goes on, as a GPU does; its clock is a number.

    costs: seconds that each step takes on the device, in order
    """

    def __init__(self, costs: list[float]) -> None:
        self.costs, self.steps = costs, 0
        self.now = 100.0
        self.busy_until = self.now
        self.events: list[str] = []

    def clock(self) -> float:
        self.events.append("clock")
        return self.now

    def next_batch(self) -> Any:
        self.events.append("batch")
        self.now += LOAD
        return torch.zeros(1)

    def step(self, batch: Any) -> None:
        if self.steps == len(self.costs):
            raise Wrong(f"your function runs more than the warmup + repeats = {len(self.costs)} steps it was asked for")
        self.events.append("step")
        self.now += LAUNCH
        self.busy_until = max(self.busy_until, self.now) + self.costs[self.steps]
        self.steps += 1

    def synchronize(self) -> None:
        self.events.append("synchronize")
        self.now = max(self.now, self.busy_until)


def judge(answer: Callable[..., float]) -> None:
    """Run the answer on drawn machines: slow first steps, a queue, one hiccup of the operating system."""
    generator = torch.Generator().manual_seed(drawn_seed())
    for warmup, repeats in ((3, 11), (2, 21), (5, 7)):
        steady = [0.006 + 0.002 * torch.rand(1, generator=generator).item() for _ in range(repeats)]
        steady[repeats // 2] = 0.25
        costs = [0.5, *[0.05] * (warmup - 1), *steady]
        machine = PretendMachine(costs)
        got = answer(machine.step, machine.next_batch, machine.synchronize, machine.clock, warmup, repeats)
        truth = statistics.median(steady) + LAUNCH
        _diagnose(got, truth, machine, steady, warmup, repeats)


def _diagnose(got: Any, truth: float, machine: PretendMachine, steady: list[float], warmup: int, repeats: int) -> None:
    if got is None:
        raise Wrong("your function returned None: give the median back with `return`")
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, (int, float)):
        raise Wrong(f"your function returned a {type(got).__name__}: return one number, the seconds per step")
    seen = machine.events
    if "clock" not in seen:
        raise Wrong("`clock()` was never read: measure with the clock that is handed in, not with one of your own")
    if seen.count("step") < warmup + repeats:
        raise Wrong(
            f"{seen.count('step')} steps ran, and {warmup} warm-up + {repeats} timed ones were asked for: run the warm-up "
            "before the clock starts"
        )
    if abs(got - truth) <= 0.02 * truth:
        return
    told = f"you measured {got * 1e3:.3g} ms and a step takes {truth * 1e3:.3g} ms"
    last_clock = len(seen) - 1 - seen[::-1].index("clock")
    last_step = len(seen) - 1 - seen[::-1].index("step")
    if "synchronize" not in seen or "synchronize" not in seen[last_step:last_clock]:
        raise Wrong(
            f"the clock stopped before the device had done the work: {told}. A step only hands work to a queue; call "
            "`synchronize()` after it, then read the clock"
        )
    first_clock = seen.index("clock")
    if abs(got - truth * 1e3) <= 0.02 * truth * 1e3:
        raise Wrong(f"your answer is in milliseconds ({got:.3g}): the task asks for seconds")
    if seen[:first_clock].count("step") < warmup and _near(
        got, [(sum(machine.costs) / n) for n in (repeats, warmup + repeats)]
    ):
        raise Wrong(
            f"the first steps are in your measurement: {told}. They allocate memory and choose kernels, and cost up to "
            f"{machine.costs[0] / truth:.0f} times a usual step here: run them before the clock starts"
        )
    if abs(got - truth - LOAD) <= 0.3 * truth or _batch_while_timed(seen):
        raise Wrong(
            f"loading the batch is in your measurement: {told}. Call `next_batch()` before you read the clock, or you time "
            "the disk and not the training"
        )
    if _near(got, [sum(steady), sum(steady) + repeats * LAUNCH, sum(machine.costs)]):
        raise Wrong(f"that is the time of all steps together: {told}")
    if _near(got, [statistics.fmean(steady)]):
        raise Wrong(
            f"one hiccup moved your result: {told}. One of the {repeats} steps was interrupted by the operating system for "
            "250 ms; a mean carries that along, the median does not"
        )
    if seen[:first_clock].count("step") < warmup:
        raise Wrong(
            f"the clock started before the {warmup} warm-up steps were done: {told}. Run them first, then "
            "`synchronize()`, then read the clock"
        )
    if seen[first_clock - 1] != "synchronize" and seen.count("clock") == 2:
        raise Wrong(
            f"warm-up work was still in the queue when the clock started: {told}. Call `synchronize()` before, too"
        )
    raise Wrong(
        f"{told}. Take one sample a step (batch, synchronize, clock, step, synchronize, clock) and return the median"
    )


def _near(value: float, candidates: list[float]) -> bool:
    return any(abs(value - candidate) <= 0.1 * candidate for candidate in candidates)


def _batch_while_timed(seen: list[str]) -> bool:
    # Clock readings come in pairs, start and stop: an odd number of them before a batch means the clock runs.
    clocks = 0
    for event in seen:
        clocks += event == "clock"
        if event == "batch" and clocks % 2 == 1:
            return True
    return False
