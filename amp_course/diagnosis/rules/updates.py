"""Judge a script's updates one by one, each together with the one before."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import near
from amp_course.diagnosis.findings import Evidence, Finding, Findings
from amp_course.diagnosis.rules import calls, micro_batches
from amp_course.diagnosis.rules.stress import HIDDEN
from amp_course.watching.records import Backward, Call, Training, Update
from amp_course.watching.script import StepNorms, Summary
from amp_course.watching.uses import StepUse, steps_of

# One update proves none of these: a schedule may move once an epoch, a part may be frozen for long.
_NOT_OF_SCRIPTS = {"scheduler-never-moved", "frozen-optimizer", "no-backward"}
_ONCE = {"no-update-after-skip"}  # once is enough, for it needs an overflow
_STATIC = 8.0  # a larger factor of the loss is a loss scale of the script's own
_SOME = 5  # updates in which nothing at all is trained
_NEVER = 20  # steps without a gradient; with fewer, a part may be frozen for a while
_SINGLE_CLASS = (
    "every gradient is exactly 0, so no weight moves: the softmax of a single output is always 1, "
    "and the cross-entropy of it always 0. For one output take `binary_cross_entropy_with_logits`, "
    "or `mse_loss` for a number"
)


class PairRules:
    """Judges each update, and counts how often each finding comes up."""

    def __init__(self) -> None:
        self.updates = self.with_steps = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, Finding] = {}
        self.micro_batches = micro_batches.MicroBatches()
        self.trained: set[int] = set()  # ids of optimizers whose weights got a gradient
        self.reached = False  # a backward pass reached the weights of an optimizer
        self.bare: Counter[int] = Counter()  # id of another optimizer → its steps
        self.frozen: dict[int, Finding] = {}
        self.zero = self.moving = 0  # steps with gradients that are all 0, and with others
        self.single_class = False
        self.hidden = 0  # steps with finite gradients, although what arrived was not
        self.ratios: list[float] = []  # of probabilities: how far from 1

    def judge(self, updates: Sequence[Update], training: Training, summary: Summary) -> None:
        """Judge the last of a script's updates, together with the one before."""
        last = updates[-1]
        self.updates += 1
        self.with_steps += bool(last.steps())
        found = [*calls.check_passes(last, training)]
        if len(updates) > 1:
            accumulate = max(last.calls, 1) if len(training.optimizers) == 1 else 1
            found += calls.check_precision(updates[0], last, training)
            found += calls.check_steps(updates, training, 1)
            found += calls.check_clearing(updates, training)
            found += micro_batches.check_mixed_passes(updates, training)
            found += calls.check_updates(updates, training, accumulate)
            found += _schedule(updates, training)
        for number in training.numbers:
            self._count_gradients(last, training, number)
            self.hidden += sum(map(_is_hidden, steps_of(last.events, number)))
            found += _skipped(updates, number)
        for one in last.backwards:
            self.ratios += [one.graph.ratio] * (not math.isnan(one.graph.ratio))
            self.single_class |= one.graph.single_class
        twice = [one.line for one in last.backwards if one.graph.softmax_twice]
        if twice:
            found.append(finding("softmax-twice", place=str(twice[0] or "")))
        if len(training.optimizers) == 1:
            self.micro_batches.count(last)
            found += micro_batches.check_cleared_passes(last)
        found += micro_batches.check_clipped_early(last)
        scaled = any(one.graph.factor > _STATIC for one in last.backwards)
        own = scaled or any(_shrunk(use, summary) for use in summary.uses)
        if summary.uses and calls.in_fp16_unscaled(last, training) and not own:
            found.append(finding("fp16-without-scaler"))
        self._count(found)

    def _count(self, found: Iterable[Finding]) -> None:
        for one in {one.name: one for one in found if one.name not in _NOT_OF_SCRIPTS}.values():
            self.counts[one.name] += 1
            self.first.setdefault(one.name, one)

    def _count_gradients(self, last: Update, training: Training, number: int) -> None:
        """Count an optimizer's steps with gradients of 0, and those without any."""
        steps, optimizer = last.steps(number), training.optimizers[number]
        for one in steps:
            self.moving += not one.gradient.empty
            self.zero += one.gradient.empty and any(one.gradient.present)
        key = id(optimizer)
        self.reached |= bool(last.arrivals(number))
        if last.arrivals(number) or any(any(one.gradient.present) for one in steps):
            self.trained.add(key)
        else:
            self.bare[key] += len(steps)
            kind = f"{type(optimizer).__name__}, number {number + 1} of {len(training.optimizers)}"
            evidence: Evidence = {"optimizer": kind, "steps": self.bare[key]}
            found = calls.frozen_optimizer(training, number)
            self.frozen[key] = replace(found, evidence=evidence)

    def judge_rest(self, update: Update, training: Training) -> None:
        """Judge an update that was not completed."""
        for number in training.numbers:
            self._count(_forgotten(update, number))

    def findings(self) -> Findings:
        """Yield what was found in most updates; a single one may be meant, between two phases."""
        # The first update has none before it, and a skipped one shows less than others.
        judged = max(min(self.updates, self.with_steps or self.updates) - 1, 1)
        for name, one in self.first.items():
            count = self.counts[name]
            if 2 * count >= judged or name in _ONCE:
                seen = f"{count} of {max(self.updates - 1, count)} updates"
                yield replace(one, evidence={**one.evidence, "seen in": seen})
        yield from self.micro_batches.findings()
        if self.hidden:
            yield finding(
                "overflow-not-skipped", HIDDEN, steps_with_an_inf=self.hidden, variant="hidden"
            )
        # One of several optimizers may wait for its phase.
        fewest = _NEVER if self.trained else _SOME
        for key, one in self.frozen.items():
            if key not in self.trained and self.bare[key] >= fewest:
                yield one
        if self.zero and not self.moving and self.updates >= _SOME:
            yield finding(
                "gradients-all-zero", _SINGLE_CLASS if self.single_class else "", steps=self.zero
            )


def _schedule(updates: Sequence[Update], training: Training) -> Findings:
    """Judge the schedules; a schedule may be counted in micro-batches on purpose."""
    passes = sum(len(update.backwards) for update in updates)
    for one in calls.check_schedule(updates, training, 1):
        moves = one.evidence.get("moves", 0)
        if one.name == "scheduler-moved-twice" and isinstance(moves, int) and moves <= passes:
            cause = (
                "the scheduler moves with each backward pass, not with each step of its optimizer: "
                "the schedule ends too early, unless its length is counted in micro-batches"
            )
            yield finding("scheduler-every-micro-batch", cause, **one.evidence)
        else:
            yield one


def _skipped(updates: Sequence[Update], number: int) -> Findings:
    """Judge what happens to gradients with inf or NaN in the last update."""
    before, last = updates[0], updates[-1]
    yield from _forgotten(last, number)
    waits = before is not last and before.called("scaler.step", number) and not before.steps(number)
    # In a GAN, one network's gradients may be cleared after the backward pass of the other. What
    # arrives on top of an inf is not known.
    finite = [one.before[number].finite for one in last.backwards if number in one.arrived]
    kept = [one for one in last.backwards if not one.before[number].finite]
    if waits and kept and not any(finite) and last.called("scaler.step", number):
        yield finding("kept-after-skip", steps_after_the_skip=len(last.steps(number)))
    taken = [one for one in last.steps(number) if not one.gradient.finite]
    if taken and last.called("scale") and last.corrupted[number]:
        scale, place = max(last.scales, default=1.0), str(taken[0].line or "")
        yield finding("overflow-not-skipped", loss_scale=scale, place=place)


def _forgotten(update: Update, number: int) -> Findings:
    """Look for gradients with inf or NaN that were cleared without telling the scaler."""
    events = [one for one in update.events if isinstance(one, (Backward, Call))]
    for place, (event, after) in enumerate(itertools.pairwise(events)):
        arrived = event.arrived.get(number) if isinstance(event, Backward) else None
        scales = isinstance(after, Call) and after.name == "scale"
        if arrived is None or arrived.finite or not scales:
            continue
        following = next((one for one in events[place + 1 :] if isinstance(one, Backward)), None)
        if following is not None and following.before[number].empty:
            yield finding("no-update-after-skip", loss_scale=max(update.scales, default=1.0))
            return


def _is_hidden(used: StepUse) -> bool:
    """Return True if inf or NaN arrived, and the scaler took a step with finite gradients."""
    step = used.step
    arrived = (one.arrived[step.number] for one in used.parts if one.complete)
    return step.by_scaler and step.gradient.finite and any(not one.finite for one in arrived)


def _shrunk(use: StepNorms, summary: Summary) -> bool:
    """Return True if gradients were divided, by a scale of the script's own, not clipped."""
    clipped = any(use.number in clip.numbers and clip.norm > clip.limit for clip in summary.clips)
    return not clipped and not near(use.norm, use.arrived)
