"""Share out the Python time of recorded steps by line, from samples of where the program was."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from amp_course.speed.explain.kinds import LAUNCH, OPTIMIZER, SYNC, WAIT, own_kind, whole_kind
from amp_course.speed.explain.recording import Op, StepRecord
from amp_course.speed.explain.sampling import Line, Sample

_LOGGERS = {
    "logging",
    "tensorboard",
    "wandb",
    "mlflow",
    "json",
    "csv",
    "tqdm",
    "pickle",
    "matplotlib",
    "torch.serialization",
    "torch._tensor_str",
    "torch.utils.tensorboard",
    "rich",
    "loguru",
}
_LOGS = re.compile(
    r"""\bprint\(|\blogg(er|ing)\.|\.log\(\s*([frb]*["']|\{)|\.log_(metrics?|dict|scalars?|"""
    r"""artifact|text|image)\(|\badd_(scalar|histogram|image|text|figure)s?\(|\b(savefig|savez|"""
    r"""set_postfix|writerow|flush)\(|\.write\(|\b(torch|np)\.save\(|\b\w+\.dump\("""
)


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
        """Return the share of a step's time that a line's samples stand for."""
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
    if any(
        name == one or name.startswith(one + ".") for name in sample.modules for one in _LOGGERS
    ):
        return True
    # print(model(x).mean()) runs the model, too
    in_model = any(name.startswith("torch.nn.") for name in sample.modules)
    return not in_model and bool(_LOGS.search(sample.line.text))
