"""Exercise 3 of chapter 09: a training loop that waits for the GPU only when it logs a line."""

import math
import random
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number
from amp_course.speed.exercises.host_reads import HostReads

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
        "them do you need before a line is due?",
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


def right(step: Any, batches: Any, every: int, log: Any) -> None:
    window: list[Tensor] = []
    for number, batch in enumerate(batches, 1):
        loss = step(batch).detach()
        window.append(loss)
        if number % every == 0:
            losses = torch.stack(window).tolist()  # the one read
            finite = [one for one in losses if math.isfinite(one)]
            log(number, sum(finite) / len(finite), max(finite), len(losses) - len(finite))
            window.clear()


class Training:
    """A training with given losses. It records the log, what the host reads, and the graphs."""

    def __init__(self, losses: list[float]) -> None:
        self.batches = [torch.tensor(one) for one in losses]
        self.weight = torch.ones((), requires_grad=True)
        self.steps = self.alive = 0  # alive: the most graphs of earlier steps in memory
        self.graphs: list[weakref.ref[Any]] = []
        self.lines: list[tuple[int, list[Any]]] = []
        self.host = HostReads(lambda: self.steps)

    def step(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        if not isinstance(batch, Tensor):
            raise TypeError(f"`step` expects one of the `batches`, and got {type(batch).__name__}")
        self.alive = max(self.alive, sum(graph() is not None for graph in self.graphs))
        self.steps += 1
        loss = self.weight * batch
        loss.backward()  # raises under `no_grad()`

        def hook(*gradients: Any) -> None:  # lives as long as the graph
            pass

        assert loss.grad_fn is not None
        loss.grad_fn.register_hook(hook)
        self.graphs.append(weakref.ref(hook))
        return loss

    def log(self, number: Any, mean: Any, largest: Any, bad: Any) -> None:
        """Record a line; a tensor is read here, as `print` would."""
        line = [
            float(one) if isinstance(one, Tensor) and one.numel() == 1 else one
            for one in (number, mean, largest, bad)
        ]
        self.lines.append((self.steps, line))


STEPS, WHEN = "the number of steps", "the steps after which you log"
WAITS, READS = "what makes the host wait between two lines", "the number of waits for a line"
GRAPHS = "the old graphs that are still in memory"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run finite losses, with steps left over; negative and infinite ones; a line a step."""
    high = [draw.uniform(1.0, 3.0) for _ in range(27)]
    low = [draw.uniform(-3.0, -1.0) for _ in range(20)]
    high[2], low[2] = 3.5, -0.5  # the largest are in the first window
    low[1], low[4], low[7], low[13] = math.nan, math.nan, math.inf, -math.inf
    bad = ", where steps 2 and 5 give NaN, step 8 inf and step 14 -inf"
    for losses, every, more in ((high, 8, ""), (low, 6, bad), (high[:3], 1, "")):
        case = f"in a run of {len(losses)} steps with every={every}{more}"
        training = Training(losses)
        with training.host:
            call_answer(answer, case, training.step, training.batches, every, training.log)
        reads, logged = training.host.reads, [place for place, _ in training.lines]
        between = [read for read in reads if read.place % every]
        most = max((sum(read.place == place for read in reads) for place in logged), default=0)
        lines = [
            [read_number(one, case, "a line of your log holds") for one in line]
            for _, line in training.lines
        ]
        outputs = {
            STEPS: training.steps,
            WHEN: logged,
            "the step numbers in the log": [_whole(line[0]) for line in lines],
            "the means in the log": [line[1] for line in lines],
            "the largest losses in the log": [line[2] for line in lines],
            "the counts of bad losses in the log": [_whole(line[3]) for line in lines],
            WAITS: " and ".join(sorted({read.kind for read in between})) or "nothing",
            READS: f"{most}" if most > 6 else "at most 6",
            # The variables `loss` and `previous` may hold one each.
            GRAPHS: "some" if training.alive > 2 else "none",
        }
        facts = {
            "steps": _steps(read.place for read in between),
            "calls": " and ".join(dict.fromkeys(f"`{read.call}`" for read in between)),
            "logged": f"{len(lines)} times, after {_steps(logged)}",
            "due": _steps(range(every, training.steps + 1, every)),
            "taken": f"{training.steps} times, but there are {len(losses)} batches",
            "graphs": training.alive,
        }
        yield Case(case, outputs, facts)


def _whole(number: float) -> float:
    return int(number) if number.is_integer() else number


def _steps(places: Iterable[int]) -> str:
    """Name some steps: [1, 2, 3, 4, 5] → "steps 1, 2, 3, 4 …"."""
    names = [str(place) for place in dict.fromkeys(places)]
    if not names:
        return "no step"
    steps = "step" if len(names) == 1 else "steps"
    return f"{steps} {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"


LOOP, LOSS = "for number, batch in enumerate(batches, 1):", "loss = step(batch).detach()"
DUE, LOSSES = "if number % every == 0:", "losses = torch.stack(window).tolist()"
FINITE, CLEAR = "finite = [one for one in losses if math.isfinite(one)]", "window.clear()"
MEAN, LARGEST, BAD = "sum(finite) / len(finite)", "max(finite)", "len(losses) - len(finite)"
LOG, START = f"log(number, {MEAN}, {LARGEST}, {BAD})", "window: list[Tensor] = []"


def _log(
    mean: str = MEAN, largest: str = LARGEST, bad: str = BAD, start: str = "", add: str = ""
) -> dict[str, str]:
    """Return the edits that log other values; `start` runs once, `add` for each line."""
    log = f"log(number, {mean}, {largest}, {bad})"
    return {LOG: log, START: f"{START}\n{start}", FINITE: f"{FINITE}\n{add}"}


def _late(step: Any, batches: Any, every: int, log: Any) -> None:
    lines: list[Any] = []
    right(step, batches, every, lambda *line: lines.append(line))
    for line in lines:
        log(*line)


mistakes = [
    Mistake(
        "drops the log",
        "nothing is logged. That avoids the waits, but call `log` after every `every`-th step",
        edits={LOG: "pass"},
        violates="which logs what the loop below logs",
    ),
    Mistake(
        "logs every step",
        "you log after each step: log only when `number % every == 0`",
        edits={DUE: "if True:", **_log("sum(finite) / max(len(finite), 1)", "max(losses)")},
        violates="After every `every`-th step",
    ),
    Mistake(
        "logs after the last step",
        "you log all lines after the last step: call `log` as soon as a line is due",
        answer=_late,
        violates="at the same steps",
    ),
    Mistake(
        "logs the steps left over",
        "you also log the steps that are left over at the end, which the loop does not",
        edits={DUE: "if number % every == 0 or number == len(batches):"},
    ),
    Mistake(
        "counts steps from 0",
        "the first line comes after step 1: count steps from 1 with `enumerate(batches, 1)`",
        edits={LOOP: "for number, batch in enumerate(batches):"},
    ),
    Mistake(
        "counts lines",
        "you log the number of the line: log the number of the step",
        edits={LOG: LOG.replace("number", "number // every")},
        violates="the number of the step",
    ),
    Mistake(
        "keeps the last value only",
        "the mean in your log is the last loss: average all finite losses since the last line",
        edits=_log(mean="losses[-1]"),
        violates="the mean and the largest",
    ),
    Mistake(
        "mean and largest swapped",
        "the mean in your log is the largest loss: `log` takes the mean first, then the largest",
        edits=_log(mean=LARGEST, largest=MEAN),
    ),
    Mistake(
        "sum instead of mean",
        "you log the sum of the losses: divide it by the number of finite losses",
        edits=_log(mean="sum(finite)"),
    ),
    Mistake(
        "keeps the window",
        "your numbers cover all steps so far: start again after each line",
        edits={CLEAR: "pass"},
        violates="since the last line",
    ),
    *(
        Mistake(
            f"the sum of the run, over {what}",
            "your sum of the losses goes on from line to line: start it again after each line",
            edits=_log(mean, start="total = bad = 0", add=f"total += sum(finite)\nbad += {BAD}"),
        )
        for what, mean in {
            "the finite ones of a line": "total / len(finite)",
            "a line without the bad ones of the run": "total / (every - bad)",
            "all of a line": "total / every",
        }.items()
    ),
    Mistake(
        "divides by every",
        "you divide the sum by `every`: divide it by the number of finite losses",
        edits=_log(mean="sum(finite) / every"),
        violates="of the finite",
    ),
    Mistake(
        "keeps what is not finite",
        "losses that are not finite make your mean NaN or infinite: leave them out",
        edits={FINITE: "finite = losses"},
    ),
    Mistake(
        "leaves out NaN alone",
        "your mean includes infinite losses: leave out inf and -inf too, not only NaN",
        edits={FINITE: "finite = [one for one in losses if one == one]"},
    ),
    Mistake(
        "multiplies by a mask",
        "NaN · 0 and inf · 0 are NaN, so multiplying by a mask removes no loss: use `torch.where`",
        edits=_log("sum(one * math.isfinite(one) for one in losses) / len(finite)"),
    ),
    Mistake(
        "replaces what is not finite",
        "your mean includes 0 for NaN and ±3.4e38 for infinities: leave those losses out",
        edits={LOSSES: "losses = torch.stack(window).nan_to_num().tolist()"},
    ),
    Mistake(
        "the largest of all",
        "the largest loss in your log is NaN or inf: take the largest of the finite losses",
        edits=_log(largest="torch.stack(window).max().item()"),
    ),
    Mistake(
        "the largest starts at 0",
        "the largest loss in your log is 0, but all are negative. Use `-math.inf`, not 0",
        edits=_log(largest="max(0.0, *finite)"),
    ),
    Mistake(
        "the largest of the run",
        "your largest loss covers all steps so far: start again after each line",
        edits=_log(largest="max(run)", start="run = []", add="run += finite"),
    ),
    Mistake(
        "counts the finite ones",
        "the last number in your log is how many losses were finite: log how many were not",
        edits=_log(bad="len(finite)"),
        violates="how many losses were not finite",
    ),
    Mistake(
        "counts bad losses of the run",
        "your count of bad losses covers all steps so far: start again after each line",
        edits=_log(bad="bad", start="bad = 0", add=f"bad += {BAD}"),
    ),
    Mistake(
        "the loop unchanged",
        "the host waits in {steps}, because of {calls}. An `if` reads a loss as `.item()` does",
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
        "a condition on the loss makes the host wait in {steps}: use `torch.where` on the device",
        edits={LOSS: f"{LOSS}\nif loss > 1e9:\n    pass"},
    ),
    Mistake(
        "prints each loss",
        "printing or formatting the loss makes the host wait in {steps}",
        edits={LOSS: f"{LOSS}\nstr(loss)"},
    ),
    Mistake(
        "one item at a time",
        "the host waits for each value of a line: `torch.stack(window).tolist()` waits once",
        edits={LOSSES: "losses = [one.item() for one in window]"},
        violates="at most 6 times",
    ),
    Mistake(
        "keeps the graphs",
        "the losses that you store keep their graphs in memory: store `loss.detach()`",
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
        STEPS: "{case}, `step` was called {taken}",
        WHEN: "{case}, you log {logged}: log once after each of {due}",
        WAITS: "{case}, the host waits in {steps}, because of {calls}: until a line is due, use "
        "only operations that stay on the device",
        READS: "{case}, the host waits {got} times for one line. A mask such as `values[finite]` "
        "waits too, for the size of its result. Read all in one tensor, with one `.tolist()`",
        GRAPHS: "{case}, the graphs of {graphs} earlier steps are still in memory, held by the "
        "losses that you store. Store `loss.detach()`",
    },
)
