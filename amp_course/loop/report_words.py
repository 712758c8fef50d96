"""Describe a report card in words: which recipe helped, was stopped or diverged, and why."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import torch

from amp_course.bits.formats import find_format
from amp_course.kit.dtypes import FASTER, SLOWER, explain_emulated
from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text

if TYPE_CHECKING:
    from amp_course.loop.recipe import AnyRecipe
    from amp_course.loop.report import ReportCard, Row

_HELPED, _HURT = 1.1, 0.95  # speed-ups between these two are called no change


def paragraph(card: ReportCard) -> str:
    """Return a paragraph (Markdown) for each workload, then one on slow formats and lost losses."""
    said = [_describe_workload(card, workload) for workload in card.workloads()]
    slow = {
        _format_of(row.recipe)
        for row in card.rows
        if not card.busy(row.workload) and (row.stopped or card.speedup(row) < _HURT)
    }
    supports = (support for support in card.machine.dtypes if support.name in slow)
    if explanation := explain_emulated(supports):
        said.append(f"**Why so slow?** {explanation}")
    if any(row.stopped for row in card.rows):
        said.append(
            "A loss or an accuracy after so few steps compares nothing, so those of stopped "
            "recipes are left out."
        )
    return "\n\n".join(said)


def _format_of(recipe: AnyRecipe) -> str:
    return find_format(recipe.low_dtype or torch.float32).name


def _describe_workload(card: ReportCard, workload: str) -> str:
    base, *others = card.of(workload)
    busy = card.busy(workload)
    finished = [row for row in others if not row.stopped and not row.diverged]
    said = [f"**{html.escape(base.title)}.**", busy]
    if base.stopped:
        said.append(f"Even {_label(base)} was stopped, after {_steps(base)}: {_BUSY}")
    if finished:
        if busy:
            best = min(finished, key=lambda row: row.peak_bytes)
        else:
            best = max(finished, key=card.speedup)
            said.append(_describe_speed(card, base, best))
        said += [_describe_memory(base, best), _describe_quality(base, best)]
    elif any(row.stopped for row in others) and not base.stopped:
        said.append(f"Only {_label(base)} finished in time.")
    if diverged := [_label(row) for row in card.of(workload) if row.diverged]:
        under = " and ".join(diverged)
        said.append(f"The loss became inf or NaN under {under}: chapter 08 says why.")
    stopped = [_describe_stopped(base, row, bool(busy)) for row in others if row.stopped]
    return " ".join(filter(None, said)) + "".join(f"\n{item}" for item in ["", *stopped] if stopped)


_BUSY = (
    "the time limit is too short for a machine as slow, or as busy, as this one. Raise "
    "`max_seconds`."
)


def _describe_speed(card: ReportCard, base: Row, best: Row) -> str:
    gain, (fp32, amp) = card.speedup(best), (base.timing, best.timing)
    times = (
        f"{seconds_text(base.timing.median)} a step in {_label(base)}, "
        f"{seconds_text(best.timing.median)} in {_label(best)}"
    )
    if fp32.q1 <= amp.q3 and amp.q1 <= fp32.q3 and not _HURT <= gain < _HELPED:
        return (
            f"Between {_label(base)} and {_label(best)} this machine can show no difference in "
            f"time: the quartiles overlap ({times})."
        )
    if gain >= _HELPED:
        return f"{_label(best)} helped: {gain:.2f} times as fast ({times})."
    if gain >= _HURT:
        said = f"{_label(best)} changed little: {gain:.2f} times as fast ({times})."
    else:
        said = f"{_label(base)} was the fastest; {_label(best)} took {_times(1 / gain)} as long "
        said += f"({times})."
    return f"{said} {_find_reason(card, best.recipe)}".strip()


def _find_reason(card: ReportCard, recipe: AnyRecipe) -> str:
    """Say why a recipe gained nothing, as far as the machine's measured matmuls show."""
    supports = {support.name: support for support in card.machine.dtypes}
    support = supports.get(_format_of(recipe))
    if support is None or support.times_fp32 is None:
        return ""
    article = "an" if support.name.startswith("f") else "a"
    measured = (
        f"{article} {support.name} matmul takes {_times(support.times_fp32)} fp32's time on this "
        f"machine"
    )
    if support.times_fp32 >= FASTER:
        return f"There is no time to gain: {measured}."
    return (
        f"Yet {measured}, so this step must spend its time on something else: small ops, casts, "
        "batch norm or the optimizer. Chapter 09 finds out which."
    )


def _describe_memory(base: Row, row: Row) -> str:
    share, kept = row.peak_bytes / base.peak_bytes, base.memory.kept / base.peak_bytes
    peaks = f"({bytes_text(base.peak_bytes)}, then {bytes_text(row.peak_bytes)})"
    change = "stayed at 100%"
    if not 0.995 <= share <= 1.005:
        change = f"{'fell' if share < 1 else 'rose'} to {share:.0%}"
    parts = "these take the same bytes in both"
    if row.memory.kept != base.memory.kept:
        parts = (
            f"{_label(row)} takes {row.bytes_per_parameter:.1f} bytes per parameter instead of "
            f"{base.bytes_per_parameter:.1f}"
        )
    return (
        f"Peak memory {change} of {_label(base)}'s {peaks}. Weights, gradients and optimizer state "
        f"are {kept:.0%} of {_label(base)}'s peak, and {parts}."
    )


def _describe_quality(base: Row, row: Row) -> str:
    if base.stopped:
        return ""
    if row.accuracy is not None and base.accuracy is not None:
        noise = ""
        if abs(row.accuracy - base.accuracy) > 0.005:
            noise = f" After only {row.planned_steps} steps, a few points are noise."
        return (
            f"Accuracy: {base.accuracy:.1%} in {_label(base)}, {row.accuracy:.1%} in "
            f"{_label(row)}.{noise}"
        )
    return (
        f"Final loss: {base.final_loss:.4f} in {_label(base)}, {row.final_loss:.4f} in "
        f"{_label(row)}."
    )


def _describe_stopped(base: Row, row: Row, busy: bool) -> str:
    ratio, share = row.timing.median / base.timing.median, row.peak_bytes / base.peak_bytes
    seconds = (
        f"{seconds_text(row.timing.median)} a step instead of {seconds_text(base.timing.median)}"
    )
    if busy:
        pace = f"was stopped by the time limit after {_steps(row)}."
    elif ratio > SLOWER:
        pace = (
            f"was stopped after {_steps(row)}, at {_times(ratio)} {_label(base)}'s time "
            f"({seconds})."
        )
    elif base.stopped:
        pace = f"was stopped too, after {_steps(row)} ({seconds})."
    else:
        pace = f"was stopped after {_steps(row)}, though it is not slow ({seconds}): {_BUSY}"
    return (
        f"- **{_label(row)}** {pace} Its memory is known anyway: it peaks at "
        f"{bytes_text(row.peak_bytes)}, {share:.0%} of {_label(base)}'s, and keeps "
        f"{bytes_text(row.activation_bytes)} of activations instead of "
        f"{bytes_text(base.activation_bytes)}."
    )


def _label(row: Row) -> str:
    return html.escape(row.recipe.label)


def _steps(row: Row) -> str:
    return f"{len(row.record.losses)} of {row.planned_steps} steps"


def _times(ratio: float) -> str:
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f} times"
