"""Judge a whole training by what was counted: modes, weights, lost updates, reads of values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import nn

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Findings, fix_text
from amp_course.diagnosis.report import listed
from amp_course.watching.counting import CountingWatch
from amp_course.watching.fp32_shadow import LostUpdates
from amp_course.watching.hidden_overflow import HiddenOverflow
from amp_course.watching.modules import CalledModules
from amp_course.watching.origins import Line, is_of_a_library
from amp_course.watching.process import CreatedObjects
from amp_course.watching.ranges import RangeWatch

_SURE = 3  # updates in a row with weights in no optimizer
_SOON, _LONG = 2, 5  # updates in a row in evaluation mode
_SHOWN = 3  # lines that read values
_OFTEN, _MOST = 0.5, 0.9  # of the updates
_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}  # classes of torch's that take `fused=True`
_FEWEST_STEPS = 4  # of 16-bit weights, before they are judged
_FEWEST_RATIOS = 4
_NEAR = 0.25  # a ratio of probabilities comes as near to 1 as this
_ROUNDING = 1e-5  # by which a ratio that fp32 computes twice may differ from 1
_LOST = 0.5  # 16-bit weights move less than half as far as their twins
_WRONG = 0.5  # of the norm of fp32's result
_HEADROOM = 1.0  # doublings


def check_modules(called: CalledModules, *, diverged: bool = False) -> Findings:
    """Look for a model left in evaluation mode, and an optimizer of weights that were replaced.

    diverged: the training diverged; evaluation mode may be the cause even after a few updates
    """
    long = called.evaluated >= (_SOON if diverged else _LONG)
    if long and called.mode_counts and called.trained and not called.other_weights:
        counts = {"updates_in_training_mode": called.trained, "and_then": called.evaluated}
        yield finding("left-in-evaluation-mode", **counts)
    if called.lost >= _SURE:
        outside, used, old = called.example
        yield finding(
            "optimizer-of-old-weights",
            weights_that_no_optimizer_holds=f"{outside} of {used}",
            old_weights_in_it=old,
            updates=called.lost,
            **({"variant": "whole"} if outside == used else {}),
        )


def advise_modules(
    called: CalledModules, paths: Mapping[nn.Module, str], *, wrapped: bool
) -> Findings:
    """Yield what is unusual about modules and may be meant.

    paths:   of modules in their model
    wrapped: in DDP, where an optimizer may hold a part of the weights
    """
    never = called.other_weights or not called.trained
    if called.mode_counts and called.evaluated >= _LONG and never:
        updates = f"{called.evaluated} of {called.updates}"
        yield finding("trains-in-evaluation-mode", updates=updates)
    if called.left_out > _OFTEN * called.updates and called.lost < _SURE and not wrapped:
        outside, used, _ = called.example
        names = [f"{paths.get(module, '')}.{name}".lstrip(".") for module, name in called.outside]
        named = listed([*names, *["more"] * (outside > len(names))])
        yield finding("weights-in-no-optimizer", weights=f"{outside} of {used}", named=named)


def advise_saving(states: Mapping[str, Line | None], made: CreatedObjects) -> Findings:
    """Look for a checkpoint that cannot resume the run. states: as in `SavedStates`."""
    place = str(next(iter(states.values()), None) or "")
    if "optimizer" not in states:
        if states and made.optimizers:
            yield finding("optimizer-not-saved", place=place)
        return
    if "scaler" not in states and any(one.is_enabled() for one in made.scalers):
        yield finding("scaler-not-saved", place=place)
    moved = made.resumed or any(map(_moved_by_hand, made.schedulers))
    if "schedule" not in states and made.schedulers and not moved:
        yield finding("schedule-not-saved", place=place)


def _moved_by_hand(schedule: Any) -> bool:
    """Return True if a script has set `last_epoch` itself; a schedule may also count no steps."""
    steps = getattr(schedule, "_step_count", 0)
    return steps > 0 and bool(schedule.last_epoch != steps - 1)


def check_lost(lost: Iterable[LostUpdates]) -> Findings:
    """Look for 16-bit weights that moved much less than their fp32 twins."""
    for one in lost:
        if one.steps >= _FEWEST_STEPS and _vanish(one) and one.wanted < inf:
            yield finding(
                "updates-vanish",
                weights_in=_short(one.dtype),
                steps=one.steps,
                moved=one.moved,
                would_have_moved_in_fp32=one.wanted,
                weights_that_never_moved=f"{one.still:.0%}",
            )


def _vanish(one: LostUpdates) -> bool:
    return one.moved < _LOST * one.wanted


def advise_16_bits(lost: Iterable[LostUpdates]) -> Findings:
    """Look for weights in bf16 whose optimizer has nothing in fp32."""
    for one in lost:
        long = one.steps >= _FEWEST_STEPS
        if long and one.plain and one.dtype == torch.bfloat16 and not _vanish(one):
            yield finding("weights-in-16-bits", weights_in=_short(one.dtype), steps=one.steps)


def advise_ratio(
    ratios: Sequence[float], precisions: Iterable[Mapping[bool, set[torch.dtype]]]
) -> Findings:
    """Look for a ratio of probabilities that is never 1, as they were computed in two precisions.

    ratios:     how far each was from 1
    precisions: for each layer: whether gradients were enabled → the dtypes that autocast ran it in
    """
    two = [one for one in precisions if one[True] and one[False] and not one[True] & one[False]]
    if two and len(ratios) >= _FEWEST_RATIOS and _ROUNDING < min(ratios) < _NEAR:
        old, new = (listed(map(_short, two[0][with_gradients])) for with_gradients in (False, True))
        yield finding("ratio-of-two-precisions", old=old, new=new, nearest_to_1=1 + min(ratios))


def _short(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def check_hidden_overflow(hidden: HiddenOverflow) -> Findings:
    """Look for an overflow that left no trace, but made a result wrong."""
    for path, error in hidden.errors.items():
        origin = hidden.origins[path]
        if error > _WRONG:
            cause = (
                "a value is beyond 65,504, where fp16 ends, and what follows turns the inf "
                "into 0: no NaN shows it"
            )
            took = ", ".join(map(str, origin.took))
            yield finding(
                "beyond-fp16",
                cause,
                op=f"{origin.op} in `{path}`",
                it_took=took,
                place=str(origin.line or ""),
                result_differs_from_fp32=f"by {error:.0%} of its norm",
            )
            return


def advise_speed(watch: CountingWatch, ranges: RangeWatch | None, updates: int) -> Findings:
    """Yield what costs time on a GPU, and where values come close to the end of fp16."""
    reads = _reads(watch, updates, on_cpu=False)
    if reads:
        often = ", ".join(f"{one.place} in {one.updates} of {updates}" for one in reads[:_SHOWN])
        often += f", and {len(reads) - _SHOWN} more" if len(reads) > _SHOWN else ""
        yield finding("host-waits", updates_with_a_read=often, variant=reads[0].kind)
    if ranges is not None and watch.matmuls["float16"]:
        activations = (one for one in ranges.readings if one.kind == "activation")
        close = [one for one in activations if 0 <= one.headroom <= _HEADROOM]
        for one in sorted(close, key=lambda reading: reading.headroom)[:1]:
            yield finding(
                "little-headroom", module=one.module, pass_number=one.number, largest=one.largest
            )


def observe_reads(watch: CountingWatch, updates: int, optimizers: Iterable[str]) -> Iterator[str]:
    """Yield what a training on a CPU reads in each update; there it costs nothing.

    optimizers: the names of their classes
    """
    reads = _reads(watch, updates, on_cpu=True)
    if reads:
        more = [f"{len(reads) - _SHOWN} more"] if len(reads) > _SHOWN else []
        where = listed([*(f"{one.place}, `{one.first.source}`" for one in reads[:_SHOWN]), *more])
        verb = "reads" if len(reads) == 1 and reads[0].first == reads[0].last else "read"
        kinds = dict.fromkeys(one.kind for one in reads)
        if not _FUSED.intersection(optimizers):
            kinds.pop("scaler", None)
        fixes = [fix_text(finding("host-waits", variant=kind)) for kind in list(kinds)[:2]]
        sentence = (
            f"host-waits, if it ran on a GPU: {where} {verb} a tensor's value in each update, "
            "and a GPU's work has to be done by then."
        )
        yield " ".join([sentence, *(fix.rstrip(".") + "." for fix in fixes)])


@dataclass(frozen=True)
class _Read:
    """Consecutive lines that read values in some updates. kind: the variant of host-waits."""

    first: Line
    last: Line
    updates: int
    kind: str

    @property
    def place(self) -> str:
        if self.first == self.last:
            return self.first.place
        lines = self.first.place.replace("line", "lines", 1)
        return lines.replace(" of", f" to {self.last.number} of", 1)


def _reads(watch: CountingWatch, updates: int, *, on_cpu: bool) -> list[_Read]:
    """Return the user's own lines that read values in most updates, the easiest to change first."""
    counts: Counter[Line] = Counter()
    for (line, device), count in watch.reads.items():
        own = not is_of_a_library(line.file) and "get_scale" not in line.source
        counts[line] += count if own and (device == "cpu") == on_cpu else 0
    reads: list[_Read] = []
    for line in sorted(counts, key=lambda one: (one.file, one.number)):
        if updates < _SURE or counts[line] < _MOST * updates:
            continue
        read = _Read(line, line, counts[line], _kind_of_read(line.source))
        for last in reads[-1:]:
            following = Line(last.last.file, last.last.number + 1)
            if (last.kind, following) == (read.kind, line):
                read = replace(last, last=line, updates=max(last.updates, counts[line]))
                reads.pop()
        reads.append(read)
    return sorted(reads, key=lambda one: (one.kind != "", -one.updates))


def _kind_of_read(source: str) -> str:
    """Return what reads a value: a scaler, a decision, a distribution, a log (""), hidden code."""
    if re.search(r"\.step\((?!.*item\()", source):
        return "scaler"
    if re.match(r"(if|elif|while|assert)\b", source):
        return "decision"
    draws = r"log_prob|entropy\(|rsample\(|Categorical|Normal\(|Bernoulli|distributions"
    if re.search(draws, source):
        return "distribution"
    logs = re.search(r"item\(|float\(|int\(|print\(|\.log|tolist\(|numpy\(|cpu\(|\{", source)
    return "" if logs else "hidden"
