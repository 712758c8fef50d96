"""Compare the gradient of a step with that of the fp32 loss, micro-batch by micro-batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from amp_course.audit.reference import reference
from amp_course.audit.restoring import HOOKS
from amp_course.audit.results import State
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
from amp_course.watching.calling import joined, size_of
from amp_course.watching.records import Intervention, Update
from amp_course.watching.uses import StepUse, steps_of

_SMALL = 2.0**-10  # what gradients are multiplied by so that no clip cuts them
_SEED = 20_230_411  # another one than the step's, whatever that is
_IF_IT_ENDED_EARLY = (
    "A group that ended early would not be divided by its own number of micro-batches. The batches "
    "that you passed make whole groups, so it does not happen with them."
)


class Incomparable(Exception):
    """The gradient of a step cannot be compared with the loss's; the message says why."""


class AgainstFp32:
    """The comparison of one audit; `least` is the tolerance that any step gets."""

    def __init__(self, state: State) -> None:
        self.run, self.results, self.ragged = state.run, state.results, state.ragged
        self.first, self.tolerance = state.first, state.tolerance
        self.least = max(tolerance_for(state.run.dtypes), 3 * state.noise)

    def judge(self) -> None:
        """Judge accumulation and gradient of the first update, then a shorter last group."""
        results, first = self.results, self.first
        if self.run.training.loss is None:
            results.leave_out("gradient", "no fp32 `loss` was given to compare with")
        elif first.reference_error:
            results.leave_out("gradient", first.reference_error)
        known = len(results.found)
        for number in self.run.optimizers:
            try:
                self._judge(number)
            except Incomparable as reason:
                results.leave_out("gradient", str(reason))
        if self.run.accumulate > 1 and not self.ragged:
            results.leave_out("shorter last group", "the batches make whole groups")
        if self.run.accumulate > 1 and _is_exact(first) and len(results.found) == known:
            self._last_group()

    def _judge(self, number: int) -> None:
        run, results, used = self.run, self.results, first_use(self.first, number)
        if used is None:
            return
        compared, exact = self._compared(self.first, used), _is_exact(self.first)
        if not exact and len(compared.parts) == 1:
            return
        found = list(check_reference(compared, self._limit(compared)))
        unclear = not run.sizes_are_clear and not compared.counted
        if unclear:
            found = [f for f in found if f.name != "mean-of-means"]
        if found and exact and len(compared.parts) == 1 and self._left_over(self.first, used, True):
            found = []
        if any(f.name == "gradient-differs" for f in found):
            self._look_for_a_sound_reason(used, compared)
        results.add(found, number, judged="gradient" if exact else "")
        if len(compared.parts) > 1:
            results.add(judged="accumulation")
            unequal = "unequal micro-batches"
            if max(compared.sizes) <= 1.05 * min(compared.sizes):
                results.leave_out(unequal, "all batches of a group have the same size")
            elif unclear:
                results.leave_out(unequal, "the tensors of a batch have different lengths")
            elif exact:
                results.add(judged=unequal)

    def _limit(self, compared: Compared) -> float:
        return self.tolerance or compared.tolerance(self.least)

    def _compared(self, update: Update, used: StepUse) -> Compared:
        """Compare the gradient of a step with those of its micro-batches. Raises Incomparable."""
        run, call, number = self.run, used.step.call, used.step.number
        with_backward = {one.call for one in update.backwards}
        within_group = run.accumulate > 1 and (call + 1) % run.accumulate
        steps = [one for one in steps_of(update.events, number) if one.step.call == call]
        total, own = arrived(used, number), by_calls(used, number)
        if any(one.moved for one in (used.parts or update.backwards)):
            self._left_over(update, used)
            why = (
                "some weights change between the beginning of the update and the `backward()` of "
                "this gradient"
            )
        elif within_group and run.window == 1 and update.calls == run.accumulate:
            why = (
                "the optimizer steps in the middle of a group: audit when the step's own counter "
                "is at a group's end"
            )
        elif _is_exact(update) and not with_backward.issuperset(range(call)):
            why = "the step trains on the batches of earlier calls"
        elif len(steps) > 1:
            why = "the optimizer steps several times in a call"
        elif total is None:
            return self._masters(update, used)
        elif len(own) < len({one.call for one in used.parts}):
            why = "a gradient was used up during `backward()`"
        else:
            return self._of_calls(update, used, own)
        raise Incomparable(why)

    def _of_calls(self, update: Update, used: StepUse, own: dict[int, Tensor]) -> Compared:
        run, number, exact = self.run, used.step.number, _is_exact(update)
        # A micro-batch whose gradients were cleared before the step counts too: its weight of 0 is
        # the fault.
        cleared = (one for one in used.cleared if number in one.arrived and one.call not in own)
        lost = {one.call: one.arrived[number].values for one in cleared}
        calls = [*sorted(lost), *sorted(own)] if exact or run.accumulate > 1 else sorted(own)
        batches, gradient = [run.batch(call) for call in calls], self._unlimited(used)
        sizes = list(map(size_of, batches))
        if not exact:
            parts = [(lost | own)[call] / self._scale(used) for call in calls]
            return Compared(gradient, parts, sizes, False)
        parts = [self._wanted(update, number, call) for call in calls]
        groups = run.training.optimizers[number].param_groups
        upwards = all(group.get("maximize") for group in groups)
        if upwards and along(gradient, torch.stack(parts).sum(0))[0] < 0:
            gradient = -gradient  # an optimizer that climbs, and a loss that is to fall
        counts = self._counts(number, batches, parts) if len(calls) > 1 else None
        lower = [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in run.dtypes]
        rounded = None
        if lower:  # what rounding alone does
            rounded = self._of_loss(number, batches, lower[0], run.scale_of(number))
        return Compared(gradient, parts, counts or sizes, True, rounded or [], counts is not None)

    def _left_over(self, update: Update, used: StepUse, differs: bool = False) -> bool:
        """Report gradients of earlier passes, if that of the last pass alone is the loss's.

        differs: the one that is used is known not to be the loss's
        """
        call, number = used.step.call, used.step.number
        here = [one for one in used.parts if one.call == call]
        if not _is_exact(update) or len(here) < 2 or number not in used.parts[-1].arrived:
            return False
        wanted, limit = self._wanted(update, number, call), self.tolerance or self.least
        values = used.parts[-1].arrived[number].values / self._scale(used)
        factor, distance = along(values, wanted)
        used_factor, used_distance = along(used.step.gradient.values, wanted)
        alone = distance <= limit and near(factor, 1.0, max(CLOSE, limit))
        far = used_distance > max(0.1, 3 * limit) and not near(used_factor, 0.0)
        others = used_distance > 1e-3  # a pass that ran twice leaves a multiple
        if alone and (far or (differs and others)):
            cause = (
                "gradients that another backward pass of the same update left behind were not "
                "cleared before the last one, whose gradient alone is that of the `loss`: the step "
                "uses their sum"
            )
            found = finding("never-cleared", cause, relative_distance=used_distance)
            self.results.add([found], number)
            return True
        return False

    def _scale(self, used: StepUse) -> float:
        return self.run.scale_of(used.step.number) if used.step.by_scaler else 1.0

    def _of_loss(self, number: int, batches: Sequence[Any], *way: Any) -> list[Tensor] | None:
        """Return the loss's gradients at the weights of the update; None if it raises there."""
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
        self, number: int, batches: Sequence[Any], parts: Sequence[Tensor]
    ) -> list[float] | None:
        """Return each micro-batch's weight in the loss of all; None if that is no mean."""
        try:
            found = self._of_loss(number, [joined(batches)])
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

    def _masters(self, update: Update, used: StepUse) -> Compared:
        """Compare the gradients that a step copies to fp32 masters with those of the loss."""
        number, passes = used.step.number, max(update.calls, len(update.backwards))
        originals = self.run.training.originals(number) or [-1]
        if not _is_exact(update) or passes > 1 or max(originals) < 0:
            raise Incomparable("the step sets gradients itself")
        values = used.step.gradient.values
        wanted = as_masters(update.references[0], number, originals)
        factor, _ = along(values, wanted)
        # Cut by a clip, or by a mistake? A clip does not touch half of what it lets through.
        if 0 < factor < 1 - CLOSE:
            small = first_use(self.run.repeat(Intervention(factor / 2)), number)
            values = values if small is None else small.step.gradient.values / (factor / 2)
        return Compared(values, [wanted], [1], True)

    def _unlimited(self, used: StepUse) -> Tensor:
        """Return the gradient at the step as it would be without a clip."""
        number = used.step.number
        values, total = used.step.gradient.values, arrived(used, number)
        if total is None or not total.norm:
            return values
        factor, distance = along(values, total.values)
        if distance < 1e-3 and near(factor * self._scale(used), 1.0, 1e-3):
            return values
        small = first_use(self.run.repeat(Intervention(_SMALL)), number)
        if small is not None and near(small.step.gradient.norm, used.step.gradient.norm, 0.05):
            raise Incomparable("the step brings its gradients to one length, whatever they are")
        return values if small is None else small.step.gradient.values / _SMALL

    def _look_for_a_sound_reason(self, used: StepUse, compared: Compared) -> None:
        """Raise Incomparable if there is a sound reason for a gradient that is not the loss's."""
        differs, number = "the gradient is not that of the `loss`, and", used.step.number
        total = arrived(used, number)
        if total is not None:
            parts = compared.parts
            alone = len(parts) == 1
            _, distance = along(total.values, parts[0]) if alone else mixture(total.values, parts)
            if distance <= self._limit(compared):
                raise Incomparable(
                    "what `backward()` gives is that of the `loss`, and it is changed before the "
                    "optimizer steps"
                )
        if any(getattr(p, name, None) for p in self.run.training.parameters for name in HOOKS):
            raise Incomparable(f"{differs} hooks of yours may change gradients")
        self.run.restart()
        self.run.snapshot.reseed(_SEED)
        with ExitStack() as stack:  # a step may seed the generators itself
            for module, name in ((torch, "manual_seed"), (random, "seed"), (np.random, "seed")):
                stack.enter_context(mock.patch.object(module, name))
            other = first_use(self.run.update(), number)
        if other is None or along(used.step.gradient.values, other.step.gradient.values)[1] > 1e-3:
            raise Incomparable(
                f"{differs} the step draws random numbers, which the `loss` may draw differently"
            )

    def _last_group(self) -> None:
        """Judge a group that is one micro-batch short, if the step takes an argument `last`."""
        run, results = self.run, self.results
        if not run.training.hint_last:
            why = "the step takes no `last=`, which would tell it that a group ends early"
            return results.leave_out("shorter last group", why)
        before = run.groups, run.window
        run.groups, run.window = [run.groups[0][: run.accumulate - 1]], 1
        try:
            run.restart()
            update = run.update(look_closely=True)
            if update.error is not None:
                why = f"the step raised {type(update.error).__name__}: {update.error}"
                return results.leave_out("shorter last group", why)
            for number in run.optimizers:
                try:
                    found = list(self._check_short(update, number))
                    if self.ragged:
                        results.add(found, judged="shorter last group")
                    elif found:
                        results.observe(_IF_IT_ENDED_EARLY)
                except Incomparable as reason:
                    results.leave_out("shorter last group", str(reason))
        finally:
            run.groups, run.window = before
        return None

    def _check_short(self, update: Update, number: int) -> Iterator[Finding]:
        used = first_use(update, number)
        if used is None:
            yield finding("last-group-mean", micro_batches=self.run.accumulate - 1, steps=0)
            return
        if not near(along(used.step.gradient.values, used.step.at_call.values)[0], 1.0):
            raise Incomparable("the optimizer itself divides or clips its gradients")
        compared = self._compared(update, used)
        for found in check_reference(compared, self._limit(compared)) if compared.exact else ():
            if "factor" in found.evidence:  # its length, not its direction
                factor = found.evidence["factor"]
                yield finding("last-group-mean", micro_batches=len(compared.parts), factor=factor)


def _is_exact(update: Update) -> bool:
    """Return True if the loss's gradient is known for each call of an update."""
    return len(update.references) == update.calls > 0
