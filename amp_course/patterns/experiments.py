"""Run a step's updates under an observer: plain, at two loss scales, with large gradients, with an inf; judge each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from amp_course.patterns.findings import Finding, finding
from amp_course.patterns.forced import about_clipping, about_skipping, about_waiting
from amp_course.patterns.observe import Observer
from amp_course.patterns.order import about_passes, about_schedule, about_steps
from amp_course.patterns.raised import about_error
from amp_course.patterns.seen import Batch, Meddling, Seen, Training
from amp_course.patterns.snapshot import Snapshot
from amp_course.patterns.values import (
    Group,
    about_accumulation,
    about_reference,
    about_scale,
    group_of,
    tolerance_for,
)

_LOWER = 4.0  # the second loss scale is this much lower: few more gradients underflow there
_MENDED_FIRST = {
    "never-cleared",
    "still-scaled",
    "cleared-before-step",
    "optimizer-not-stepped",
}  # what they say is enough
_FAR = 1000.0  # how far from max_norm gradients are brought, up to see clipping, down to keep out of its way


def size_of(batch: Batch) -> int:
    """Return the number of examples of a batch: the length of its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor) and part.dim()), 1)


@dataclass
class Experiments:
    """One audit: the experiments in their order, what they found, what was judged and what was not."""

    training: Training
    snapshot: Snapshot
    chunks: list[list[Batch]]
    accumulate: int
    max_norm: float | None
    tolerance: float | None
    found: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=lambda: ["objects"])
    not_checked: list[tuple[str, str]] = field(default_factory=list)
    scale: float = 1.0

    def everything(self) -> None:
        """Do all experiments that make sense after what the earlier ones found."""
        first = self._first()
        self._judge(["backward", "autocast"], about_passes(first, self.training))
        if first.error is not None:
            self.found.append(about_error(first, self.training, self.accumulate))
        if not first.finite and first.error is None:
            self.found.append(finding("not-finite", loss_scale=first.scale))
        if first.error is not None or first.left_open or not first.finite or not first.backwards:
            if (
                first.error is None
                and not first.backwards
                and first.stepped_with
                and "no-backward" not in self._names()
            ):
                self.not_checked.append(("everything else", "the step does not fill `.grad` through `backward()`"))
            return
        self._judge(["steps", "updates"], about_steps(first, self.training, self.accumulate))
        second = self._update(self.chunks[1])
        if second.error is not None:
            self.found.append(about_error(second, self.training, self.accumulate, first))
        updates = [first] if second.error is not None else [first, second]
        if self.training.schedulers:
            self._judge(["scheduler"], about_schedule(updates, self.training, self.accumulate))
        if second.error is None:
            self._judge(["clearing"], self._about_clearing(first, second))
        if not first.stepped_with or any(len(flats) > 1 for flats in first.stepped_with.values()):
            return
        if "cleared-before-step" not in self._names():
            self._gradients(first)
        if second.error is None:
            self._overflow()

    def _names(self) -> set[str]:
        return {one.name for one in self.found}

    def _judge(self, names: Iterable[str], found: Iterable[Finding]) -> None:
        self.checked.extend(names)
        self.found.extend(found)

    def _start(self, scale: float) -> None:
        """Go back to the beginning, with no gradients and another loss scale."""
        self.snapshot.restore()
        for held in self.training.parameters:
            for p in held:
                p.grad = None
        self.training.set_scale(scale)

    def _update(self, group: list[Batch], meddling: Meddling | None = None, *, reference: bool = False) -> Seen:
        return Observer(self.training, meddling).run(group, reference=reference)

    def _first(self) -> Seen:
        """Run the first update, at the step's own loss scale or the highest below it that does not overflow."""
        self.scale = self.training.scale()
        while True:
            self._start(self.scale)
            before = {module: module.training for model in self.training.models for module in model.modules()}
            seen = self._update(self.chunks[0], reference=True)
            if not self.training.modes and any(before.get(module) != mode for module, mode in seen.modes.items()):
                self.training.modes = seen.modes  # the step calls model.train(): so has the fp32 loss to be computed
                continue
            if seen.finite or seen.error is not None or self.training.scaler is None or self.scale < 2.0**-20:
                return seen
            self.scale /= 2**4

    def _about_clearing(self, first: Seen, second: Seen) -> Iterable[Finding]:
        if second.stale:
            yield finding("never-cleared", largest_gradient_left_over=second.stale)
        for number, flats in first.stepped_with.items():
            arrived = any(bool(flat[number].any()) for flat in first.contributions)
            if not bool(flats[0].any()) and arrived:
                yield finding("cleared-before-step", optimizer=number)
            elif bool(flats[0].any()) and not first.changed[number] and self._rate(number) > 0:
                yield finding("weights-unchanged", learning_rate=self._rate(number))

    def _rate(self, number: int) -> float:
        return max(float(group.get("lr", 1.0)) for group in self.training.optimizers[number].param_groups)

    def _gradients(self, first: Seen) -> None:
        """Judge what the optimizers see: clipped or not, at two loss scales, against fp32."""
        sizes = [size_of(batch) for batch in self.chunks[0]]
        self._round(first)
        groups = [group_of(first, n, sizes) for n in range(len(self.training.optimizers))]
        known = len(self.found)
        meddling, shrunk = None, 1.0
        if self.max_norm is not None:
            norm = max(group.mean.norm().item() / (1 if group.references else self.scale) for group in groups)
            if not norm:
                self.not_checked.append(("clipping", "the gradient is zero"))
                return
            factors = [4 * _FAR * self.max_norm / norm, *[_FAR * self.max_norm / norm] * (self.accumulate - 1)]
            self._start(self.scale)
            large = self._update(self.chunks[0], Meddling(lambda micro: factors[micro]))
            self._judge(["clipping"], about_clipping(large, groups, factors, self.max_norm, self.accumulate))
            # Without a loss the mean is not known from the sum: `norm` may be too large, by `accumulate` at most.
            shrunk = self.max_norm / (_FAR * norm)
            meddling = Meddling(lambda _: shrunk)
        if len(self.found) > known:
            return
        high = self._at(self.scale, meddling) if meddling else first
        least = tolerance_for(first.dtypes)
        if self.training.scaler is None:
            self.not_checked.append(("loss scale", "there is no scaler"))
        else:
            low = self._at(self.scale / _LOWER, meddling)
            self._judge(["loss scale"], self._about_scales(high, low, least))
        if len(self.found) == known:
            self._about_fp32(high, groups, shrunk, least)

    def _round(self, first: Seen) -> None:
        """Compute the fp32 loss under autocast, at the weights of the first update: what rounding alone does to its gradient."""
        lower = [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in first.dtypes]
        if not first.references or not lower:
            return
        self._start(self.scale)
        observer = Observer(self.training)
        rounded = [observer.compare(batch, lower[0]) for batch in self.chunks[0]]
        first.rounded = [flat for flat in rounded if flat is not None] if None not in rounded else []

    def _at(self, scale: float, meddling: Meddling | None) -> Seen:
        self._start(scale)
        return self._update(self.chunks[0], meddling)

    def _about_scales(self, high: Seen, low: Seen, tolerance: float) -> Iterable[Finding]:
        for number, flats in high.stepped_with.items():
            if number in low.stepped_with:
                unscaled = high.count("unscale", number) + high.count("scaler.step", number) > 0
                one = about_scale(flats[0], low.stepped_with[number][0], (high.scale, low.scale), tolerance, unscaled)
                if one is not None:
                    yield one

    def _about_fp32(self, seen: Seen, groups: list[Group], factor: float, least: float) -> None:
        k = self.accumulate
        if self.training.loss is None:
            self.not_checked.append(("gradient", "no fp32 `loss` was given to compare with"))
        elif not groups[0].references:
            self.not_checked.append(("gradient", "the fp32 `loss` raised an exception"))
        if k > 1:
            self.checked.append("accumulation")
            if len({size_of(batch) for batch in self.chunks[0]}) == 1:
                self.not_checked.append(("unequal micro-batches", "all batches of a group have the same size"))
        for number, flats in seen.stepped_with.items():
            gradient, group = flats[0] / factor, groups[number]
            found = list(about_accumulation(gradient, group))
            if group.references and not found:
                one = about_reference(gradient, group, self.tolerance or group.tolerance(least))
                found = [] if one is None else [one]
            self.found.extend(found)
        if groups[0].references:
            self.checked.append("gradient")
            self._last_group(groups, least)

    def _last_group(self, groups: list[Group], least: float) -> None:
        """Judge a group that is one micro-batch short, if the step is told which one is the last."""
        if self.accumulate == 1 or self.found:
            return
        if not self.training.hint_last:
            why = "the step has no argument `last`, so it cannot know that a group ends early"
            self.not_checked.append(("shorter last group", why))
            return
        group = self.chunks[0][: self.accumulate - 1]
        self._start(self.scale)
        seen = self._update(group, reference=True)
        self.checked.append("shorter last group")
        sizes = [size_of(batch) for batch in group]
        for number in range(len(self.training.optimizers)):
            flats = seen.stepped_with.get(number)
            if self.max_norm is not None and flats:
                continue  # clipped or not, its length says nothing
            tolerance = self.tolerance or groups[number].tolerance(least)
            one = None if flats is None else about_reference(flats[0], group_of(seen, number, sizes), tolerance)
            if flats is None or one is not None:
                self.found.append(finding("last-group-mean", **({} if one is None else one.evidence)))

    def _overflow(self) -> None:
        """Put an inf into the gradients of each optimizer in turn, and of all at once."""
        if self.training.scaler is None:
            self.not_checked.append(("overflow", "there is no scaler, so nothing is skipped"))
            return
        if self._names() & _MENDED_FIRST:
            self.not_checked.append(("overflow", "what was found has to be mended first"))
            return
        number_of = range(len(self.training.optimizers))
        self.checked.append("overflow")
        every = tuple(number_of)
        for poisoned in [*((n,) for n in number_of), *([every] if len(every) > 1 else [])]:
            self._start(self.scale)
            seen = self._update(self.chunks[0], Meddling(poisoned=poisoned))
            clean = self._update(self.chunks[1]) if seen.error is None else seen
            if seen.error is not None:
                self.found.append(about_error(seen, self.training, self.accumulate))
            for number in poisoned:
                self.found.extend(about_skipping(seen, clean, number))
            if poisoned == every and not any(name.startswith("scheduler") for name in self._names()):
                self.found.extend(about_waiting(seen, self.training))
            if clean.error is not None and seen.error is None and not self.found:
                self.found.append(about_error(clean, self.training, self.accumulate, seen))
            if self._names() & {"overflow-not-skipped", "no-update-after-skip", "kept-after-skip"}:
                return
