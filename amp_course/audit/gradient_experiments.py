"""Experiments on what the optimizers get: the same update twice, at two loss scales, with large gradients, without a scaler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from amp_course.audit.fp32 import AgainstFp32
from amp_course.audit.protocol import Over, Protocol
from amp_course.audit.runner import Runner
from amp_course.diagnosis.compare import along, near
from amp_course.diagnosis.findings import Finding, finding
from amp_course.diagnosis.rules.calls import in_fp16_unscaled
from amp_course.diagnosis.rules.exceptions import described
from amp_course.diagnosis.rules.gradients import (
    Pair,
    arrived,
    arrived_for_masters,
    by_calls,
    carries_scale,
    check_scale,
    divided_twice,
    first_use,
    tolerance_for,
)
from amp_course.diagnosis.rules.stress import check_clipping, check_early_clipping
from amp_course.watching.records import Meddling, Update

_RATIO = 4.0  # between two loss scales: few more gradients underflow at the lower one
_FAR = 1000.0  # how far above max_norm gradients are brought to see clipping
_TALL = 1e4  # the norm that gradients are brought to where max_norm is not known
_TINY = 1e-4  # the norm, loss scale included, of gradients that no clip touches
_GRADIENT = ("loss scale", "clipping", "gradient")


@dataclass
class GradientExperiments:
    """What is learnt from the gradients at the steps.

    max_norm, tolerance: as `audit` was given them
    ragged:              the reader's batches end in a shorter group
    """

    run: Runner
    protocol: Protocol
    max_norm: float | None
    tolerance: float | None
    ragged: bool
    scaled_by_hand: bool = False
    unscaled: set[int] = field(
        default_factory=set
    )  # optimizers whose losses are not scaled: nothing of theirs is skipped
    steady: bool = False  # two runs of the same update give the same gradients

    def everything(self, first: Update) -> None:
        """Judge what the optimizers see: the same twice, at two loss scales, clipped or not, against fp32."""
        least = tolerance_for(self.run.dtypes)
        again = self.run.repeat()
        if again.error is not None:
            raise Over(f"the step ran once, and run again from the same state it raised {described(again.error)}")
        noise = self._noise(first, again)
        drawn = sorted(self.run.snapshot.iterators - {"batches"})
        self.steady = noise < 0.1 and not drawn
        known = len(self.protocol.found)
        if self.steady:
            large, factor = self._large(first)
            self._two_scales(first, large, factor, max(least, 1e-3, 3 * noise))
            self._clipping(first, large, factor, scale_is_right=len(self.protocol.found) == known)
        else:
            why = f"two runs of the step on the same batch gave different gradients (relative distance {noise:.2g})"
            if drawn:
                why = f"the step draws from an iterator that cannot be put back (`{drawn[0]}`), so no two runs of it are the same"
            for behaviour in _GRADIENT:
                self.protocol.leave_out(behaviour, why)
        self._without_scaler(first)
        if self.steady and len(self.protocol.found) == known:
            AgainstFp32(self.run, self.protocol, self.tolerance, max(least, 3 * noise), ragged=self.ragged).judge(first)

    def _noise(self, first: Update, again: Update) -> float:
        """Return how far two runs of the same update are from each other, at most."""
        worst = 0.0
        for number in self.run.optimizers:
            one, other = first_use(first, number), first_use(again, number)
            if one is None or other is None:
                worst = max(worst, 0.0 if one is other else math.inf)
                continue
            factor, distance = along(one.step.gradient.values, other.step.gradient.values)
            worst = max(worst, distance, abs(factor - 1))
        return worst

    def _large(self, first: Update) -> tuple[Update | None, float]:
        """Run the update with gradients far above any limit, if the scale or a norm is to be judged; return their factor too."""
        if not self.run.training.scalers and self.max_norm is None:
            return None, 1.0
        norms, largest = [], 0.0
        for number in self.run.optimizers:
            used, values = first_use(first, number), self._arrivals(first, number)
            if used is None or values is None or not bool(values.any()):
                continue
            total = arrived(used, number)
            norms.append(used.step.gradient.norm if total is None else total.norm / self.run.scale_of(number))
            largest = max(largest, float(values.abs().max()))
        if not norms:
            return None, 1.0
        factor = max(_FAR * self.max_norm if self.max_norm else _TALL, _FAR * max(norms)) / min(norms)
        if any(p.dtype == torch.float16 for slot in self.run.training.slots for p in slot.parameters):
            factor = min(factor, 2.0**14 / largest)
        if factor < (4 if self.max_norm else 30):
            return None, 1.0
        large = self.run.repeat(Meddling(factor))
        return (large if large.error is None else None), factor

    def _two_scales(self, first: Update, large: Update | None, factor: float, tolerance: float) -> None:
        run, protocol = self.run, self.protocol
        if not run.training.scalers:
            return protocol.leave_out("loss scale", "there is no scaler")
        if not first.called("scale") and not first.called("scaler.step"):
            return protocol.leave_out("loss scale", "the scaler that was passed is never used")
        # Each scaler has a ratio of its own: a loss that another one scales is seen by it.
        ratios = [_RATIO * 2**n for n in range(len(run.scales))]
        each = list(zip(run.scales, ratios, strict=True))
        other = [scale / ratio if scale >= 16 else scale * ratio for scale, ratio in each]
        low = run.repeat(scales=other)
        if low.error is None and not low.finite and other[0] > run.scales[0]:
            other = [scale / ratio for scale, ratio in each]
            low = run.repeat(scales=other)
        if low.error is not None or not low.finite:
            return protocol.leave_out("loss scale", "the step did not run at another loss scale")
        pair_large = None
        if large is not None:
            large_low = run.repeat(Meddling(factor), other)
            pair_large = (large, large_low) if large_low.error is None else None
        protocol.judge("loss scale")
        for number in run.optimizers:
            owner = run.owners.get(number, 0)
            pair = Pair(first, low, (run.scales[owner], other[owner]), tolerance, pair_large)
            protocol.judge("", self._confirmed(check_scale(pair, number), pair, number, other), run.which(number))
            if not carries_scale(pair, number):
                self.unscaled.add(number)
        return None

    def _confirmed(self, found: Iterable[Finding], pair: Pair, number: int, other: Sequence[float]) -> list[Finding]:
        """Run the two scales again with gradients that no clip touches: is it the clip, or are they divided twice?"""
        named = list(found)
        used = first_use(pair.high, number)
        total = None if used is None else arrived(used, number)
        if total is None or not total.norm or not any(one.name == "clipped-while-scaled" for one in named):
            return named
        meddling = Meddling(_TINY / total.norm)
        tiny = Pair(self.run.repeat(meddling), self.run.repeat(meddling, other), pair.scales, 1.0)
        if not divided_twice(tiny, number):
            return named
        cause = "the gradients are divided by the loss scale twice: by hand, and by the scaler"
        return [replace(finding("unscaled-twice", cause), evidence=named[0].evidence)]

    def _clipping(self, first: Update, large: Update | None, factor: float, *, scale_is_right: bool) -> None:
        if large is None:
            if self.max_norm is not None:
                self.protocol.leave_out("clipping", "gradients could not be brought far above max_norm")
            return
        training = self.run.training
        if self.max_norm is not None:
            found = list(check_clipping(first, large, factor, self.max_norm, training)) if scale_is_right else []
            wrong = any(isinstance(one, Finding) and one.name == "clipped-wrong" for one in found)
            early = self._clipped_while_scaled_by_hand(large) if wrong else None
            self.protocol.judge("clipping", found if early is None else [early])
        for number in self.run.optimizers:
            self.protocol.judge("", check_early_clipping(first, large, factor, number), self.run.which(number))

    def _clipped_while_scaled_by_hand(self, large: Update) -> Finding | None:
        """Learn from short gradients, which no clip touches, what a step divides by: is the norm before that max_norm?"""
        assert self.max_norm is not None
        for number in self.run.optimizers if not self.run.training.scalers else ():
            cut, total = first_use(large, number), self._arrivals(large, number)
            if cut is None or total is None:
                continue
            length = 0.5 * self.max_norm
            whole = first_use(self.run.repeat(Meddling(length / float(total.norm()))), number)
            if whole is None:
                continue
            scale = length / whole.step.gradient.norm
            if scale > 2 and near(cut.step.gradient.norm * scale, self.max_norm):
                evidence = {"norm_at_the_step": cut.step.gradient.norm, "max_norm": self.max_norm, "loss_scale": scale}
                cause = (
                    "the gradients were clipped before they were divided by the loss scale: their norm comes out that much too "
                    "small"
                )
                return finding("clipped-while-scaled", cause, variant="by-hand", **evidence)
        return None

    def _arrivals(self, update: Update, number: int) -> torch.Tensor | None:
        """Return what arrived for an optimizer's first step, at its parameters or those that its masters are copies of."""
        used = first_use(update, number)
        if used is None:
            return None
        total = arrived(used, number)
        return arrived_for_masters(update, self.run.training, number) if total is None else total.values

    def _without_scaler(self, first: Update) -> None:
        """Judge fp16 autocast without a scaler: is the loss scaled by hand, or not at all?"""
        if not in_fp16_unscaled(first, self.run.training):
            return
        shares = []
        for number in self.run.optimizers:
            used = first_use(first, number)
            total = None if used is None else arrived(used, number)
            if used is None or total is None or not total.norm:
                return
            shares.append(used.step.gradient.norm / total.norm)
            if len(first.references) == first.calls:
                wanted = sum(first.references[call][number].norm for call in by_calls(used, number))
                if wanted and total.norm / wanted > 8:
                    return self._say_by_hand(f"by about {total.norm / wanted:.3g}")
        if not shares:
            return
        if max(shares) < 1 / 8 and self._is_divided(first):
            return self._say_by_hand(f"and the gradients are divided by {1 / max(shares):.4g} before the step")
        given = "the scaler that was passed is never used" if self.run.given else "no scaler is used, or a disabled one"
        cause = f"the forward pass runs in fp16 and the loss is not scaled ({given}): gradients below 3e-8 become 0"
        values = torch.cat([one.values for event in first.backwards for one in event.arrived.values()])
        zeros = (values == 0).float().mean().item()
        self.protocol.judge("", [finding("fp16-without-scaler", cause, gradients_that_are_exactly_0=f"{zeros:.1%}")])

    def _say_by_hand(self, how: str) -> None:
        self.scaled_by_hand = True
        self.protocol.observations.append(f"The loss is scaled by hand, {how}.")

    def _is_divided(self, first: Update) -> bool:
        """Tell whether the gradients are divided before the step, and not cut: half the gradient, half the step."""
        half = self.run.repeat(Meddling(0.5))
        for number in self.run.optimizers:
            one, other = first_use(first, number), first_use(half, number)
            if one is None or other is None or not near(other.step.gradient.norm / one.step.gradient.norm, 0.5, 0.05):
                return False
        return True
