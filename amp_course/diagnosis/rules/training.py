"""Judge a whole training by what was counted on the way: modes, weights, lost updates, buried overflows, reads of values."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

import torch

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding, fix_text
from amp_course.diagnosis.report import listed
from amp_course.watching.births import Line
from amp_course.watching.buried import Buried
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.modules import ModulesSeen
from amp_course.watching.ranges import RangeWatch
from amp_course.watching.twins import LostUpdates

_LIBRARIES = os.path.dirname(os.__file__)  # Python's own
_SURE = 3  # updates in a row with weights in no optimizer
_LONG = 5  # updates in a row in evaluation mode
_OFTEN, _MOST = 0.5, 0.9  # of the updates
_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}  # classes of torch's that take `fused=True`
_FEWEST_STEPS = 4  # of weights in 16 bits: without as many, nothing is said
_LOST = 0.5  # they move less than half as far as their twins
_WRONG = 0.5  # of the norm of what fp32 gives
_HEADROOM = 1.0  # doublings


def check_modules(seen: ModulesSeen) -> Iterator[Finding]:
    """Look for a model that is left in evaluation mode, and an optimizer of weights that were replaced."""
    if seen.mode_counts and seen.trained and seen.evaluated >= _LONG and not seen.other_weights:
        yield finding("left-in-evaluation-mode", updates_in_training_mode=seen.trained, and_then=seen.evaluated)
    if seen.lost >= _SURE:
        outside, used, old = seen.example
        yield finding(
            "optimizer-of-old-weights",
            weights_that_no_optimizer_holds=f"{outside} of {used}",
            old_weights_in_it=old,
            updates=seen.lost,
        )


def advise_modules(seen: ModulesSeen, *, wrapped: bool) -> Iterator[Finding]:
    """Yield what may be meant. wrapped: in DDP, where an optimizer may hold a part of the weights."""
    if seen.mode_counts and seen.evaluated >= _LONG and (seen.other_weights or not seen.trained):
        yield finding("trains-in-evaluation-mode", updates=f"{seen.evaluated} of {seen.updates}")
    if seen.left_out > _OFTEN * seen.updates and seen.lost < _SURE and not wrapped:
        outside, used, _ = seen.example
        yield finding("weights-in-no-optimizer", weights=f"{outside} of {used}")


def advise_saving(states: Mapping[str, Line | None], scalers: Iterable[torch.amp.GradScaler]) -> Iterator[Finding]:
    """Look for a checkpoint to go on from that leaves the scaler out. states: as `Saved` has them."""
    if "optimizer" in states and "scaler" not in states and any(one.is_enabled() for one in scalers):
        yield finding("scaler-not-saved", place=str(states["optimizer"] or ""))


def check_lost(lost: Iterable[LostUpdates]) -> Iterator[Finding]:
    """Look for weights in 16 bits that moved much less than their fp32 twins."""
    for one in lost:
        enough = one.steps >= _FEWEST_STEPS and one.wanted and isfinite(one.wanted)
        if enough and one.moved < _LOST * one.wanted:
            yield finding(
                "updates-vanish",
                weights_in=str(one.dtype)[6:],
                steps=one.steps,
                moved=one.moved,
                would_have_moved_in_fp32=one.wanted,
                weights_that_never_moved=f"{one.still:.0%}",
            )


def check_buried(buried: Buried) -> Iterator[Finding]:
    """Look for an overflow that left no trace and made a result wrong."""
    for path, error in buried.errors.items():
        birth = buried.births[path]
        if error > _WRONG:
            cause = "a value is beyond 65,504, where fp16 ends, and what follows turns the inf into 0: no NaN shows it"
            place = {"place": str(birth.line)} if birth.line else {}
            yield finding(
                "beyond-fp16",
                cause,
                op=f"{birth.op} in `{path}`",
                it_took=", ".join(map(str, birth.took)),
                **place,
                result_differs_from_fp32=f"by {error:.0%} of its norm",
            )
            return


def advise_speed(watch: DoctorsWatch, ranges: RangeWatch | None, updates: int) -> Iterator[Finding]:
    """Yield what costs time on a GPU, and where fp16 is nearly left."""
    lines = _reading_lines(watch, updates, on_cpu=False)
    if lines:
        often = ", ".join(f"{line.place} in {count} of {updates}" for line, count in lines)
        yield finding("host-waits", updates_with_a_read=often, variant=_kind_of_read(lines[0][0]))
    if ranges is not None and watch.matmuls["float16"]:
        close = [one for one in ranges.readings if one.kind == "activation" and 0 <= one.headroom <= _HEADROOM]
        if close:
            one = min(close, key=lambda reading: reading.headroom)
            yield finding("little-headroom", module=one.module, pass_number=one.number, largest=one.largest)


def observe_reads(watch: DoctorsWatch, updates: int, optimizers: Iterable[str]) -> Iterator[str]:
    """Yield what a training on a CPU reads in each update, which costs it nothing there.

    optimizers: the names of their classes
    """
    lines = _reading_lines(watch, updates, on_cpu=True)
    if lines:
        where = listed(str(line) for line, _ in lines)
        verb = "reads" if len(lines) == 1 else "read"
        kinds = dict.fromkeys(_kind_of_read(line) for line, _ in lines)
        if not _FUSED.intersection(optimizers):
            kinds.pop("scaler", None)
        fixes = [fix_text(finding("host-waits", variant=kind)).rstrip(".") + "." for kind in list(kinds)[:2]]
        yield " ".join([
            f"host-waits, if it ran on a GPU: {where} {verb} a tensor's value in each update, and a GPU's work has to be done by "
            "then.", *fixes,
        ])  # fmt: skip


def _reading_lines(watch: DoctorsWatch, updates: int, *, on_cpu: bool) -> list[tuple[Line, int]]:
    """Return the lines of the reader's own that read values in most updates, and in how many."""
    counts: Counter[Line] = Counter()
    for (line, device), count in watch.reads.items():
        if (device == "cpu") == on_cpu and not line.file.startswith(_LIBRARIES) and "-packages" not in line.file:
            counts[line] += count
    return [one for one in counts.most_common(4) if updates >= _SURE and one[1] >= _MOST * updates]


def _kind_of_read(line: Line) -> str:
    """Return which fix fits a line that reads a value: for the scaler's read, a decision, a read inside a call, or a log."""
    if re.search(r"\.step\((?!.*item\()", line.source):
        return "scaler"
    if re.match(r"(if|elif|while|assert)\b", line.source):
        return "decision"
    return "" if re.search(r"item\(|float\(|int\(|print\(|\.log|tolist\(|numpy\(|cpu\(|\{", line.source) else "hidden"
