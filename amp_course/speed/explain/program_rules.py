"""Advice on the program around the ops: waiting, logging, reading values, Python, launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp_course.kit.measure import seconds_text
from amp_course.speed.counting import MATMUL
from amp_course.speed.explain import kinds
from amp_course.speed.explain.findings import Advice, Findings
from amp_course.speed.explain.sampling import Line

_BUSY = 0.3  # the share of a fetch on the CPU above which it prepares data
_MANY_LAUNCHES = 0.25  # the share of a step from which launches are a cause; every step has some


def line_seconds(found: Findings, counts: Mapping[Line, int], line: Line) -> float:
    """Return the seconds of a step that a line's samples stand for."""
    return found.seconds * counts[line] / found.lines.steps if found.lines.steps else 0.0


def python_seconds(found: Findings, line: Line, *, with_calls: bool = False) -> float:
    """Return a line's part of the time between ops; with_calls: with torch's Python under it."""
    lines = found.lines
    samples = lines.python[line] + (lines.calling[line] if with_calls else 0)
    return found.times[kinds.LAUNCH] * samples / lines.gaps if lines.gaps else 0.0


def check_data(found: Findings) -> Iterator[Advice]:
    """Advise on waiting for data; the CPU's work meanwhile shows the reason."""
    waited = found.times[kinds.WAIT]
    top = found.lines.data.most_common(1)
    where = f", most of it in {top[0][0]}" if top else ""
    if found.workers:
        prepare = "workers prepare" if found.workers > 1 else "worker prepares"
        cause, why = "slow-workers", f", although {found.workers} {prepare} the batches"
        fix = (
            "make the batches cheaper (decode or resize once, beforehand), or use more workers if "
            "there are idle cores"
        )
    elif found.fetch_busy is None:
        cause, why = "waiting-for-data", where
        fix = (
            "pass the loader to `explain(step, loader)` to learn whether its CPU or its source is "
            "slow; several workers help with both"
        )
    elif found.fetch_busy > _BUSY:
        cause, why = "data-preparation", f", and the CPU is busy with it{where}"
        fix = (
            "let workers prepare batches while the model trains: `DataLoader(…, num_workers=2)`; "
            "or do this work once, beforehand, or on whole batches"
        )
    elif found.crowded:
        cause = "waiting-for-data"
        why = (
            f"{where}; whether its source is slow or other programs had the CPU, this machine "
            f"cannot tell"
        )
        fix = (
            "let workers read ahead, which helps with both: `DataLoader(…, num_workers=2)`; and "
            "run this again when little else runs"
        )
    else:
        cause = "slow-source"
        why = f", and the CPU is idle meanwhile{where}: the source is slow (a disk, a network)"
        fix = (
            "read ahead: `DataLoader(…, num_workers=2, prefetch_factor=4)`; or copy the data to a "
            "fast disk, in few large files"
        )
    took = f"waits {seconds_text(waited)} for its batch, {found.percent(waited)} of its time"
    yield Advice(cause, waited, f"the step {took}{why}", fix)


def check_logging(found: Findings, logs: set[Line]) -> Iterator[Advice]:
    """Advise on lines that log."""
    seconds = {line: line_seconds(found, found.lines.logging, line) for line in logs}
    if seconds:
        total = sum(seconds.values())
        yield Advice(
            "logging",
            total,
            f"logging {_most_of(found, seconds)}",
            "log every hundredth step, and keep what you log as tensors until then",
        )


def _most_of(found: Findings, seconds: dict[Line, float]) -> str:
    """Return "takes 1.20 ms, 10 % of the step, most of it in line 3"."""
    worst = max(seconds, key=seconds.__getitem__)
    return f"{found.takes(sum(seconds.values()))} of the step, most of it{found.at(worst)}"


def check_reads(found: Findings, reads: set[Line]) -> Iterator[Advice]:
    """Advise on reads of values, which wait for the GPU."""
    count = sum(found.evidence.reads.values())
    if not count:
        return
    work = {
        line
        for call, line in zip(found.evidence.calls, found.evidence.lines, strict=True)
        if call.kind == MATMUL
    }
    total = found.times[kinds.SYNC] + sum(python_seconds(found, line) for line in reads)
    # what is computed only to be read
    total += sum(line_seconds(found, found.lines.ops, line) for line in reads - work)
    line, most = found.evidence.reads.most_common(1)[0]
    times = "once" if count == 1 else f"{count:,} times"
    here = f", {most:,} of them{found.at(line)}" if line and count > 1 else found.at(line)
    evidence = f"the step reads values {times}{here}, which {found.takes(total)} of it"
    if found.device == "cpu":
        evidence += ". On a GPU each would also wait until all that is queued is done"
    yield Advice(
        "host-waits",
        total,
        evidence,
        # the scaler reads if a gradient was inf
        "let a fused optimizer look for inf on the GPU, which spares the scaler's read: "
        "`fused=True` (Adam, AdamW, SGD, Adagrad)"
        if line and ".step(" in line.text and ".item(" not in line.text
        else "keep values as tensors (`total += loss.detach()`), and read one every hundredth "
        "step; let `torch.where` decide instead of `if`",
    )


def check_python(found: Findings, explained: set[Line]) -> Iterator[Advice]:
    """Advise on lines that run Python and start no op."""
    known = explained.union(filter(None, found.evidence.lines))
    lines = [line for line in found.lines.python if line not in known]
    seconds = {line: python_seconds(found, line) for line in lines}
    if seconds:
        yield Advice(
            "python",
            sum(seconds.values()),
            f"Python code that calls no op of torch {_most_of(found, seconds)}",
            "move it out of the step: into the loader's workers, or to every hundredth step; or "
            "write it as an op on whole tensors",
        )


def check_small_ops(found: Findings, left: float) -> Iterator[Advice]:
    """Advise on launches, if `left`, the seconds that no line explains, is much of the step."""
    count = len(found.evidence.calls)
    if count and left > _MANY_LAUNCHES * found.seconds:
        matmuls = sum(call.kind == MATMUL for call in found.evidence.calls)
        yield Advice(
            "small-ops",
            left,
            f"starting {count:,} ops ({matmuls:,} of them matmuls) takes {seconds_text(left)} of "
            f"Python and of calls, {found.percent(left)} of the step: too little work in each for "
            f"its launch",
            "give each op more to do (a larger batch, a wider net), or start fewer: "
            "`torch.compile`, a fused optimizer, CUDA graphs on a GPU",
        )
