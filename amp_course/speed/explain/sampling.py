"""Sample which line of Python a thread is at, many times a second, and split the Python time of
recorded steps by line.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from amp_course.checking import interrupts, limit
from amp_course.speed.explain.kinds import LAUNCH, OPTIMIZER, SYNC, WAIT, own_kind, whole_kind
from amp_course.speed.explain.recording import Op, StepRecord
from amp_course.watching.origins import is_of_a_library

_EVERY = 0.0005  # seconds between samples
_SWITCH = 0.0002  # seconds after which Python switches threads: its own 5 ms are too coarse
_TORCH, _EXPLAIN = str(Path(torch.__file__).parent), str(Path(__file__).parent)
# these run between this tool and what fetches a batch
_LIMIT = (limit.__file__, interrupts.__file__)

_LOGGERS = (
    *("logging", "loguru", "rich", "tqdm", "tensorboard", "torch.utils.tensorboard", "wandb"),
    *("mlflow", "json", "csv", "pickle", "matplotlib", "torch.serialization", "torch._tensor_str"),
)
_LOGS = re.compile(
    r"""\bprint\(|\blogg(er|ing)\.|\.log\(\s*([frb]*["']|\{)|\.log_(metrics?|dict|scalars?|"""
    r"""artifact|text|image)\(|\badd_(scalar|histogram|image|text|figure)s?\(|\b(savefig|savez|"""
    r"""set_postfix|writerow|flush)\(|\.write\(|\b(torch|np)\.save\(|\b\w+\.dump\("""
)


@dataclass(frozen=True)
class Line:
    """A line of the code that is being explained; its str names it in a sentence."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The line's text without its indentation; "" if its source cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "…"
        place = f"line {self.number}"
        if not self.file.startswith("<") and "ipykernel" not in self.file:
            place += f" of {Path(self.file).name}"
        return f"{place}, `{text}`" if text else place


@dataclass(frozen=True)
class Sample:
    """Where a thread was.

    time:     nanoseconds since 1970
    line:     the user's innermost
    modules:  what it had called, innermost first
    in_torch: True if torch was among them
    """

    time: int
    line: Line | None
    modules: tuple[str, ...]
    in_torch: bool


def user_line(frame: FrameType | None) -> Line | None:
    """Return the innermost line of a stack in the user's own code, which this tool called; None if
    there is none.
    """
    while frame is not None and not frame.f_code.co_filename.startswith(_EXPLAIN):
        if line := _own_line(frame):
            return line
        frame = frame.f_back
    return None


def _own_line(frame: FrameType) -> Line | None:
    """Return where a frame is, unless that is in a library or in the time limit."""
    file = frame.f_code.co_filename
    if file in _LIMIT or is_of_a_library(file):
        return None
    return Line(file, frame.f_lineno or 0)  # between two lines Python has none


@contextmanager
def sampled(samples: list[Sample]) -> Iterator[None]:
    """Add samples of the calling thread to a list while the body runs."""
    target, done = threading.get_ident(), threading.Event()
    # read once, because the system's clock may be set meanwhile
    zero = time.time_ns() - time.perf_counter_ns()

    def watch() -> None:
        while not done.wait(_EVERY):
            samples.append(_sample(target, zero + time.perf_counter_ns()))

    interval = sys.getswitchinterval()
    watcher = threading.Thread(target=watch, daemon=True, name="amp_course sampler")
    sys.setswitchinterval(_SWITCH)
    try:
        watcher.start()
        yield
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(interval)


def _sample(thread: int, now: int) -> Sample:
    """Find where a thread is.

    subtle: it keeps no frame, for that would keep the frame's tensors and context managers alive,
            and torch would raise errors in the thread.
    """
    in_torch, line = False, None
    modules: list[str] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and not frame.f_code.co_filename.startswith(_EXPLAIN):
        if line := _own_line(frame):
            break
        in_torch = in_torch or frame.f_code.co_filename.startswith(_TORCH)
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    del frame
    return Sample(now, line, tuple(modules), in_torch)


@dataclass
class LineTimes:
    """Numbers of samples, by the line that was running or had called what was running.

    python:  the line itself
    ops:     an op that reads no value
    calling: torch's Python
    logging: what a line that logs runs, in Python or in an op; `logs` are these lines
    data:    while waiting for data
    gaps:    all in Python, with or without a line
    steps:   all, waiting for data included
    """

    python: Counter[Line] = field(default_factory=Counter)
    ops: Counter[Line] = field(default_factory=Counter)
    calling: Counter[Line] = field(default_factory=Counter)
    logging: Counter[Line] = field(default_factory=Counter)
    data: Counter[Line] = field(default_factory=Counter)
    logs: set[Line] = field(default_factory=set)
    gaps: int = 0
    steps: int = 0


def time_lines(steps: Sequence[StepRecord], samples: Sequence[Sample], times: LineTimes) -> None:
    """Add samples that were taken while steps were recorded to `times`."""
    starts = [step.main.start for step in steps]
    for sample in samples:
        place = bisect_right(starts, sample.time) - 1
        if place < 0 or sample.time > steps[place].main.end:
            continue
        kind, line = _kind_at(steps[place].main, sample.time), sample.line
        times.steps += 1
        times.gaps += kind == LAUNCH
        if line is None:
            continue
        if kind == WAIT:
            times.data[line] += 1
            continue
        if _logs(sample):
            times.logs.add(line)
            times.logging[line] += 1
        if kind == LAUNCH:
            (times.calling if sample.in_torch else times.python)[line] += 1
        elif kind != SYNC:
            times.ops[line] += 1


def _kind_at(op: Op, time: int) -> str:
    """Return the kind of what ran at a moment; LAUNCH if no op did."""
    whole = whole_kind(op)
    if whole in (WAIT, OPTIMIZER):
        return whole
    place = bisect_right([child.start for child in op.children], time) - 1
    if place >= 0 and time < op.children[place].end:
        return _kind_at(op.children[place], time)
    return whole or own_kind(op)


def _logs(sample: Sample) -> bool:
    assert sample.line is not None
    if any(f"{name}.".startswith(f"{one}.") for name in sample.modules for one in _LOGGERS):
        return True
    # print(model(x).mean()) runs the model, too
    in_model = any(name.startswith("torch.nn.") for name in sample.modules)
    return not in_model and bool(_LOGS.search(sample.line.text))
