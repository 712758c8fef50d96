"""Exercise 1 of chapter 06: time a step, on simulated machines without noise."""

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number

card = Card(
    chapter="loop",
    name="honest_timing",
    number=1,
    title="Time a step honestly",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=10,
    task="Write `honest_timing(step, next_batch, synchronize, clock, warmup, repeats)`: return "
    "the median time, in seconds, of `repeats` steps, on a device that works through a queue. Run "
    "`warmup` steps first, which do not count, and leave out the loading of batches and any work "
    "still in the queue.",
    hints=(
        "One line is timed, with four others around it. Which come before the clock starts, and "
        "which before it stops?",
        "Warm up first: `warmup` times `step(next_batch())`, with no clock. Then take one sample "
        "for each of `repeats` steps.",
        "One sample: fetch the batch, `synchronize()`, `start = clock()`, `step(batch)`, "
        "`synchronize()`, `clock() - start`.",
    ),
    why="One missing synchronisation, or a slow first step that counts, can make any recipe look "
    "faster.",
    alternative="on a GPU, CUDA events around each step, and one `synchronize()` at the end: "
    "`amp_course.kit.measure.StepTimer`.",
)


def right(
    step: Any, next_batch: Any, synchronize: Any, clock: Any, warmup: int, repeats: int
) -> float:
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        synchronize()  # the device is idle
        start = clock()
        step(batch)
        synchronize()  # the work is done
        samples.append(clock() - start)
    return statistics.median(samples)


LAUNCH = 0.0002  # seconds to put a step into the queue
HICCUP = 0.25  # seconds that a step takes when the operating system interrupts it
CASES = (  # how many warm-up steps; seconds to load a batch; how long each timed step takes
    (3, 0.03, (1.1, 1.4, 1.0, 1.5, 1.2, HICCUP, 1.3, 1.6, 1.05, 1.45, 1.25)),
    (2, 0.001, (1.1, 1.3, 1.0, 1.2, HICCUP, 1.6)),
    (0, 0.002, (1.2, 1.0)),
    (1, 0.002, (1.3,)),
)


class PretendMachine:
    """A device that works through a queue while the CPU goes on, as a GPU does.

    costs: seconds that each step takes on the device; later ones take as long as the last
    load:  seconds to load a batch, twice as long for every second one
    busy:  seconds of work queued at the start
    """

    def __init__(
        self, costs: list[float], load: float, start: float = 0.0, busy: float = 0.0
    ) -> None:
        self.costs, self.load, self.now = costs, load, start
        self.idle_from = start + busy
        self.loads = self.steps = self.looks = 0

    def clock(self) -> float:
        self.looks += 1
        return self.now

    def next_batch(self) -> Any:
        self.now += self.load * (1 + self.loads % 2)
        self.loads += 1
        return torch.zeros(1)

    def step(self, batch: Any) -> None:
        if not isinstance(batch, torch.Tensor):
            raise TypeError(
                f"`step` expects a batch from `next_batch()`, and got {type(batch).__name__}"
            )
        self.now += LAUNCH
        cost = self.costs[min(self.steps, len(self.costs) - 1)]
        self.idle_from = max(self.idle_from, self.now) + cost
        self.steps += 1

    def synchronize(self) -> None:
        self.now = max(self.now, self.idle_from)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Time slow warm-up steps, a hiccup and times that all differ; batches load slowly or fast."""
    for warmup, load, times in CASES:
        pace = draw.uniform(0.006, 0.008)
        costs = [0.5, 0.2, 0.2][:warmup] + [t if t == HICCUP else pace * t for t in times]
        machine = PretendMachine(costs, load, draw.uniform(0, 10), busy=0.0 if warmup else 0.4)
        calls = machine.step, machine.next_batch, machine.synchronize, machine.clock
        case = f"with warmup={warmup} and repeats={len(times)}"
        case += "" if warmup else ", on a device that is busy at the start"
        seconds = read_number(call_answer(answer, case, *calls, warmup, len(times)), case)
        outputs = {
            "the clock that you read": "`clock()`" if machine.looks else "another",
            "the number of steps that ran": machine.steps,
            "your time in seconds": seconds if machine.looks else 0.0,  # a real clock's differ
        }
        yield Case(case, outputs, evidence={"seconds": seconds} if machine.looks else {})


WARM = "for _ in range(warmup):"
SAMPLES = "samples = []"
REPEAT = "for _ in range(repeats):"
LOAD = "batch = next_batch()"
IDLE = "synchronize()  # the device is idle"
START = "start = clock()"
STEP = "step(batch)"
DONE = "synchronize()  # the work is done"
SAMPLE = "samples.append(clock() - start)"
RETURN = "return statistics.median(samples)"

mistakes = [
    Mistake(
        "no warm-up",
        "the first steps are in your measurement, and they are slow. Run `warmup` steps before "
        "the clock starts",
        edits={WARM: "for _ in range(0):"},
        violates="Run `warmup` steps first",
    ),
    Mistake(
        "clock stopped too early",
        "the clock stopped before the work was done, since `step` only queues it. Call "
        "`synchronize()` after it",
        edits={DONE: "pass"},
        violates="a device that works through a queue",
    ),
    Mistake(
        "clock started on a busy device",
        "the clock started with earlier work still in the queue. Call `synchronize()` before "
        "`start = clock()`",
        edits={IDLE: "pass"},
        violates="any work still in the queue",
    ),
    Mistake(
        "busy without warm-up",
        "without warm-up steps, the clock started on a busy device. Call `synchronize()` first in "
        "any case",
        edits={IDLE: f"if warmup:\n    {IDLE}"},
    ),
    Mistake(
        "loading timed",
        "loading the batch is in your measurement. Call `next_batch()` before you read the clock",
        edits={LOAD: "pass", STEP: "step(next_batch())"},
        violates="leave out the loading of batches",
    ),
    *(
        Mistake(
            f"one clock around all steps{name}",
            "this is the time of all steps together, divided by their number. Take one sample for "
            "each step, with the batch loaded before the clock starts, and return the median",
            edits={
                SAMPLES: f"{first}synchronize()\n{START}",
                LOAD: load,
                IDLE: "pass",
                START: "pass",
                DONE: "pass",
                SAMPLE: "pass",
                RETURN: "synchronize()\nreturn (clock() - start) / repeats",
            },
        )
        for name, first, load in (
            ("", "", LOAD),
            (
                ", loaded before",
                "all = [next_batch() for _ in range(repeats)]\n",
                "batch = all.pop()",
            ),
        )
    ),
    Mistake(
        "warm-up among the samples",
        "the warm-up steps are among your samples. Take samples only of the `repeats` steps after "
        "them",
        edits={WARM: "for _ in range(0):", REPEAT: "for _ in range(warmup + repeats):"},
    ),
    Mistake(
        "mean instead of median",
        "the operating system interrupted one step for 250 ms, and the mean shows it. Take the "
        "median",
        edits={RETURN: "return statistics.mean(samples)"},
        violates="the median time",
    ),
    Mistake(
        "milliseconds",
        "this is the time in milliseconds. Return seconds",
        edits={RETURN: "return 1000 * statistics.median(samples)"},
        violates="in seconds",
    ),
    Mistake(
        "one sample too few",
        "this is the median without the first step after the warm-up, which is the first of the "
        "`repeats` that count",
        edits={RETURN: "return statistics.median(samples[1:])"},
    ),
    *(
        Mistake(
            f"the {which} of two",
            f"the median of 6 samples is the mean of the middle two, and this is the {which} one",
            edits={RETURN: f"return statistics.median_{word}(samples)"},
        )
        for which, word in {"upper": "high", "lower": "low"}.items()
    ),
    Mistake(
        "the fastest step",
        "this is the time of the fastest step, as `timeit` suggests. Return the median",
        edits={RETURN: "return min(samples)"},
    ),
]

honest_timing = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=2e-3,
    messages={
        "the clock that you read": "`clock()` was never read. Use the `clock` that is passed in, "
        "which is this machine's own"
    },
)
