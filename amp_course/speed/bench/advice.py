"""Recommend one recipe for a machine, from the numbers on its page and nothing else.

A recipe helps a training if it makes it at least a tenth faster and the quartiles agree. The recipe
that helps most is recommended; bf16 goes before fp16 where the two are close, since it needs no
scaler. Nothing is promised for other models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.speed.bench.page import SIDES, Page, Result, label_of
from amp_course.speed.faults import CURE
from amp_course.speed.machine import Machine

HELPED = 1.1  # speed-ups below this are called no gain
CLOSE = 1.05  # fp16 has to be faster than bf16 by this factor to go before it
FORMATS = {"amp_bf16": "bf16", "amp_fp16": "fp16"}  # recipe → the format of its matmuls
# the median step over the fastest: above these, a word of warning, and no recommendation
_NOISY, _TOO_NOISY = (1.5, 3.0)
# of the fp32 step spent on starting ops: above it, the training is too small for the machine
_LAUNCHING = 0.5
_NOTABLE = 0.05  # of the AMP step: a part of the gap above it is worth a line
_PARTS = {
    "casts": "casts to 16 bits and back",
    "other ops": "ops other than matmuls, which are slower under AMP",
    "memory": "memory that the system handed out again",
    "launches": "waiting for the CPU to queue ops",
    "unexplained": "something that the ops' own times do not show, such as Python, autocast's "
    "bookkeeping or noise",
}


@dataclass(frozen=True)
class Recommendation:
    """One recommendation, and what it rests on, a sentence each."""

    headline: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Outcome:
    """What a recipe did to a training; its speed-up may be that of a step too slow to compare."""

    name: str
    speedup: float
    helped: bool


def recommend(page: Page) -> Recommendation:
    """Return the recommendation for a page's machine. Example:
    an AVX2 laptop's → "Stay in fp32 on this machine …"
    """
    if page.busy:
        return Recommendation(
            f"No recommendation: {TOO_BUSY[0].lower()}{TOO_BUSY[1:]}.", (page.busy,)
        )
    outcomes = {recipe: _outcomes(page, recipe) for recipe in FORMATS}
    if page.measured is None or not any(outcomes.values()):
        why = "the run was interrupted too early"
        if page.complete:
            why = "no training could be compared with fp32"
        return Recommendation(f"No recommendation: {why}.")
    best = max(FORMATS, key=lambda recipe: _score(recipe, outcomes[recipe]))
    results = [one for one in page.results if one.recipe == best]
    factor = max(page.measured.factor(fmt) or 0.0 for fmt in FORMATS.values())
    tf32 = _describe_tf32(page)
    reasons = [_describe_format(page.measured, fmt) for fmt in FORMATS.values()]
    details = [
        *_describe_ceiling(results),
        *_describe_losses(results, page.measured),
        *_describe_memory(results),
    ]
    ratio, noise = _find_noise(page)
    if ratio > _TOO_NOISY and factor >= HELPED:
        return Recommendation(
            "No recommendation: the times of this run are too uneven.", tuple(noise)
        )
    if any(one.helped for one in outcomes[best]):
        headline = _headline_for_gain(best, outcomes[best])
        reasons += details
        if best == "amp_fp16":
            reasons.append(
                "AMP fp16 needs a GradScaler: without one, small gradients underflow in fp16."
            )
    elif factor < HELPED:
        pace = "slower" if factor < 1 / HELPED else "no faster"
        headline = (
            f"Stay in fp32 on this machine: 16-bit matmuls are {pace} here. Use AMP only to save "
            f"memory."
        )
        slower = [1 / one.speedup for found in outcomes.values() for one in found]
        if min(slower) > 1:
            reasons.append(f"The steps take {range_text(slower)} times as long under AMP.")
    else:
        headline = (
            f"Stay in fp32 for trainings like "
            f"{_count(outcomes[best], 'this one', 'these')}: AMP gained nothing."
        )
        reasons += details
    if tf32:
        headline = headline.replace("Stay in fp32", "Stay in fp32, with TF32 turned on,")
    return Recommendation(headline, tuple([*noise, *reasons, *tf32]))


def helped(result: Result) -> bool:
    """Return True if a recipe made a training faster by more than its times spread."""
    return result.measured >= HELPED and result.spread[0] > 1


def short(title: str) -> str:
    """Shorten a training's title: "SimpleNet, width 1024, batch 128" → "SimpleNet"."""
    return title.partition(",")[0]


def range_text(values: Iterable[float]) -> str:
    """Write the range of some ratios: [1.84, 1.31] → "1.3 to 1.8"; [1.31, 1.34] → "1.3"."""
    values = list(values)
    low, high = (
        f"{one:.{2 if one < 0.095 else 1 if one < 9.95 else 0}f}"
        for one in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _outcomes(page: Page, recipe: str) -> list[_Outcome]:
    compared = [
        _Outcome(short(one.title), one.measured, helped(one))
        for one in page.results
        if one.recipe == recipe
    ]
    return compared + [
        _Outcome(short(one.title), 1 / one.times_fp32, False)
        for one in page.left_out
        if one.recipe == recipe and one.times_fp32
    ]


def _score(recipe: str, outcomes: Sequence[_Outcome]) -> tuple[int, float]:
    """Return how many trainings a recipe helped, then the geometric mean of its speed-ups."""
    mean = statistics.geometric_mean([one.speedup for one in outcomes]) if outcomes else -math.inf
    return sum(one.helped for one in outcomes), mean * (CLOSE if recipe == "amp_bf16" else 1.0)


def _headline_for_gain(best: str, outcomes: Sequence[_Outcome]) -> str:
    train = f"Train in {label_of(best)}{', with a GradScaler' if best == 'amp_fp16' else ''}"
    if all(one.helped for one in outcomes):
        gain = range_text(one.speedup for one in outcomes)
        return (
            f"{train}: it made {_count(outcomes, 'this training', 'these trainings')} {gain} "
            f"times as fast as fp32."
        )
    gained = [f"{one.name} {range_text([one.speedup])} times" for one in outcomes if one.helped]
    others = [
        f"{one.name} ({range_text([one.speedup])} times)" for one in outcomes if not one.helped
    ]
    return (
        f"{train} where it pays, and time your own model first: it made {_list(gained)} as fast as "
        f"fp32, and did not help {_list(others)}."
    )


def _describe_format(machine: Machine, fmt: str) -> str:
    factor = machine.factor(fmt)
    if factor is None:
        whys = [rate.why for rate in machine.rates if rate.fmt == fmt and rate.why]
        why = whys[0].removeprefix("left out: ") if whys else "they were not timed"
        return f"There is no rate for {fmt} matmuls here: {why}."
    if factor >= HELPED:
        return f"Large {fmt} matmuls run {range_text([factor])} times as fast as fp32's here."
    if factor > 1 / HELPED:
        return f"Large {fmt} matmuls are no faster than fp32's here."
    return f"Large {fmt} matmuls take {range_text([1 / factor])} times as long as fp32's here."


def _describe_ceiling(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    shares = [one.share for one in results]
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    ceilings = range_text(one.ceiling for one in results)
    return [
        f"Matmuls take {low if low == high else f'{low} to {high}'} of the fp32 steps. With "
        f"nothing but them in 16 bits, the steps would be {ceilings} times as fast."
    ]


def _describe_losses(results: Sequence[Result], machine: Machine) -> list[str]:
    said = []
    for one in results:
        if helped(one):
            continue
        name, ops = short(one.title), one.ops["fp32"]
        part, seconds = max(one.gap_seconds.items(), key=lambda item: item[1])
        launching = min(1.0, ops * machine.launch_seconds / one.seconds["fp32"])
        if launching > _LAUNCHING:
            said.append(
                f"{name} is too small for this machine: starting its {ops} ops takes "
                f"{launching:.0%} of the fp32 step, whatever their dtype. A larger batch or wider "
                f"layers give AMP more to speed up."
            )
        elif seconds > _NOTABLE * one.seconds["amp"]:
            step = f"{seconds_text(seconds)} of an AMP step of {seconds_text(one.seconds['amp'])}"
            said.append(f"{name} lost most to {_PARTS[part]}: {step}.")
    return said


def _describe_memory(results: Sequence[Result]) -> list[str]:
    shares = {one.gap_seconds["memory"] / one.seconds["amp"]: short(one.title) for one in results}
    worst = max(shares, default=0.0)
    if worst < _NOTABLE:
        return []
    return [
        f"Fetching freed memory from the system again takes {worst:.0%} of {shares[worst]}'s AMP "
        f"step, more than in fp32. You can tell malloc to keep it: set `{CURE}` before Python "
        f"starts."
    ]


def _find_noise(page: Page) -> tuple[float, list[str]]:
    """Return the worst median step over the fastest of its kind, and what to say about it."""
    fastest: dict[tuple[str, str], float] = {}  # fp32's steps are timed once for each recipe
    steps = [
        (one, side, (one.title, side if side == "fp32" else one.recipe))
        for one in page.results
        for side in SIDES
    ]
    for one, side, key in steps:
        fastest[key] = min(fastest.get(key, math.inf), one.seconds[side])
    ratios = [(one.median[side] / fastest[key], one.title) for one, side, key in steps]
    ratio, title = max(ratios, default=(1.0, ""))
    if ratio < _NOISY:
        return ratio, []
    return ratio, [
        f"Something else was using this machine: a median step of {short(title)} took "
        f"{range_text([ratio])} times as long as the "
        "fastest one. Close other programs and run this again before you rely on these numbers."
    ]


def _describe_tf32(page: Page) -> list[str]:
    found = [one for one in page.results if one.recipe == "tf32"]
    if not found or not all(map(helped, found)):
        return []
    gain = range_text(one.measured for one in found)
    return [
        f"TF32 alone, without autocast: {gain} times as fast, by "
        f'torch.set_float32_matmul_precision("high").'
    ]


def _count(outcomes: Sequence[_Outcome], one: str, as_list: str) -> str:
    first, _, rest = as_list.partition(" ")
    number = {2: "two", 3: "three"}.get(len(outcomes), str(len(outcomes)))
    return one if len(outcomes) == 1 else f"{first} {number} {rest}".strip()


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
