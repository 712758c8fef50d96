"""Recommend one recipe for a machine, from nothing but the numbers on its page.

A recipe helps a training if it makes it at least a tenth faster and the quartiles agree. The recipe
that helps most is recommended; where the two are close, that is bf16, which needs no scaler.
Nothing is promised for other models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_course.diagnosis.report import listed
from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.speed.bench.page import SIDES, LeftOut, Page, Result, label_of
from amp_course.speed.faults import CURE
from amp_course.speed.machine import Machine

HELPED = 1.1  # a smaller speed-up is called no gain
CLOSE = 1.05  # fp16 has to be faster than bf16 by this factor to be preferred
FORMATS = {"amp_bf16": "bf16", "amp_fp16": "fp16"}  # recipe → the format of its matmuls
# the median step over the fastest: above the first there is a warning, above the second no
# recommendation
_NOISY, _TOO_NOISY = 1.5, 3.0
# the share of the fp32 step spent on starting ops above which the training is too small to gain
_LAUNCHING = 0.5
_NOTABLE = 0.05  # the share of the AMP step from which a part of the gap is worth a line
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
    """One recommendation, and its reasons, a sentence each."""

    headline: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Outcome:
    """What a recipe did to a training, even one left out because its steps were too slow."""

    name: str
    speedup: float
    helped: bool


def recommend(page: Page) -> Recommendation:
    """Return the recommendation for a page's machine.

    Example: the page of a laptop with AVX2 → "Stay in fp32 on this machine …"
    """
    if page.busy:
        return _no_recommendation(f"{TOO_BUSY[0].lower()}{TOO_BUSY[1:]}", page.busy)
    outcomes = {recipe: _outcomes(page, recipe) for recipe in FORMATS}
    if page.measured is None or not any(outcomes.values()):
        return _no_recommendation(
            "no training could be compared with fp32"
            if page.complete
            else "the run was interrupted too early"
        )
    best = max(FORMATS, key=lambda recipe: _score(recipe, outcomes[recipe]))
    results = [one for one in page.results if one.recipe == best]
    factor = max(page.measured.factor(fmt) or 0.0 for fmt in FORMATS.values())
    ratio, noise = _find_noise(page)
    if ratio > _TOO_NOISY and factor >= HELPED:
        return _no_recommendation("the times of this run are too uneven", *noise)
    reasons = [*noise, *(_describe_format(page.measured, fmt) for fmt in FORMATS.values())]
    details = [
        *_describe_ceiling(results),
        *_describe_losses(results, page.measured),
        *_describe_memory(results),
    ]
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
        these = _number_of(outcomes[best], "this one", "these")
        headline = f"Stay in fp32 for trainings like {these}: AMP gained nothing."
        reasons += details
    tf32 = _describe_tf32(page)
    if tf32:
        headline = headline.replace("Stay in fp32", "Stay in fp32, with TF32 turned on,")
    return Recommendation(headline, (*reasons, *tf32))


def _no_recommendation(why: str, *reasons: str) -> Recommendation:
    return Recommendation(f"No recommendation: {why}.", reasons)


def helped(result: Result) -> bool:
    """Return True if a recipe made a training clearly faster, by its quartiles too."""
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
    rows: list[tuple[Result | LeftOut, float, bool]] = [
        (one, one.measured, helped(one)) for one in page.results
    ]
    rows += [(one, 1 / one.times_fp32, False) for one in page.left_out if one.times_fp32]
    return [
        _Outcome(short(one.title), speedup, gained)
        for one, speedup, gained in rows
        if one.recipe == recipe
    ]


def _score(recipe: str, outcomes: Sequence[_Outcome]) -> tuple[int, float]:
    """Return the number of trainings that a recipe helped, and its mean speed-up (geometric)."""
    mean = statistics.geometric_mean([one.speedup for one in outcomes]) if outcomes else -math.inf
    return sum(one.helped for one in outcomes), mean * (CLOSE if recipe == "amp_bf16" else 1.0)


def _headline_for_gain(best: str, outcomes: Sequence[_Outcome]) -> str:
    train = f"Train in {label_of(best)}{', with a GradScaler' if best == 'amp_fp16' else ''}"
    if all(one.helped for one in outcomes):
        gain = range_text(one.speedup for one in outcomes)
        trainings = _number_of(outcomes, "this training", "these trainings")
        return f"{train}: it made {trainings} {gain} times as fast as fp32."
    times = [(one, f"{range_text([one.speedup])} times") for one in outcomes]
    gained = listed(f"{one.name} {faster}" for one, faster in times if one.helped)
    others = listed(f"{one.name} ({faster})" for one, faster in times if not one.helped)
    return (
        f"{train} where it pays, and time your own model first: it made {gained} as fast as fp32, "
        f"and did not help {others}."
    )


def _describe_format(machine: Machine, fmt: str) -> str:
    factor = machine.factor(fmt)
    if factor is None:
        why = machine.whys.get(fmt, "they were not timed").removeprefix("left out: ")
        return f"There is no rate for {fmt} matmuls here: {why}."
    if factor >= HELPED:
        return f"Large {fmt} matmuls run {range_text([factor])} times as fast as fp32's here."
    if factor > 1 / HELPED:
        return f"Large {fmt} matmuls are no faster than fp32's here."
    return f"Large {fmt} matmuls take {range_text([1 / factor])} times as long as fp32's here."


def _describe_ceiling(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    shares = sorted(one.share for one in results)
    low, high = f"{shares[0]:.0%}", f"{shares[-1]:.0%}"
    ceilings = range_text(one.ceiling for one in results)
    return [
        f"Matmuls take {low if low == high else f'{low} to {high}'} of the fp32 steps. With "
        f"nothing but them in 16 bits, the steps would be {ceilings} times as fast."
    ]


def _describe_losses(results: Sequence[Result], machine: Machine) -> list[str]:
    sentences = []
    for result in results:
        if helped(result):
            continue
        name, ops = short(result.title), result.ops["fp32"]
        part, seconds = max(result.gap_seconds.items(), key=lambda item: item[1])
        launching = min(1.0, ops * machine.launch_seconds / result.seconds["fp32"])
        if launching > _LAUNCHING:
            sentences.append(
                f"{name} is too small for this machine: starting its {ops} ops takes "
                f"{launching:.0%} of the fp32 step, whatever their dtype. A larger batch or wider "
                f"layers give AMP more to speed up."
            )
        elif seconds > _NOTABLE * result.seconds["amp"]:
            step = (
                f"{seconds_text(seconds)} of an AMP step of {seconds_text(result.seconds['amp'])}"
            )
            sentences.append(f"{name} lost most to {_PARTS[part]}: {step}.")
    return sentences


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
    """Return the largest ratio of a median step to the fastest of its kind, and a warning of it."""
    steps = [
        (result, side, (result.title, side if side == "fp32" else result.recipe))
        for result in page.results
        for side in SIDES
    ]
    fastest: dict[tuple[str, str], float] = {}  # fp32's steps are timed once for each recipe
    for result, side, kind in steps:
        fastest[kind] = min(fastest.get(kind, math.inf), result.seconds[side])
    ratios = [(result.median[side] / fastest[kind], result.title) for result, side, kind in steps]
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


def _number_of(outcomes: Sequence[_Outcome], singular: str, plural: str) -> str:
    """Return "this training" or, with the number, "these three trainings"."""
    these, _, noun = plural.partition(" ")
    number = {2: "two", 3: "three"}.get(len(outcomes), str(len(outcomes)))
    return singular if len(outcomes) == 1 else f"{these} {number} {noun}".strip()
