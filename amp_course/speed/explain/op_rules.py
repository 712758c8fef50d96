"""Advice on the ops themselves: dtypes, sizes, casts, the optimizer, threads and memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import torch

from amp_course.kit.dtypes import dtype_name
from amp_course.kit.markup import counted
from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.speed.counting import CAST
from amp_course.speed.explain import kinds
from amp_course.speed.explain.evidence import CastRecord, Evidence
from amp_course.speed.explain.findings import Advice, Findings
from amp_course.speed.explain.kinds import LOW
from amp_course.speed.explain.program_rules import python_seconds
from amp_course.speed.explain.sampling import Line
from amp_course.speed.explain.trials import MatmulTrial
from amp_course.speed.faults import CURE

_UP = re.compile(r"\.float\(|\.double\(|\.to\(|\.type\(|\.type_as\(")


def check_precision(found: Findings) -> Iterator[Advice]:
    """Advise on the dtype of matmuls that ran faster in another one."""
    high = (torch.float32, torch.float64)
    low, name = found.low, dtype_name(found.low)
    faster = [trial for trial in found.trials if trial.dtype in high and trial.gain(low) > 0]
    double = [trial for trial in found.trials if trial.dtype == torch.float64]
    if double:
        saved = max(found.saved(double, low), found.saved(double, torch.float32))
        yield Advice(
            "fp64-island",
            saved,
            f"{_many(double)} in float64{_places(found, double)}",
            "find the tensor that is float64 (NumPy's default is), and cast it once: "
            "`torch.as_tensor(x, dtype=torch.float32)`",
            "04",
            measured=True,
        )
        faster = [trial for trial in faster if trial not in double]
    gain, casts = found.saved(faster, low), _island_casts(found)
    if faster and found.evidence.uses_low:
        yield Advice(
            "fp32-island",
            gain + casts,
            f"{_many(faster)} in float32{_places(found, faster)}, while others run in {name}; in "
            f"{name} they would take {seconds_text(gain)} less, and the casts around them "
            f"{seconds_text(casts)}",
            "take `autocast(enabled=False)`, `.float()` or the op that autocast keeps in float32 "
            "out of the way, if the model trains as well without",
            "04",
            measured=True,
        )
    elif found.evidence.uses_low and casts:
        line = next(trial.line for trial in found.evidence.casts if _asks_for_fp32(trial))
        yield Advice(
            "fp32-island",
            casts,
            f"the step's own code casts 16-bit tensors up to float32{found.at(line)}, and the "
            f"casts take {seconds_text(casts)}",
            "leave out the cast, if the model trains as well without: autocast keeps in float32 "
            "what needs it",
            "04",
        )
    elif faster and gain > found.cast_seconds:
        yield Advice(
            "no-autocast",
            gain - found.cast_seconds,
            f"the matmuls run in float32, and in {name} they would take {seconds_text(gain)} "
            f"less, casts about {seconds_text(found.cast_seconds)} more",
            f"run the forward pass under `torch.autocast({found.device!r}, dtype=torch.{name})`",
            "06",
            measured=True,
        )


def check_slow_formats(found: Findings) -> Iterator[Advice]:
    """Advise on 16-bit matmuls that are slower than in fp32: all of them, or one kernel."""
    low = [trial for trial in found.trials if trial.dtype in LOW and torch.float32 in trial.other]
    slow = [trial for trial in low if trial.gain(torch.float32) > 0]
    if not slow:
        return
    worst = max(slow, key=lambda trial: trial.gain(torch.float32))
    name, device = dtype_name(worst.dtype), "CPU" if found.device == "cpu" else "device"
    op = found.evidence.calls[worst.number].op.removeprefix("aten.")
    as_is = sum(trial.count * trial.seconds for trial in low)
    in_fp32 = sum(trial.count * trial.other[torch.float32] for trial in low)
    if as_is > 1.1 * in_fp32 and len(slow) > len(low) / 2:
        evidence = (
            f"at these sizes the {name} matmuls take {as_is / in_fp32:.1f} times as long on this "
            f"{device} as in float32"
        )
        fix = (
            "train in float32 here (`enabled=False`), and keep AMP for larger layers, or a machine "
            "with fast units for it"
        )
        chapter = "00"
    else:
        slow, chapter = [worst], "04"
        evidence = (
            f"`{op}` takes {worst.seconds / worst.other[torch.float32]:.1f} times as long in "
            f"{name} on this {device} as in float32, although the other matmuls gain"
        )
        fix = (
            "keep that op in float32, in a region with `enabled=False` and with its inputs cast, "
            "and measure again: the casts cost, too"
        )
    saved = found.saved(slow, torch.float32)
    yield Advice("slower-in-16-bits", saved, evidence, fix, chapter, measured=True)


def _asks_for_fp32(cast: CastRecord) -> bool:
    """Return True if the user's own line casts up; autocast's casts have lines that call ops."""
    up = cast.forward and cast.before in LOW and cast.after not in LOW
    return up and cast.line is not None and bool(_UP.search(cast.line.text))


def _island_casts(found: Findings) -> float:
    """Return the seconds of the casts up to fp32 in the user's own code, and back."""
    ups = [cast for cast in found.evidence.casts if _asks_for_fp32(cast)]
    every = sum(cast.bytes for cast in found.evidence.casts)
    return found.times[kinds.CAST] * sum(cast.bytes for cast in ups) / every if every else 0.0


def _many(trials: list[MatmulTrial]) -> str:
    count = sum(trial.count for trial in trials)
    return "1 matmul runs" if count == 1 else f"{count} matmuls run"


def _places(found: Findings, trials: list[MatmulTrial]) -> str:
    lines = [found.evidence.lines[trial.number] for trial in trials]
    return next((f", the largest in {line}" for line in lines if line), "")


def check_sizes(found: Findings) -> Iterator[Advice]:
    """Advise on sizes for which the next multiples of 8 were tried and faster."""
    times = [(trial, trial.padded) for trial in found.trials if trial.padded]
    gains = [
        (trial.count * (trial.seconds - padded), trial, padded)
        for trial, padded in times
        if trial.seconds > 1.1 * padded
    ]
    if gains:
        _, worst, padded = max(gains, key=lambda gain: gain[0])
        shapes = " and ".join("×".join(map(str, shape)) for shape in worst.shapes[-2:])
        yield Advice(
            "odd-sizes",
            found.scale * sum(gain for gain, _, _ in gains),
            f"matmuls of sizes that are no multiples of 8 are slow here: "
            f"{dtype_name(worst.dtype)} {shapes} takes "
            f"{worst.seconds / padded:.1f} times as long as the next "
            f"multiples would",
            "pad the vocabulary, the width or the batch to a multiple of 64",
            measured=True,
        )


def check_optimizer(found: Findings) -> Iterator[Advice]:
    """Advise on an optimizer whose fused version was tried and faster."""
    better = [(name, ratio) for name, ratio in found.fused if ratio < 0.95]
    if better:
        name, ratio = min(better, key=lambda pair: pair[1])
        saved = found.times[kinds.OPTIMIZER] * (1 - ratio) * len(better) / len(found.fused)
        yield Advice(
            "unfused-optimizer",
            saved,
            f"{name} takes {found.percent(found.times[kinds.OPTIMIZER])} of the step, and its "
            f"fused version takes {ratio:.2f} times as long, tried on copies",
            f"`{name}(…, fused=True)`",
            measured=True,
        )


def check_threads(found: Findings) -> Iterator[Advice]:
    """Advise on a number of threads that was tried and faster."""
    now, cores = found.threads
    if found.other_threads is None:
        return
    before, after = found.other_threads
    many = now > cores
    yield Advice(
        "too-many-threads" if many else "too-few-threads",
        found.seconds * (1 - after / before),
        f"torch uses {counted(now, 'thread')}, and this process may use {counted(cores, 'core')}; "
        f"with {counted(cores, 'thread')} the step takes {seconds_text(after)} instead of "
        f"{seconds_text(before)}",
        f"`torch.set_num_threads({cores})`, or OMP_NUM_THREADS={cores} in the environment"
        + ("; with DataLoader workers, leave cores for them" if many else ""),
        measured=True,
    )


def check_memory(found: Findings) -> Iterator[Advice]:
    """Advise on memory that goes back to the system after every step."""
    if found.fault_seconds:
        size = bytes_text(int(found.faults * 4096))
        yield Advice(
            "returned-memory",
            found.fault_seconds,
            f"the system hands out {found.faults:,.0f} pages ({size}) again in every step, which "
            f"takes about {seconds_text(found.fault_seconds)}: the allocator gives freed memory "
            f"back",
            f"start Python with {CURE} (glibc), or with jemalloc",
        )


def cast_lines(evidence: Evidence) -> set[Line]:
    """Return the lines of which most ops are casts."""
    casts, every = Counter[Line](), Counter[Line]()
    for call, line in zip(evidence.calls, evidence.lines, strict=True):
        if line:
            every[line] += 1
            casts[line] += call.kind == CAST
    return {line for line in casts if casts[line] > every[line] / 2}


def check_casts(found: Findings, lines: set[Line]) -> Iterator[Advice]:
    """Advise on casts of one tensor that are repeated."""
    repeated = found.evidence.repeated_casts()
    every = sum(cast.bytes for cast in found.evidence.casts)
    if not repeated or not every:
        return
    again = sum(cast.bytes * (count - 1) for cast, count in repeated)
    per_call = sum(count - 1 for _, count in repeated) / len(found.evidence.casts)
    python = per_call * sum(python_seconds(found, line) for line in lines)
    total = found.times[kinds.CAST] * max(again / every, per_call) + python
    cast, count = repeated[0]
    shape = " × ".join(f"{size:,}" for size in cast.source[2]) or "1"
    others = f", and {len(repeated) - 1} other tensors more than once" if len(repeated) > 1 else ""
    yield Advice(
        "repeated-casts",
        total,
        f"the same {shape} tensor is cast from {dtype_name(cast.before)} to "
        f"{dtype_name(cast.after)} {count:,} times in one step{found.at(cast.line)}{others}; the "
        f"repeats take {seconds_text(total)}, {found.percent(total)} of the step",
        "cast it once, before the loop; or open one autocast region around the loop, so that its "
        "cache keeps the copy",
        "04",
    )
