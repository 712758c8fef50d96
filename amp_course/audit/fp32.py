"""Compare the gradient of a step with that of the fp32 loss, micro-batch by micro-batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.audit.protocol import State
from amp_course.audit.reference import reference
from amp_course.audit.restoring import HOOKS
from amp_course.checking.limit import TimeUp, within
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import CLOSE, along, mixture, near
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.gradients import (
    Compared,
    arrived,
    as_masters,
    by_calls,
    check_reference,
    first_use,
    tolerance_for,
)
from amp_course.watching.calling import joined
from amp_course.watching.records import Intervention, Update
from amp_course.watching.uses import Used, steps_of

_SMALL = 2.0**-10  # what gradients are multiplied by to keep out of a clip's way
_IF_IT_ENDED_EARLY = (
    "A group that ended early would not be divided by its own number of micro-batches. The batches "
    "that you passed make whole groups, so it does not happen with them."
)


class Incomparable(Exception):
    """The gradient of a step cannot be compared with the loss's, for the reason given."""


class AgainstFp32:
    """The comparison of one audit; `least` is the tolerance that any step gets."""

    def __init__(self, state: State) -> None:
        self.run, self.protocol, self.ragged = state.run, state.protocol, state.ragged
        self.tolerance = state.tolerance
        self.least = max(tolerance_for(state.run.dtypes), 3 * state.noise)

    def judge(self, first: Update) -> None:
        """Judge accumulation and gradient of the first update, then a shorter last group."""
        protocol = self.protocol
        if self.run.training.loss is None:
            protocol.leave_out("gradient", "no fp32 `loss` was given to compare with")
        elif first.reference_error:
            protocol.leave_out("gradient", first.reference_error)
        exact = len(first.references) == first.calls > 0
        known = len(protocol.found)
        for number in self.run.optimizers:
            try:
                self._judge(first, number, exact)
            except Incomparable as reason:
                protocol.leave_out("gradient", str(reason))
        if self.run.accumulate > 1 and not self.ragged:
            protocol.leave_out("shorter last group", "the batches make whole groups")
        if self.run.accumulate > 1 and exact and len(protocol.found) == known:
            self._last_group()

    def _judge(self, first: Update, number: int, exact: bool) -> None:
        run, protocol, used = self.run, self.protocol, first_use(first, number)
        if used is None:
            return
        one = self._compared(first, used, number, exact)
        if not exact and len(one.parts) == 1:
            return
        found = list(check_reference(one, self._limit(one)))
        unclear = not run.sizes_are_clear and not one.counted
        if unclear:
            found = [f for f in found if f.name != "mean-of-means"]
        if any(f.name == "gradient-differs" for f in found):
            self._look_for_a_sound_reason(used, number, one)
        protocol.judge("gradient" if exact else "", found, number)
        if len(one.parts) > 1:
            protocol.judge("accumulation")
            unequal = "unequal micro-batches"
            if max(one.sizes) <= 1.05 * min(one.sizes):
                protocol.leave_out(unequal, "all batches of a group have the same size")
            elif unclear:
                protocol.leave_out(unequal, "the tensors of a batch have different lengths")
            elif exact:
                protocol.judge(unequal)

    def _limit(self, one: Compared) -> float:
        return self.tolerance or one.tolerance(self.least)

    def _compared(self, update: Update, used: Used, number: int, exact: bool) -> Compared:
        """Compare the gradient of a step with those of its micro-batches. Raises Incomparable."""
        run, call = self.run, used.step.call
        passed = {one.call for one in update.backwards}
        within_group = run.accumulate > 1 and (call + 1) % run.accumulate
        steps = [one for one in steps_of(update.events, number) if one.step.call == call]
        total, own = arrived(used, number), by_calls(used, number)
        if any(one.moved for one in (used.parts or update.backwards)):
            self._left_over(update, used, number, exact)
            why = (
                "some weights change between the beginning of the update and the `backward()` of "
                "this gradient"
            )
        elif within_group and run.window == 1 and update.calls == run.accumulate:
            why = (
                "the optimizer steps in the middle of a group: audit when the step's own counter "
                "is at a group's end"
            )
        elif exact and not passed.issuperset(range(call)):
            why = "the step trains on the batches of earlier calls"
        elif len(steps) > 1:
            why = "the optimizer steps several times in a call"
        elif total is None:
            return self._masters(update, used, number, exact)
        elif len(own) < len({one.call for one in used.parts}):
            why = "a gradient was used up during `backward()`"
        else:
            return self._of_calls(update, used, number, exact, own)
        raise Incomparable(why)

    def _of_calls(
        self, update: Update, used: Used, number: int, exact: bool, own: dict[int, Tensor]
    ) -> Compared:
        # Micro-batches whose gradients were cleared before the step count too: their weight ought
        # not to be 0.
        cleared = (one for one in used.cleared if number in one.arrived and one.call not in own)
        lost = {one.call: one.arrived[number].values for one in cleared}
        calls = [*sorted(lost), *sorted(own)] if exact or self.run.accumulate > 1 else sorted(own)
        gradient, sizes = self._unlimited(used, number), [self.run.size(call) for call in calls]
        if not exact:
            parts = [(lost | own)[call] / self._scale(used, number) for call in calls]
            return Compared(gradient, parts, sizes, False)
        parts = [self._wanted(update, number, call) for call in calls]
        counts = self._counts(number, calls, parts) if len(calls) > 1 else None
        lower = [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in self.run.dtypes]
        batches, rounded = [self.run.batch(call) for call in calls], None
        if lower:  # what rounding alone does
            rounded = self._of_loss(number, batches, lower[0], self.run.scale_of(number))
        return Compared(gradient, parts, counts or sizes, True, rounded or [], counts is not None)

    def _left_over(self, update: Update, used: Used, number: int, exact: bool) -> None:
        """Look whether a call's last pass brings the loss's gradient, and others change that."""
        call, last = used.step.call, used.parts[-1] if used.parts else None
        here = [one for one in used.parts if one.call == call]
        if not exact or last is None or len(here) < 2 or number not in last.arrived:
            return
        wanted, limit = self._wanted(update, number, call), self.tolerance or self.least
        values = last.arrived[number].values / self._scale(used, number)
        factor, distance = along(values, wanted)
        used_factor, used_distance = along(used.step.gradient.values, wanted)
        alone = distance <= limit and near(factor, 1.0, max(CLOSE, limit))
        if alone and used_distance > max(0.1, 3 * limit) and not near(used_factor, 0.0):
            cause = (
                "gradients that another backward pass of the same update left behind were not "
                "cleared before the last one, whose gradient alone is that of the `loss`: the step "
                "uses their sum"
            )
            found = finding("never-cleared", cause, relative_distance=used_distance)
            self.protocol.judge("", [found], number)

    def _scale(self, used: Used, number: int) -> float:
        return self.run.scale_of(number) if used.step.by_scaler else 1.0

    def _of_loss(self, number: int, batches: Sequence[Any], *way: Any) -> list[Tensor] | None:
        """Compute the loss's gradient at the weights of the update; None if that cannot be."""
        self.run.restart()
        training = self.run.training
        try:
            found = within(
                self.run.seconds, lambda: [reference(training, b, *way) for b in batches]
            )
            return [one[number].values for one in found]
        except (Exception, TimeUp):  # batches do not fit together, or a loss needs fp32
            return None

    def _counts(
        self, number: int, calls: Sequence[int], parts: Sequence[Tensor]
    ) -> list[float] | None:
        """Return what each micro-batch counts in the loss of all together; None for no mean."""
        try:
            found = self._of_loss(number, [joined([self.run.batch(call) for call in calls])])
        except Exception:  # they do not fit together
            return None
        if found is None:
            return None
        weights, distance = mixture(found[0], parts)
        is_mean = distance < 1e-3 and min(weights) > 0 and near(sum(weights), 1.0, 1e-3)
        return weights if is_mean else None

    def _wanted(self, update: Update, number: int, call: int) -> Tensor:
        """Return the loss's gradient for a call, 0 for what was frozen at its backward pass."""
        gradient = update.references[call][number]
        values = gradient.values.clone()
        for one in update.backwards:
            if one.call == call and number in one.arrived:
                for place, wanted in zip(gradient.layout.slices, one.wanted[number], strict=True):
                    if not wanted:
                        values[place] = 0
        return values

    def _masters(self, update: Update, used: Used, number: int, exact: bool) -> Compared:
        """Compare fp32 masters, to which the step copies gradients, with the model's own."""
        twins = self.run.training.twins(number) or [-1]
        if not exact or update.calls > 1 or max(twins) < 0 or len(update.backwards) > 1:
            raise Incomparable("the step sets gradients itself")
        values, wanted = used.step.gradient.values, as_masters(update.references[0], number, twins)
        factor, _ = along(values, wanted)
        # Cut by a clip, or by a mistake? Half of what is left is too short for that clip.
        if 0 < factor < 1 - CLOSE:
            small = first_use(self.run.repeat(Intervention(factor / 2)), number)
            values = values if small is None else small.step.gradient.values / (factor / 2)
        return Compared(values, [wanted], [1], True)

    def _unlimited(self, used: Used, number: int) -> Tensor:
        """Return the gradient at the step, without the cut of a clip if there is one."""
        values, total = used.step.gradient.values, arrived(used, number)
        if total is None or not total.norm:
            return values
        factor, distance = along(values, total.values)
        if distance < 1e-3 and near(factor * self._scale(used, number), 1.0, 1e-3):
            return values
        small = first_use(self.run.repeat(Intervention(_SMALL)), number)
        if small is not None and near(small.step.gradient.norm, used.step.gradient.norm, 0.05):
            raise Incomparable("the step brings its gradients to one length, whatever they are")
        return values if small is None else small.step.gradient.values / _SMALL

    def _look_for_a_sound_reason(self, used: Used, number: int, one: Compared) -> None:
        """Raise Incomparable if a gradient that is not the loss's has a sound reason."""
        differs = "the gradient is not that of the `loss`, and"
        total = arrived(used, number)
        if total is not None:
            alone = len(one.parts) == 1
            _, distance = (
                along(total.values, one.parts[0]) if alone else mixture(total.values, one.parts)
            )
            if distance <= self._limit(one):
                raise Incomparable(
                    "what `backward()` gives is that of the `loss`, and it is changed before the "
                    "optimizer steps"
                )
        if any(getattr(p, name, None) for p in self.run.training.parameters for name in HOOKS):
            raise Incomparable(f"{differs} hooks of yours may change gradients")
        self.run.restart()
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(20_230_411)
        self.run.snapshot.reseed(20_230_411)
        other = first_use(self.run.update(), number)
        if other is None or along(used.step.gradient.values, other.step.gradient.values)[1] > 1e-3:
            raise Incomparable(
                f"{differs} the step draws random numbers, which the `loss` may draw differently"
            )

    def _last_group(self) -> None:
        """Judge a group that is one micro-batch short, if the step is told of the last."""
        run, protocol = self.run, self.protocol
        if not run.training.hint_last:
            why = "the step has no argument `last`, so it cannot know that a group ends early"
            return protocol.leave_out("shorter last group", why)
        kept = run.groups, run.window
        run.groups, run.window = [run.groups[0][: run.accumulate - 1]], 1
        try:
            run.restart()
            update = run.update(look_closely=True)
            if update.error is not None:
                why = f"the step raised {type(update.error).__name__}: {update.error}"
                return protocol.leave_out("shorter last group", why)
            for number in run.optimizers:
                try:
                    found = list(self._check_short(update, number))
                    if self.ragged:
                        protocol.judge("shorter last group", found)
                    elif found:
                        protocol.judge("", [_IF_IT_ENDED_EARLY])
                except Incomparable as reason:
                    protocol.leave_out("shorter last group", str(reason))
        finally:
            run.groups, run.window = kept
        return None

    def _check_short(self, update: Update, number: int) -> Iterator[Finding]:
        used = first_use(update, number)
        if used is None:
            yield finding("last-group-mean", micro_batches=self.run.accumulate - 1, steps=0)
            return
        if not near(along(used.step.gradient.values, used.step.given.values)[0], 1.0):
            raise Incomparable("the optimizer itself divides or clips its gradients")
        one = self._compared(update, used, number, len(update.references) == update.calls)
        for found in check_reference(one, self._limit(one)) if one.exact else ():
            if "factor" in found.evidence:  # its length, not its direction
                factor = found.evidence["factor"]
                yield finding("last-group-mean", micro_batches=len(one.parts), factor=factor)
