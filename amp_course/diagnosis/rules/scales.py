"""Judge all updates of a script: do the gradients of their steps carry the loss scale?"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import CLOSE, near
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.watching.script import Clip, StepNorms, Summary

_FEW = 6  # updates; if half of them skip, the scale keeps falling,
_LOW = 16.0  # and falls below this: sound trainings have settled at 128
_SHARED = (
    "two optimizers have weights in common: the scaler's step of the first unscales their "
    "gradients, and that of the second unscales them again"
)


def check_summaries(summaries: Sequence[Summary], shared: Collection[int] = ()) -> Findings:
    """Look for faults in most of the updates.

    shared: the numbers of optimizers that have a parameter in common
    """
    yield from _clipped_while_scaled(summaries) or _clipped_by_hand(summaries)
    uses = [use for one in summaries for use in one.uses if use.arrived > 0]
    scaled = [(use, use.scale) for use in uses if use.scale is not None and use.scale > 1]
    numbers = sorted({use.number for use, _ in scaled})
    for number in numbers:
        own = [(use, scale) for use, scale in scaled if use.number == number]
        by_hand = [(use, scale) for use, scale in own if not use.by_scaler and not use.unscaled]
        still = [(use, scale) for use, scale in by_hand if near(use.norm, use.arrived)]
        if 2 * len(still) > len(own):
            use, scale = still[-1]
            norms = {"norm_at_the_step": use.norm, "loss_scale": scale}
            yield finding("still-scaled", place=str(use.line or ""), **norms)
            break
    for number in numbers:
        own = [(use, scale) for use, scale in scaled if use.number == number]
        twice = [(use, scale) for use, scale in own if near(use.norm * scale**2, use.arrived)]
        if 2 * len(twice) > len(own):
            use, scale = twice[-1]
            cause = _SHARED if number in shared else ""
            norms = {"norm_at_the_step": use.norm, "true_norm": use.norm * scale}
            yield finding("unscaled-twice", cause, place=str(use.line or ""), **norms)
            break
    crossed = [one for one in summaries if one.crossed]
    if 2 * len(crossed) > len(summaries):
        yield finding("depends-on-scale", variant="other-scaler", updates=len(crossed))
    skipped = sum(one.skipped for one in summaries)
    if len(summaries) >= _FEW and 2 * skipped > len(summaries) and summaries[-1].skipped:
        first = max(summaries[0].scales, default=0.0)
        low = max(summaries[-1].scales_after, default=0.0)
        if low < _LOW:
            count = f"{skipped} of {len(summaries)} updates"
            yield finding("scale-keeps-falling", skipped=count, first_scale=first, last_scale=low)


def _clipped_while_scaled(summaries: Sequence[Summary]) -> list[Finding]:
    clips: list[tuple[Clip, float]] = []
    for one in summaries:
        scale = max(one.scales, default=1.0)
        # with an infinite norm, the scaler skips the step
        scaled = (clip for clip in one.clips if clip.scaled and clip.norm < math.inf)
        clips += [(clip, scale) for clip in scaled if not _divided(clip, one, scale)]
    cut = [(clip, scale) for clip, scale in clips if clip.limit < clip.norm]
    fixed = len({clip.limit for clip, _ in clips}) == 1 and len({scale for _, scale in clips}) > 1
    low = all(64 * clip.limit <= scale for clip, scale in cut)
    if 2 * len(cut) <= len(clips) or not (fixed or low):
        return []
    clip, scale = cut[-1]
    shown = {"limit": clip.limit, "norm_where_it_was_clipped": clip.norm, "loss_scale": scale}
    if any(clip.scaled != clip.numbers for clip, _ in clips):
        cause = (
            "gradients of several optimizers are clipped together, and only some were unscaled: "
            "the others still carry the loss scale, and so does the norm"
        )
        return [finding("clipped-while-scaled", cause, **shown)]
    left = {"true_norm": clip.norm / scale, "norm_that_was_left": clip.limit / scale}
    return [finding("clipped-while-scaled", **shown, **left)]


def _divided(clip: Clip, summary: Summary, scale: float) -> bool:
    """Return True if the script itself had divided the gradients by the scale."""
    arrived = [use.arrived for use in summary.uses if use.number in clip.scaled]
    return bool(arrived) and clip.norm * math.sqrt(scale) < math.hypot(*arrived)


def _clipped_by_hand(summaries: Sequence[Summary]) -> list[Finding]:
    """Look for a clip by its effect: the norm times the scale is the same at every scale."""
    by_number: dict[int, list[tuple[StepNorms, float]]] = {}
    for use in (use for one in summaries for use in one.uses):
        if use.scale and use.arrived and use.by_scaler:
            by_number.setdefault(use.number, []).append((use, use.scale))
    for uses in by_number.values():
        left = [use.norm * scale for use, scale in uses]
        limited = all(now < 0.5 * use.arrived for now, (use, _) in zip(left, uses, strict=True))
        several = len(uses) >= 3 and len({scale for _, scale in uses}) > 1
        if limited and several and max(left) <= (1 + CLOSE) * min(left):
            use, scale = uses[-1]
            shown = {"limit": left[-1], "true_norm": use.arrived / scale, "loss_scale": scale}
            return [finding("clipped-while-scaled", **shown, norm_that_was_left=use.norm)]
    return []


def changed_while_scaled(summaries: Sequence[Summary]) -> bool:
    """Return True if most steps used gradients that the script's own code had changed while they
    carried the loss scale: it may have divided its limit by the scale, or not.
    """
    uses = [
        (use, any(use.number in clip.numbers for clip in one.clips), use.scale)
        for one in summaries
        for use in one.uses
        if use.by_scaler and not use.unscaled and use.arrived > 0
    ]
    changed = [
        use
        for use, clipped, scale in uses
        if scale and scale > 1 and not clipped and not near(use.at_call * scale, use.arrived)
    ]
    return 2 * len(changed) > len(uses)
