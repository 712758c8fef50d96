"""Judge what happens to the gradients of single backward passes: added up, cleared, clipped."""

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

_OFTEN = 0.9  # of the updates; SAM clears in each of them


class MicroBatches:
    """The micro-batches of a training with one optimizer.

    groups: for each update: backward passes, and how many of them no step used
    shares: the factors of the losses, without the scale
    """

    def __init__(self) -> None:
        self.groups: list[tuple[int, int]] = []
        self.shares: list[float] = []

    def count(self, update: Update) -> None:
        """Count the micro-batches of an update."""
        cleared = [one for used in steps_of(update.events, 0) for one in used.cleared]
        unused = sum(0 in one.arrived and one.arrived[0].finite for one in cleared)
        self.groups.append((len(update.backwards), unused))
        self.shares += [one.graph.factor / (one.scale or 1.0) for one in update.backwards]

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
        # Do some updates have more or fewer micro-batches than each loss is divided by?
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


def check_cleared_passes(update: Update) -> Findings:
    """Look for an update that uses only its last backward pass: gradients are cleared before each.

    SAM is let off, as it moves the weights in between, and so are methods that combine gradients by
    hand: the step's gradient has to be that of the last pass, or that divided by their number.
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
        norm = used.step.gradient.norm * (used.parts[0].scale or 1.0)
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
    """Look for a clip between two micro-batches, which cuts the gradients of the first."""
    passes = 0
    for place, event in enumerate(update.events):
        passes += isinstance(event, Backward)
        if not passes or not isinstance(event, Clip) or event.scaled:
            continue
        rest = (one for one in update.events[place:] if isinstance(one, (Backward, Step)))
        following = next(rest, None)
        if event.limit < event.norm < math.inf and isinstance(following, Backward):
            left = [following.before[number] for number in event.numbers]
            if norms := [one.norm for one in left if not one.empty]:
                yield finding(
                    "clipped-every-micro-batch",
                    norm_that_arrived=event.norm,
                    norm_between_micro_batches=norms[0],
                    place=str(event.line or ""),
                )
                return


def check_mixed_passes(updates: Sequence[Update], training: Training) -> Findings:
    """Look for gradients of a pass meant for another optimizer, which the next pass adds to.

    An optimizer that steps less often than the other may accumulate gradients on purpose.
    """
    events = [event for update in updates for event in update.events]
    steps = Counter(one.number for update in updates for one in update.steps())
    for number in training.numbers:
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
