"""Sample which line of Python a thread is at, many times a second,
and share out the Python time of recorded steps by line.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
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

_EVERY = 0.0005  # seconds between samples
# seconds after which a running thread hands over: Python's own 5 ms would blur what a step does
_SWITCH = 0.0002
_TORCH = str(Path(torch.__file__).parent)
_STDLIB = str(Path(sysconfig.get_paths()["stdlib"]))
_LIBRARIES = tuple({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], _STDLIB})
# The time limit runs what fetches a batch, and handles Ctrl-C meanwhile.
_HERE = (str(Path(__file__).parent), limit.__file__, interrupts.__file__)

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
    """A line of the code that is being explained, as people name it."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The line itself, without its indentation; "" where its source cannot be had."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "…"
        place = f"line {self.number}"
        if not self.file.startswith("<") and "ipykernel" not in self.file:
            place += f" of {Path(self.file).name}"
        return f"{place}, `{text}`" if text else place


@dataclass(frozen=True)
class Sample:
    """Where a thread was: the reader's innermost line, the modules that it had called, and whether
    torch was one of them.

    time:  nanoseconds since 1970
    """

    time: int
    line: Line | None
    modules: tuple[str, ...]
    in_torch: bool


def is_library(file: str) -> bool:
    """Return True if a file is Python's, an installed package's, or part of this tool."""
    return file.startswith((*_LIBRARIES, *_HERE, "<frozen ")) or "site-packages" in file


def reader_line(frame: FrameType | None) -> Line | None:
    """Return the innermost line of a stack that is no library's; None if there is none."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno or 0)
        if frame.f_code.co_filename.startswith(_HERE[0]):
            return None  # what called this tool is not what it explains
        frame = frame.f_back
    return None


@contextmanager
def sampled(samples: list[Sample]) -> Iterator[None]:
    """Add samples of the calling thread to a list while the body runs."""
    target, done = threading.get_ident(), threading.Event()
    # read once: the system's clock may be set meanwhile
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
    """Look where a thread is.

    subtle: no frame may be held once this returns. One that outlives its moment keeps its tensors
            and context managers alive,
    and torch then raises errors in the thread that is watched.
    """
    in_torch, line = False, None
    modules: list[str] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            line = Line(file, frame.f_lineno or 0)  # between two lines Python has none
            break
        if file.startswith(_HERE[0]):
            break
        in_torch = in_torch or file.startswith(_TORCH)
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    del frame
    return Sample(now, line, tuple(modules), in_torch)


@dataclass
class LineTimes:
    """Samples by line: in Python alone, in all, while waiting for data; and which lines log."""

    python: Counter[Line] = field(default_factory=Counter)  # the line itself was running, in no op
    # an op was, called from this line: reads of values aside
    ops: Counter[Line] = field(default_factory=Counter)
    # torch's Python was, called from this line
    calling: Counter[Line] = field(default_factory=Counter)
    # the line was logging, in Python or in an op
    logging: Counter[Line] = field(default_factory=Counter)
    data: Counter[Line] = field(default_factory=Counter)
    logs: set[Line] = field(default_factory=set)
    gaps: int = 0  # samples in Python, with or without a line
    steps: int = 0  # samples in steps, waiting for data included

    def share(self, counts: Counter[Line], line: Line) -> float:
        return counts[line] / self.steps if self.steps else 0.0


def time_lines(steps: Sequence[StepRecord], samples: Sequence[Sample], times: LineTimes) -> None:
    """Add samples that were taken while steps were recorded."""
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
    """Return the kind of what ran at a moment: LAUNCH if no op did."""
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
