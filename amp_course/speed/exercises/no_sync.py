"""Exercise 3 of chapter 09: a training loop that waits for the GPU only when a line of its log is
due.
"""

import math
import random
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number
from amp_course.speed.exercises.host_reads import CONDITION, SHAPE, TEXT, VALUE, HostReads

card = Card(
    chapter="speed",
    name="no_sync",
    number=3,
    title="Log without waiting",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=9,
    task="Write `no_sync(step, batches, every, log)`, which logs what the loop below logs, and at "
    "the same steps. After every `every`-th step it calls log(number, mean, largest, bad): the "
    "number of the step, the mean and the largest of the finite losses since the last line, and "
    "how many losses were not finite. Between two lines nothing may make the host wait for a "
    "value; for a line, it may wait at most 6 times (one `.tolist()` is one wait). `step(batch)` "
    "returns the loss with its graph: keep no old graph alive.",
    hints=(
        "On a GPU, `.item()`, `float(loss)`, `print(loss)` and `if loss > …` all wait. Which of "
        "them is needed before a line is due?",
        "Keep the losses of a window as tensors, each detached from its graph. One read of all of "
        "them is enough for a line.",
        "`window.append(step(batch).detach())`; when a line is due, "
        "`torch.stack(window).tolist()` gives plain numbers to filter.",
    ),
    why="While the host waits it launches nothing, so after each read the GPU is idle until new "
    "work arrives.",
    alternative="keep the sums on the device, `total += torch.where(loss.isfinite(), loss, 0)` "
    "and so on, and read three numbers for a line: that needs no memory for the window.",
)

_MOST = 6  # waits for a line
_WAITS = {
    VALUE: "reading values",
    CONDITION: "a condition",
    TEXT: "printing",
    SHAPE: "a shape that depends on values",
}


def right(step: Any, batches: Any, every: int, log: Any) -> None:
    window: list[Tensor] = []
    for number, batch in enumerate(batches, 1):
        loss = step(batch).detach()
        window.append(loss)
        if number % every == 0:
            losses = torch.stack(window).tolist()
            finite = [one for one in losses if math.isfinite(one)]
            log(number, sum(finite) / len(finite), max(finite), len(losses) - len(finite))
            window.clear()


class _Graph:
    """Lives as long as the graph of its step."""


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, value: Tensor, graph: _Graph) -> Tensor:
        ctx.graph = graph
        return weight * value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


STEPS, WHEN = "the number of steps", "the steps after which you log"
WAITS, READS = "what makes the host wait between two lines", "the number of waits for a line"
GRAPHS = "the old graphs that are still in memory"


class Training:
    """A training whose losses are given; it notes its log, what the host reads,
    and which graphs stay alive.
    """

    def __init__(self, losses: list[float]) -> None:
        self.batches = [torch.tensor(one) for one in losses]
        self.weight = torch.ones((), requires_grad=True)
        self.steps = self.alive = 0
        self.graphs: list[weakref.ref[_Graph]] = []
        self.lines: list[tuple[int, tuple[Any, ...]]] = []
        self.host = HostReads(lambda: self.steps)

    def step(self, batch: Any) -> Tensor:
        """Return the loss of a batch; note how many graphs of earlier steps are alive."""
        if not isinstance(batch, Tensor):
            raise TypeError(f"`step` expects one of the `batches`, and got {type(batch).__name__}")
        self.alive = max(self.alive, sum(graph() is not None for graph in self.graphs))
        self.steps += 1
        graph = _Graph()
        self.graphs.append(weakref.ref(graph))
        loss: Tensor = _Loss.apply(self.weight, batch, graph)
        loss.backward()
        return loss

    def log(self, number: Any, mean: Any, largest: Any, bad: Any) -> None:
        """Note a line; a tensor is read here, as `print` would."""
        line = [
            float(one) if isinstance(one, Tensor) and one.numel() == 1 else one
            for one in (number, mean, largest, bad)
        ]
        self.lines.append((self.steps, tuple(line)))

    def outputs(self, every: int, case: str) -> dict[str, Any]:
        """Return what is judged, in the order in which it is explained."""
        lines = [
            [read_number(one, case, "a line of your log holds") for one in line]
            for _, line in self.lines
        ]
        between = [read for read in self.host.reads if read.place % every]
        at_line = [sum(read.place == place for read in self.host.reads) for place, _ in self.lines]
        return {
            STEPS: self.steps,
            WHEN: [place for place, _ in self.lines],
            "the step numbers in the log": [_whole(line[0]) for line in lines],
            "the means in the log": [line[1] for line in lines],
            "the largest losses in the log": [line[2] for line in lines],
            "the counts of bad losses in the log": [_whole(line[3]) for line in lines],
            WAITS: " and ".join(sorted({_WAITS[read.kind] for read in between})) or "nothing",
            READS: f"{max(at_line)}" if at_line and max(at_line) > _MOST else f"at most {_MOST}",
            GRAPHS: "some"
            if self.alive > 2
            else "none",  # the variables `loss` and `previous` may hold one each
        }

    def facts(self, every: int) -> dict[str, Any]:
        """Return what messages quote."""
        between = [read for read in self.host.reads if read.place % every]
        return {
            "steps": _first(read.place for read in between),
            "calls": " and ".join(
                f"`{call}`" for call in dict.fromkeys(read.call for read in between)
            ),
            "lines": len(self.lines),
            "logged": _first(place for place, _ in self.lines) or "no step",
            "due": _first(range(every, self.steps + 1, every)),
            "taken": self.steps,
            "batches": len(self.batches),
            "graphs": self.alive,
            "reads": max(
                [
                    0,
                    *(
                        sum(read.place == place for read in self.host.reads)
                        for place, _ in self.lines
                    ),
                ]
            ),
        }


def _whole(number: float) -> float:
    return int(number) if number.is_integer() else number


def _first(places: Iterable[int]) -> str:
    """Name some steps: [1, 2, 3, 4, 5] → "steps 1, 2, 3, 4 …"; "" for none."""
    names = [str(place) for place in dict.fromkeys(places)]
    return (
        f"step{'s' if len(names) > 1 else ''} "
        f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        if names
        else ""
    )


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Three runs: finite losses, with steps left over; negative ones, some of them not finite;
    a line for every step.
    """
    high = [draw.uniform(1.0, 3.0) for _ in range(27)]
    low = [draw.uniform(-3.0, -1.0) for _ in range(20)]
    high[2], low[2] = 3.5, -0.5  # the largest are in the first window
    low[1], low[4], low[7], low[13] = math.nan, math.nan, math.inf, -math.inf
    runs = (
        (high, 8, "in a run of 27 steps with every=8"),
        (
            low,
            6,
            "in a run of 20 steps with every=6, where steps 2 and 5 give NaN, step 8 inf and step "
            "14 -inf",
        ),
        (high[:3], 1, "in a run of 3 steps with every=1"),
    )
    for losses, every, case in runs:
        training = Training(losses)
        with training.host:
            call_answer(answer, case, training.step, training.batches, every, training.log)
        yield Case(case, training.outputs(every, case), training.facts(every))


LOOP, LOSS = "for number, batch in enumerate(batches, 1):", "loss = step(batch).detach()"
DUE, LOSSES = "if number % every == 0:", "losses = torch.stack(window).tolist()"
FINITE, CLEAR = "finite = [one for one in losses if math.isfinite(one)]", "window.clear()"
LOG = "log(number, sum(finite) / len(finite), max(finite), len(losses) - len(finite))"
START = "window: list[Tensor] = []"


def _log(
    *,
    mean: str = "sum(finite) / len(finite)",
    largest: str = "max(finite)",
    bad: str = "len(losses) - len(finite)",
) -> Any:
    """Return the edit of a log line."""
    return {LOG: f"log(number, {mean}, {largest}, {bad})"}


def _late(step: Any, batches: Any, every: int, log: Any) -> None:
    """Log as the right answer does, after the last step."""
    lines: list[Any] = []
    right(step, batches, every, lambda *line: lines.append(line))
    for line in lines:
        log(*line)


mistakes = [
    Mistake(
        "drops the log",
        "nothing is logged: removing the log removes the waiting too, but call `log` after every "
        "`every`-th step",
        edits={LOG: "pass"},
        violates="which logs what the loop below logs",
    ),
    Mistake(
        "logs every step",
        "you log after each step: a line is due when `number % every == 0`",
        edits={
            DUE: "if True:",
            LOG: "log(number, sum(finite) / len(finite) if finite else math.nan, max(finite, "
            "default=math.nan), len(losses) - len(finite))",
        },
        violates="After every `every`-th step",
    ),
    Mistake(
        "logs after the last step",
        "all lines come after the last step: a log is for watching a run, so call `log` when its "
        "line is due",
        answer=_late,
        violates="at the same steps",
    ),
    Mistake(
        "logs the steps left over",
        "you log the steps that are left over at the end as well, and the loop does not",
        edits={DUE: "if number % every == 0 or number == len(batches):"},
    ),
    Mistake(
        "counts steps from 0",
        "the first line comes after step 1: count steps from 1, `enumerate(batches, 1)`",
        edits={LOOP: "for number, batch in enumerate(batches):"},
    ),
    Mistake(
        "counts lines",
        "this numbers the lines: log the number of the step",
        edits={LOG: LOG.replace("number", "number // every")},
        violates="the number of the step",
    ),
    Mistake(
        "keeps the last value only",
        "the mean in your log is the last loss alone: average all finite losses since the last "
        "line",
        edits=_log(mean="losses[-1]"),
        violates="the mean and the largest",
    ),
    Mistake(
        "sum instead of mean",
        "this is the sum of the losses: divide it by how many finite ones there are",
        edits=_log(mean="sum(finite)"),
    ),
    Mistake(
        "never clears",
        "the numbers are of all steps so far: start again after each line",
        edits={CLEAR: "pass"},
        violates="since the last line",
    ),
    Mistake(
        "divides by every",
        "the sum of the finite losses is divided by `every`: divide it by how many finite ones "
        "there are",
        edits=_log(mean="sum(finite) / every"),
        violates="of the finite",
    ),
    Mistake(
        "keeps what is not finite",
        "a loss that is not finite is in your mean, and makes it NaN or infinite: leave those out",
        edits={FINITE: "finite = losses"},
    ),
    Mistake(
        "leaves out NaN alone",
        "infinite losses are in your mean: leave out inf and -inf too, not only NaN",
        edits={FINITE: "finite = [one for one in losses if one == one]"},
    ),
    Mistake(
        "multiplies by a mask",
        "NaN · 0 is NaN, and so is inf · 0: a mask cannot take a loss out by multiplication. "
        "`torch.where` can",
        edits={
            FINITE: f"{FINITE}\nmasked = [one * math.isfinite(one) for one in losses]",
            **_log(mean="sum(masked) / len(finite)"),
        },
    ),
    Mistake(
        "replaces what is not finite",
        "`nan_to_num` makes 0 of NaN and ±3.4e38 of infinities, and both are in your mean: leave "
        "those losses out",
        edits={LOSSES: "losses = torch.stack(window).nan_to_num().tolist()"},
    ),
    Mistake(
        "the largest of all",
        "the largest loss in your log is NaN or inf: take the largest of the finite ones",
        edits=_log(largest="torch.stack(window).max().item()"),
    ),
    Mistake(
        "the largest starts at 0",
        "the largest loss in your log is 0, where all of them are negative. A 0 got in, as a "
        "starting value or in place of a loss that is not finite: `-math.inf` is right there",
        edits=_log(largest="max(0.0, *finite)"),
    ),
    Mistake(
        "the largest of the run",
        "the largest loss is that of all steps so far: start again after each line",
        edits={
            START: f"{START}\nrun = []",
            FINITE: f"{FINITE}\nrun += finite",
            **_log(largest="max(run)"),
        },
    ),
    Mistake(
        "counts the finite ones",
        "the last number in your log is how many losses were finite: log how many were not",
        edits=_log(bad="len(finite)"),
        violates="how many losses were not finite",
    ),
    Mistake(
        "counts bad losses of the run",
        "the count of bad losses is that of all steps so far: start again after each line",
        edits={
            START: f"{START}\nbad = 0",
            FINITE: f"{FINITE}\nbad += len(losses) - len(finite)",
            **_log(bad="bad"),
        },
    ),
    Mistake(
        "the loop unchanged",
        "the host still waits in {steps}, by {calls}. An `if` on a loss reads it, just as "
        "`.item()` does",
        edits={LOSS: f"{LOSS}\nif loss.isfinite():\n    loss.item()"},
    ),
    Mistake(
        "reads each loss",
        "the host reads the loss in {steps}, by {calls}: keep it as a tensor until a line is due",
        edits={LOSS: "loss = torch.tensor(step(batch).item())"},
        violates="nothing may make the host wait for a value",
    ),
    Mistake(
        "a condition on each loss",
        "a condition on the loss makes the host wait in {steps}: an `if` needs the value, just as "
        "`.item()` does. Ask when a line is due, or let `torch.where` and `torch.maximum` decide "
        "on the device",
        edits={LOSS: f"{LOSS}\nif loss > 1e9:\n    pass"},
    ),
    Mistake(
        "prints each loss",
        "printing or formatting the loss makes the host wait in {steps}, since it needs the value",
        edits={LOSS: f"{LOSS}\nstr(loss)"},
    ),
    Mistake(
        "one item at a time",
        "the host waits {reads} times for a line, once for each value: "
        "`torch.stack(window).tolist()` reads all of them in one copy",
        edits={LOSSES: "losses = [one.item() for one in window]"},
        violates="at most 6 times",
    ),
    Mistake(
        "keeps the graphs",
        "the losses that you keep hold on to their graphs, which pile up in memory: keep "
        "`loss.detach()`",
        edits={LOSS: "loss = step(batch)"},
        violates="keep no old graph alive",
    ),
]

no_sync = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        STEPS: "{case}, `step` was called {taken} times, and there are {batches} batches",
        WHEN: "{case}, you log {lines} times, after {logged}: once after each of {due} is right",
        WAITS: "{case}, the host waits in {steps}, by {calls}: until a line is due, do with the "
        "loss only what stays on the device",
        READS: "{case}, the host waits {got} times for one line. A mask such as `values[finite]` "
        "waits too, for the size of its result. Put what you need into one tensor, and read it by "
        "one `.tolist()`",
        GRAPHS: "{case}, the graphs of {graphs} earlier steps are still in memory: a loss that "
        "you keep holds on to its graph. Keep `loss.detach()`",
    },
)
