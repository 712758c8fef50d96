"""Judge a script's updates: two at a time by their calls, as the auditor does, and all together by what their steps used."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.calls import (
    check_clearing,
    check_passes,
    check_precision,
    check_schedule,
    check_steps,
    check_updates,
    frozen_optimizer,
    in_fp16_unscaled,
)
from amp_course.diagnosis.rules.stress import HIDDEN, check_hidden, check_skipping
from amp_course.watching.records import Backward, Call, Step, Training, Update
from amp_course.watching.script import Clip, Summary, Use
from amp_course.watching.uses import Used, steps_of

_CLOSE = 0.02
# Of these a single update proves nothing: a script may move a schedule once an epoch, or freeze a part for a while.
_NOT_OF_SCRIPTS = {"scheduler-never-moved", "frozen-optimizer", "no-backward"}
_ONCE = {"no-update-after-skip"}  # is proof enough: it comes up only where something overflows
_FEW = 6  # updates, of which half have to skip before the scale is said to keep falling
_LOW = 4096.0  # and as far: until then a scaler may still be looking for its scale
_STATIC = 8.0  # times the loss: more is a loss scale of the script's own
_OFTEN = 0.9  # of the updates: what SAM clears, it clears in each
_SOME = 5  # updates in which nothing at all is trained
_NEVER = 20  # steps without a gradient: fewer may be a part that is frozen for a while


SINGLE_CLASS = (
    "every gradient is exactly 0, so no weight moves: the softmax of a single output is always 1, and the cross-entropy of it "
    "always 0. For one output take `binary_cross_entropy_with_logits`, or `mse_loss` for a number"
)


class PairRules:
    """Judges each update together with the one before, and counts how often each finding comes up."""

    def __init__(self) -> None:
        self.updates = self.with_steps = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, Finding] = {}
        self.groups: list[tuple[int, int]] = []  # of each update: backward passes, and how many of them no step used
        self.shares: list[float] = []  # by which the losses were multiplied, without the scale
        self.given: set[int] = set()  # ids of optimizers to whose weights a gradient came
        self.bare: Counter[int] = Counter()  # id of another → its steps
        self.frozen: dict[int, Finding] = {}
        self.zero = self.moving = 0  # steps with gradients that are all 0, and with others
        self.single_class = False
        self.hidden = 0  # steps with finite gradients, although what arrived was not
        self.ratios: list[float] = []  # of probabilities: how far from 1

    def look_at(self, updates: Sequence[Update], training: Training, summary: Summary) -> None:
        """Judge the last of a script's updates, together with the one before."""
        last = updates[-1]
        self.updates += 1
        self.with_steps += bool(last.steps())
        found = [*check_passes(last, training)]
        if len(updates) > 1:
            accumulate = max(last.calls, 1) if len(training.optimizers) == 1 else 1
            found += check_precision(updates[0], last, training)
            found += check_steps(updates, training, 1)
            found += check_clearing(updates, training)
            found += _mixed_passes(updates, training)
            found += check_updates(updates, training, accumulate)
            found += _schedule(updates, training)
        for number, optimizer in enumerate(training.optimizers):
            self._look_for_gradients(last, training, number, id(optimizer))
            self.hidden += sum(_is_hidden(used, number) for used in steps_of(last.events, number))
            for step in last.steps(number):
                self.moving += not step.gradient.empty
                self.zero += step.gradient.empty and any(step.gradient.present)
            bad = [one for one in last.steps(number) if not one.gradient.finite]
            if _forgets_update(last, number):
                found.append(finding("no-update-after-skip", loss_scale=max(last.scales, default=1.0)))
            held = [one.before[number] for one in last.backwards[:1]]
            skipped = len(updates) > 1 and updates[0].called("scaler.step", number) and not updates[0].steps(number)
            if skipped and any(not one.finite for one in held):
                found.append(finding("kept-after-skip", steps_after_the_skip=len(last.steps(number))))
            if bad and last.called("scale") and last.spoilt[number]:
                found.append(finding("overflow-not-skipped", loss_scale=max(last.scales, default=1.0)))
        self.ratios += [one.graph.ratio for one in last.backwards if not math.isnan(one.graph.ratio)]
        self.single_class |= any(one.graph.single_class for one in last.backwards)
        twice = [one for one in last.backwards if one.graph.softmax_twice]
        if twice:
            found.append(finding("softmax-twice", place=str(twice[0].line or "")))
        if len(training.optimizers) == 1:
            cleared = [part.arrived.get(0) for used in steps_of(last.events, 0) for part in used.cleared]
            unused = [one for one in cleared if one is not None and one.finite]
            self.groups.append((len(last.backwards), len(unused)))
            self.shares += [one.graph.factor / (getattr(one, "scale", None) or 1.0) for one in last.backwards]
            found += _thrown_away(last, training)
        found += _clipped_early(last)
        scaled = any(one.graph.factor > _STATIC for one in last.backwards)
        own = scaled or any(_shrunk(use, summary) for use in summary.uses)
        if summary.uses and in_fp16_unscaled(last, training) and not own:
            found.append(finding("fp16-without-scaler"))
        for one in {one.name: one for one in found if one.name not in _NOT_OF_SCRIPTS}.values():
            self.counts[one.name] += 1
            self.first.setdefault(one.name, one)

    def _look_for_gradients(self, last: Update, training: Training, number: int, key: int) -> None:
        """Count the steps of an optimizer to whose weights no gradient comes."""
        steps, weights = last.steps(number), training.slots[number].parameters
        if any(number in one.arrived for one in last.backwards) or any(any(one.gradient.present) for one in steps):
            self.given.add(key)
        else:
            self.bare[key] += len(steps)
            variant = {"variant": "detached"} if any(p.requires_grad for p in weights) else {}
            kind = f"{type(training.optimizers[number]).__name__}, number {number + 1} of {len(training.optimizers)}"
            cause = frozen_optimizer(training, number).cause
            self.frozen[key] = finding("frozen-optimizer", cause, optimizer=kind, steps=self.bare[key], **variant)

    def look_at_rest(self, update: Update, training: Training) -> None:
        """Judge an update that was not completed."""
        for number in range(len(training.optimizers)):
            if _forgets_update(update, number):
                one = finding("no-update-after-skip", loss_scale=max(update.scales, default=1.0))
                self.counts[one.name] += 1
                self.first.setdefault(one.name, one)

    def findings(self) -> Iterator[Finding]:
        """Yield what came up in most updates; what comes up once may be meant, at the turn of a phase."""
        for name, one in self.first.items():
            # The first update has none before it, and one that is skipped shows less than one that is not.
            if 2 * self.counts[name] >= max(min(self.updates, self.with_steps or self.updates) - 1, 1) or name in _ONCE:
                seen = f"{self.counts[name]} of {max(self.updates - 1, self.counts[name])} updates"  # the first has none before
                yield replace(one, evidence={**one.evidence, "seen in": seen})
        dropping = [unused for _, unused in self.groups if unused]
        usual = statistics.median([passes for passes, unused in self.groups if not unused] or [0])
        if 2 <= len(dropping) < _OFTEN * len(self.groups) and usual > max(dropping):
            yield finding("micro-batches-dropped", updates=f"{len(dropping)} of {len(self.groups)}",
                          micro_batches_in_each=f"{max(dropping)}, and {usual:g} in those that were used")  # fmt: skip
        yield from self._uneven_groups()
        if self.hidden:
            yield finding("overflow-not-skipped", HIDDEN, steps_with_an_inf=self.hidden, variant="hidden")
        fewest = _NEVER if self.given else _SOME  # of several optimizers, one may wait for its phase
        yield from (one for key, one in self.frozen.items() if key not in self.given and self.bare[key] >= fewest)
        if self.zero and not self.moving and self.updates >= _SOME:
            cause = SINGLE_CLASS if self.single_class else ""
            yield finding("gradients-all-zero", cause, steps=self.zero)

    def _uneven_groups(self) -> Iterator[Finding]:
        """Look for updates with more or fewer micro-batches than the number by which each loss is divided."""
        counts = Counter(passes for passes, unused in self.groups if not unused)
        usual = max(counts, key=lambda one: counts[one], default=1)
        others = sorted(one for one in counts if one != usual)
        divided = all(math.isclose(one * usual, 1.0, rel_tol=_CLOSE) for one in self.shares)
        if usual > 1 and others and divided and len(counts) < len(self.groups):
            cause = (
                "some updates add up more or fewer micro-batches than the others, and each loss is divided by the same number: "
                "their gradients are too large or too small by as much"
            )
            yield finding("last-group-mean", cause, micro_batches_in_most_updates=usual,
                          in_others=", ".join(map(str, others)), each_loss_is_divided_by=usual)  # fmt: skip


def _thrown_away(update: Update, training: Training) -> Iterator[Finding]:
    """Look for an update that uses the last of its backward passes alone, because gradients are cleared before each.

    The weights have not moved in between, as SAM's have, and the step's gradient is what the last pass brought: methods that
    combine gradients by hand use another.
    """
    for used in steps_of(update.events, 0)[:1]:
        parts = [one for one in used.cleared if 0 in one.arrived] + used.parts
        alone = len(used.cleared) > 0 and len(used.parts) == 1 and not used.step.closure and len(parts) > 1
        last = used.parts[-1].arrived.get(0) if alone else None
        if last is None or any(one.moved for one in parts) or len({str(one.line) for one in parts}) > 1:
            continue
        scale = getattr(used.parts[-1], "scale", None) or 1.0
        clipped = [clip for clip in update.of(Clip) if clip.norm > clip.limit]
        if clipped or math.isclose(used.step.gradient.norm * scale, last.norm, rel_tol=_CLOSE):
            weights = ", ".join(["0"] * (len(parts) - 1) + ["1"])
            yield finding(
                "cleared-every-micro-batch",
                micro_batches=len(parts),
                their_weights_in_the_gradient=weights,
                place=str(parts[-1].line),
            )


def _clipped_early(update: Update) -> Iterator[Finding]:
    """Look for a clip that cuts the sum of some micro-batches' gradients before the next one's are added to it."""
    for number, event in enumerate(update.events):
        if not isinstance(event, Clip) or not event.limit < event.norm < math.inf or event.scaled:
            continue
        following = [one for one in update.events[number:] if isinstance(one, (Backward, Step))]
        before = any(isinstance(one, Backward) for one in update.events[:number])
        if before and following and isinstance(following[0], Backward):
            kept = [n for n in event.numbers if not following[0].before[n].empty]
            if kept:
                norm = following[0].before[kept[0]].norm
                yield finding("clipped-every-micro-batch", norm_that_arrived=event.norm, norm_between_micro_batches=norm,
                              place=str(event.line or ""))  # fmt: skip
                return


def _schedule(updates: Sequence[Update], training: Training) -> Iterator[Finding]:
    """Judge the schedules. One that moves at most once a backward pass may be counted in those."""
    for one in check_schedule(updates, training, 1) if training.schedulers else ():
        passes = sum(len(update.backwards) for update in updates)
        moves = one.evidence.get("moves", 0)
        if one.name == "scheduler-moved-twice" and isinstance(moves, int) and moves <= passes:
            cause = (
                "the scheduler moves with each backward pass, not with each step of its optimizer: the schedule ends too "
                "early, unless its length is counted in micro-batches"
            )
            yield finding("scheduler-every-micro-batch", cause, **one.evidence)
        else:
            yield one


def _mixed_passes(updates: Sequence[Update], training: Training) -> Iterator[Finding]:
    """Look for gradients of a pass that another optimizer's step was made for, added to those of the next pass.

    One who steps less often than the other is let off: it may gather gradients on purpose.
    """
    events = [event for update in updates for event in update.events]
    numbers = range(len(training.optimizers))
    steps = Counter(one.number for update in updates for one in update.steps())
    for number in numbers:
        for used in steps_of(events, number):
            for part, following in itertools.pairwise(used.parts):
                between = events[events.index(part) : events.index(following)]
                others = {one.number for one in between if isinstance(one, Step)} - {number, -1}
                left = following.before[number].norm
                if left and any(steps[number] >= steps[other] for other in others) and used.step.number not in others:
                    cause = (
                        "the gradients that a backward pass for another optimizer's step left here were not cleared, so they are "
                        "added to those of the next pass"
                    )
                    yield finding("never-cleared", cause, norm_of_gradients_left_over=left)
                    return


def _is_hidden(used: Used, number: int) -> bool:
    """Tell whether inf or NaN arrived, and the scaler took a step with finite gradients."""
    came = [one.arrived[number] for one in used.parts if number in one.arrived and one.complete]
    return used.step.by_scaler and used.step.gradient.finite and any(not one.finite for one in came)


def _forgets_update(update: Update, number: int) -> bool:
    """Tell whether gradients with inf or NaN of a scaled loss were thrown away, and the scaler was not told."""
    for event, after in itertools.pairwise(one for one in update.events if isinstance(one, (Backward, Call))):
        arrived = event.arrived.get(number) if isinstance(event, Backward) else None
        overflowed = arrived is not None and not arrived.finite
        if overflowed and isinstance(after, Call) and after.name == "scale":
            later = update.events[update.events.index(after) :]
            following = next((one for one in later if isinstance(one, Backward)), None)
            if following is not None and following.before[number].empty:
                return True
    return False


def _shrunk(use: Use, summary: Summary) -> bool:
    """Tell whether gradients were divided on their way to the step, by a scale of the script's own perhaps, and not clipped."""
    clipped = any(use.number in clip.numbers and clip.norm > clip.limit for clip in summary.clips)
    return not clipped and not math.isclose(use.norm, use.arrived, rel_tol=_CLOSE)


def check_summaries(summaries: Sequence[Summary]) -> Iterator[Finding]:
    """Judge all updates together."""
    yield from _clipped_while_scaled(summaries)
    uses = [use for one in summaries for use in one.uses if use.arrived > 0]
    scaled = [use for use in uses if use.scale is not None and use.scale > 1]
    still = [
        use
        for use in scaled
        if not use.by_scaler and not use.unscaled and math.isclose(use.norm, use.arrived, rel_tol=_CLOSE)
    ]
    if still and 2 * len(still) > len(scaled):
        one = still[-1]
        assert one.scale is not None
        yield finding("still-scaled", norm_at_the_step=one.norm, loss_scale=one.scale)
    twice = [use for use in scaled if use.scale and math.isclose(use.norm * use.scale**2, use.arrived, rel_tol=_CLOSE)]
    if twice and 2 * len(twice) > len(scaled):
        yield finding(
            "unscaled-twice", norm_at_the_step=twice[-1].norm, true_norm=twice[-1].norm * (twice[-1].scale or 1)
        )
    skipped = [one for one in summaries if one.skipped]
    low = max((summaries[-1].scales_after if summaries else ()), default=0.0)
    if len(summaries) >= _FEW and 2 * len(skipped) > len(summaries) and summaries[-1].skipped and low < _LOW:
        evidence = {"first_scale": max(summaries[0].scales, default=0.0), "last_scale": low}
        yield finding("scale-keeps-falling", skipped=f"{len(skipped)} of {len(summaries)} updates", **evidence)


def _clipped_while_scaled(summaries: Sequence[Summary]) -> Iterator[Finding]:
    clips = [
        (clip, scale) for one in summaries if (scale := max(one.scales, default=1.0))
        for clip in one.clips if clip.scaled and not _divided(clip, one, scale)
    ]  # fmt: skip
    cause = ""
    if any(clip.scaled != clip.numbers for clip, _ in clips):
        cause = (
            "gradients of several optimizers are clipped together, and only some were unscaled: the others still carry the "
            "loss scale, and so does the norm"
        )
    cut = [(clip, scale) for clip, scale in clips if clip.norm > clip.limit and math.isfinite(clip.norm)]
    fixed = len({clip.limit for clip, _ in clips}) == 1 and len({scale for _, scale in clips}) > 1
    if cut and 2 * len(cut) > len(clips) and (fixed or all(64 * clip.limit <= scale for clip, scale in cut)):
        clip, scale = cut[-1]
        true = {} if cause else {"true_norm": clip.norm / scale, "norm_that_was_left": clip.limit / scale}
        yield finding(
            "clipped-while-scaled", cause, limit=clip.limit, norm_where_it_was_clipped=clip.norm, loss_scale=scale, **true
        )  # fmt: skip
        return
    # Clipping by hand is seen by its effect alone: what is left, times the scale, is the same number at every scale.
    by_number: dict[int, list[Use]] = {}
    for one in summaries:
        for use in one.uses:
            if use.scale and use.arrived and use.by_scaler:
                by_number.setdefault(use.number, []).append(use)
    for uses in by_number.values():
        limited = [use for use in uses if use.norm * (use.scale or 1) < 0.5 * use.arrived]
        left = [use.norm * (use.scale or 1) for use in limited]
        scales = {use.scale for use in limited}
        if len(limited) == len(uses) >= 3 and len(scales) > 1 and max(left) <= (1 + _CLOSE) * min(left):
            yield finding(
                "clipped-while-scaled", limit=left[-1], true_norm=limited[-1].arrived / (limited[-1].scale or 1),
                loss_scale=limited[-1].scale or 1.0, norm_that_was_left=limited[-1].norm,
            )  # fmt: skip
            return


def _divided(clip: Clip, summary: Summary, scale: float) -> bool:
    """Return True if the script had divided the gradients by the scale itself when it clipped them."""
    arrived = [use.arrived for use in summary.uses if use.number in clip.scaled]
    return bool(arrived) and clip.norm * math.sqrt(scale) < math.hypot(*arrived)


def check_stress(
    plain: Update, poisoned: Update, clean: Update, training: Training, usual_moves: int
) -> Iterator[Finding]:
    """Judge an update whose gradients were given an inf, by the one before it and the one after it.

    usual_moves: of schedulers, in an update that is not skipped; a schedule that moves once an epoch has none
    """
    for number in range(len(training.optimizers)):
        yield from check_skipping(poisoned, clean, plain, number)
        if len(poisoned.backwards) == len(plain.backwards):  # else the script skipped on its own
            yield from check_hidden([poisoned], number)
    moves = len(poisoned.called("scheduler"))
    if usual_moves and moves and poisoned.called("scaler.step") and not poisoned.steps():
        yield finding("scheduler-ran-on", moves_in_a_skipped_update=moves)
