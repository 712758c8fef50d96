"""Judge what becomes of the gradients of single backward passes: added up, cleared, clipped."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import near
from amp_course.diagnosis.findings import Findings
from amp_course.watching.records import Backward, Step, Training, Update
from amp_course.watching.script import Clip
from amp_course.watching.uses import steps_of

_OFTEN = 0.9  # of the updates: what SAM clears, it clears in each


class MicroBatches:
    """Those of a training with one optimizer.

    groups: of each update: backward passes, and how many of them no step used
    shares: by which the losses were multiplied, without the scale
    """

    def __init__(self) -> None:
        self.groups: list[tuple[int, int]] = []
        self.shares: list[float] = []

    def look_at(self, update: Update) -> None:
        """Count what an update adds up."""
        cleared = [one for used in steps_of(update.events, 0) for one in used.cleared]
        unused = sum(0 in one.arrived and one.arrived[0].finite for one in cleared)
        self.groups.append((len(update.backwards), unused))
        self.shares += [one.graph.factor / _scale_of(one) for one in update.backwards]

    def findings(self) -> Findings:
        """Judge all updates together."""
        used = [passes for passes, unused in self.groups if not unused]
        dropped = [unused for _, unused in self.groups if unused]
        usual = statistics.median(used or [0])
        if 2 <= len(dropped) < _OFTEN * len(self.groups) and usual > max(dropped):
            yield finding(
                "micro-batches-dropped",
                updates=f"{len(dropped)} of {len(self.groups)}",
                micro_batches_in_each=f"{max(dropped)}, and {usual:g} in those that were used",
            )
        # Updates with more or fewer micro-batches than the number by which each loss is divided:
        counts = Counter(used)
        usual = max(counts, key=lambda one: counts[one], default=1)
        divided = all(near(one * usual, 1.0) for one in self.shares)
        if usual > 1 and divided and 1 < len(counts) < len(self.groups):
            cause = (
                "some updates add up more or fewer micro-batches than the others, and each loss is "
                "divided by the same number: their gradients are too large or too small by as much"
            )
            others = ", ".join(str(one) for one in sorted(counts) if one != usual)
            yield finding(
                "last-group-mean",
                cause,
                micro_batches_in_most_updates=usual,
                in_others=others,
                each_loss_is_divided_by=usual,
            )


def _scale_of(one: Backward) -> float:
    return getattr(one, "scale", None) or 1.0


def check_thrown_away(update: Update) -> Findings:
    """Look for an update that uses its last backward pass alone: gradients are cleared before each.

    The weights have not moved in between, as SAM's have, and the step's gradient is what the last
    pass brought, or its mean over all: methods that combine gradients by hand use another.
    """
    for used in steps_of(update.events, 0)[:1]:
        parts = [one for one in used.cleared if 0 in one.arrived] + used.parts
        if not used.cleared or len(used.parts) != 1 or len(parts) < 2 or used.step.closure:
            return
        last = used.parts[0].arrived.get(0)
        several = len({str(one.line) for one in parts}) > 1
        if last is None or several or any(one.moved for one in parts):
            return
        clipped = any(clip.norm > clip.limit for clip in update.of(Clip))
        norm = used.step.gradient.norm * _scale_of(used.parts[0])
        # Some divide the gradients, and not the losses, by the number of micro-batches.
        divided = near(norm * len(parts), last.norm) and all(one.arrived[0].norm for one in parts)
        if clipped or divided or near(norm, last.norm):
            weights = ", ".join(["0"] * (len(parts) - 1) + ["1"])
            yield finding(
                "cleared-every-micro-batch",
                micro_batches=len(parts),
                their_weights_in_the_gradient=weights,
                place=str(parts[-1].line),
            )


def check_clipped_early(update: Update) -> Findings:
    """Look for a clip that cuts some micro-batches' gradients before the next one's are added."""
    passes = 0
    for place, event in enumerate(update.events):
        passes += isinstance(event, Backward)
        if not passes or not isinstance(event, Clip) or event.scaled:
            continue
        rest = (one for one in update.events[place:] if isinstance(one, (Backward, Step)))
        following = next(rest, None)
        if event.limit < event.norm < math.inf and isinstance(following, Backward):
            held = [following.before[number] for number in event.numbers]
            if kept := [one.norm for one in held if not one.empty]:
                yield finding(
                    "clipped-every-micro-batch",
                    norm_that_arrived=event.norm,
                    norm_between_micro_batches=kept[0],
                    place=str(event.line or ""),
                )
                return


def check_mixed_passes(updates: Sequence[Update], training: Training) -> Findings:
    """Look for gradients of a pass for another optimizer's step, added to those of the next pass.

    One who steps less often than the other is let off: it may gather gradients on purpose.
    """
    events = [event for update in updates for event in update.events]
    steps = Counter(one.number for update in updates for one in update.steps())
    for number in range(len(training.optimizers)):
        for used in steps_of(events, number):
            for part, following in itertools.pairwise(used.parts):
                between = events[events.index(part) : events.index(following)]
                others = {one.number for one in between if isinstance(one, Step)} - {number, -1}
                left = following.before[number].norm
                if left and any(steps[number] >= steps[other] for other in others):
                    cause = (
                        "gradients from an earlier backward pass, before another optimizer's step, "
                        "were not cleared, so the next pass adds to them"
                    )
                    yield finding("never-cleared", cause, norm_of_gradients_left_over=left)
                    return
