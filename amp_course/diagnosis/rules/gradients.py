"""Judge the gradients of steps: at two loss scales, and against those of the fp32 loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import CLOSE, along, mixture, near
from amp_course.diagnosis.findings import Evidence, Finding, Findings
from amp_course.watching.gradients import Gradient, Layout
from amp_course.watching.records import Call, Event, Training, Update
from amp_course.watching.uses import StepUse, steps_of


def tolerance_for(dtypes: set[torch.dtype]) -> float:
    """Return the distance from fp32 that rounding explains: fp16 → 2^-5, bf16 → 2^-3, else 2^-10.

    A gradient is rounded tens of times: 64 units in the last place allow for that (32 in bf16).
    """
    if torch.bfloat16 in dtypes:
        return 16 * torch.finfo(torch.bfloat16).eps
    return 32 * torch.finfo(torch.float16).eps if torch.float16 in dtypes else 2.0**-10


def first_use(update: Update, number: int) -> StepUse | None:
    """Return an optimizer's first step with gradients that are not all 0."""
    uses = steps_of(update.events, number)
    return next((one for one in uses if not one.step.gradient.empty), None)


def arrived(used: StepUse, number: int) -> Gradient | None:
    """Return the sum of what the passes of a step added; None if a part of it is unknown."""
    parts = [one.arrived.get(number) for one in used.parts]
    arrivals = [one for one in parts if one is not None]
    if not arrivals or len(arrivals) < len(parts) or not all(one.complete for one in used.parts):
        return None
    total = torch.stack([one.values for one in arrivals]).sum(0)
    present = tuple(any(flags) for flags in zip(*(one.present for one in arrivals), strict=True))
    stepped = used.step.gradient
    for place, here, there in zip(stepped.layout.slices, present, stepped.present, strict=True):
        if there and not here and bool(stepped.values[place].any()):
            return None  # the step itself set this gradient, as for fp32 masters
    return Gradient(arrivals[0].layout, total, present)


@dataclass(frozen=True)
class Pair:
    """The same update at two loss scales.

    scales:    of the optimizer's scaler
    tolerance: the relative distance that rounding, and differences from run to run, explain
    large:     the same two with very large gradients
    """

    high: Update
    low: Update
    scales: tuple[float, float]
    tolerance: float
    large: tuple[Update, Update] | None = None

    @property
    def ratio(self) -> float:
        return self.scales[0] / self.scales[1]

    def uses(self, number: int, *, enlarged: bool = False) -> tuple[StepUse, StepUse] | None:
        """Return the first step at each scale, None if one is missing. enlarged: of `large`."""
        both = self.large if enlarged and self.large else (self.high, self.low)
        high, low = (first_use(one, number) for one in both)
        return None if high is None or low is None else (high, low)

    def powers(self, high: StepUse, low: StepUse) -> list[int | None]:
        """Return, for each pass, n if what it adds grows with the scale's n-th power, or None."""
        number = high.step.number
        passes = zip(high.parts, low.parts, strict=False)
        return [
            self._power(one.arrived.get(number), other.arrived.get(number)) for one, other in passes
        ]

    def _power(self, one: Gradient | None, other: Gradient | None) -> int | None:
        if one is None or other is None:
            return None
        if one.empty and other.empty:
            return 1
        factor, distance = along(one.values, other.values)
        fits = (n for n in (0, 1, 2) if near(factor, self.ratio**n, 0.1))
        return next(fits, None) if distance <= self.tolerance else None


def check_scale(pair: Pair, number: int) -> Findings:
    """Check that what arrives grows with the loss scale, and what is used does not.

    Gradients that shrink as the scale grows are reported as clipped; `divided_twice`, on smaller
    ones, tells whether they are.
    """
    uses = pair.uses(number)
    if uses is None:
        return
    high, low = uses
    one, other = high.step.gradient, low.step.gradient
    evidence: dict[str, float | str] = {
        "gradient_norms_at_the_step": f"{one.norm:.3g} and {other.norm:.3g}",
        "loss_scales": f"{pair.scales[0]:g} and {pair.scales[1]:g}",
    }
    factor, distance = along(one.values, other.values)
    same = distance <= pair.tolerance and near(factor, 1.0)
    if not same and scaled_by_another(pair.high.events, high):
        yield finding("depends-on-scale", **evidence, variant="other-scaler")
        return
    powers = pair.powers(high, low)
    partly = 0 in powers and set(powers) <= {0, 1} and not (same and 1 not in powers)
    if not same and None in powers and arrived(high, number) is not None:
        yield finding("depends-on-scale", **evidence, relative_distance=distance)
    elif partly and high.step.by_scaler:
        counts = {"backward_passes": len(powers), "without_scale": powers.count(0)}
        yield finding("loss-not-scaled", **evidence, **counts)
    elif not same and 2 in powers:
        cause = (
            "a part of the loss was computed from gradients of a scaled loss, which nobody divided "
            "by the scale first: it grows with the scale, too"
        )
        twice = finding("scaled-twice", **evidence)
        yield finding("depends-on-scale", cause, **evidence) if pair.high.second_order else twice
    elif not same and near(factor, pair.ratio) and distance <= pair.tolerance:
        yield _with_scale(pair, high, evidence)
    elif (limit := _limit_while_scaled(pair, number)) is not None:
        yield finding("clipped-while-scaled", **evidence, norm_times_scale_at_the_step=limit)
    elif not same and (high.step.by_scaler or powers.count(1) == len(powers)):
        yield finding("depends-on-scale", **evidence, relative_distance=distance)
    else:
        yield from _by_parameter(pair, number)


def scaled_by_another(events: Sequence[Event], use: StepUse) -> bool:
    """Return True if a scaler steps with gradients of losses that only another one scaled."""
    last = by = -1
    scaled: set[int] = set()
    for event in events:
        if isinstance(event, Call) and event.name == "scale":
            last = event.scaler
        elif isinstance(event, Call) and event.name == "scaler.step":
            by = event.scaler if event.number == use.step.number else by
        elif event in use.parts:
            scaled.add(last)
    return bool(scaled) and by >= 0 and not scaled & {by, -1}


def _with_scale(pair: Pair, high: StepUse, evidence: dict[str, float | str]) -> Finding:
    """Judge gradients that grow with the scale: not divided, or by a fixed number."""
    total = arrived(high, high.step.number)
    share = 1.0 if total is None or not total.norm else high.step.gradient.norm / total.norm
    if near(share * pair.scales[0], 1.0, 0.05) or share < 1e-3:
        cause = (
            f"the gradients are divided by {1 / share:g} whatever the loss scale is: when the "
            "scale moves, the update is too large or too small"
        )
        return finding("depends-on-scale", cause, **evidence)
    return finding("still-scaled", **evidence)


_OF_A_PART = {  # powers of the scale in what arrives and in what is used → the fault
    (1, -1): "clipped-while-scaled",
    (1, 1): "still-scaled",
    (0, -1): "loss-not-scaled",
    (2, 1): "depends-on-scale",
}


def _by_parameter(pair: Pair, number: int) -> Findings:
    """Look for single parameters whose gradients depend on the scale, though larger ones hide it.

    A gradient that underflows at the lower scale is missing in what arrives too: it fits no power.
    """
    for enlarged in (True, False):
        uses = pair.uses(number, enlarged=enlarged)
        high, low = (arrived(one, number) for one in uses) if uses else (None, None)
        if uses is None or high is None or low is None:
            continue
        at_step = [one.step.gradient for one in uses]
        powers = (
            tuple(
                _exponent(one.values[place], other.values[place], pair.ratio)
                for one, other in ((high, low), at_step)
            )
            for place in high.layout.slices
        )
        found = Counter(_OF_A_PART[one] for one in powers if one in _OF_A_PART)
        for name, count in found.most_common(1):
            scales = f"{pair.scales[0]:g} and {pair.scales[1]:g}"
            yield finding(name, parameters=count, loss_scales=scales)
            return


def _exponent(high: Tensor, low: Tensor, ratio: float) -> int | None:
    """Return n if one gradient is ratio**n times the other, None for no such n from −1 to 2."""
    factor, distance = along(high, low)
    fits = (n for n in (-1, 0, 1, 2) if near(factor, ratio**n, 0.05))
    return next(fits, None) if distance < 0.2 else None


def carries_scale(pair: Pair, number: int) -> bool:
    """Return True if some gradient grows with the loss scale, or that is unknown."""
    uses = pair.uses(number)
    if uses is None or uses[0].step.by_scaler or pair.high.called("unscale", number):
        return True
    powers = pair.powers(*uses)
    return not powers or any(power != 0 for power in powers)


def divided_twice(pair: Pair, number: int, *, enlarged: bool = False) -> bool:
    """Return True if gradients shrink as the scale grows.

    If they are too small for a clip, they are divided twice.
    """
    uses = pair.uses(number, enlarged=enlarged)
    if uses is None:
        return False
    high, low = (one.step.gradient.values for one in uses)
    return _exponent(high, low, pair.ratio) == -1


def _limit_while_scaled(pair: Pair, number: int) -> float | None:
    """Return the norm to which scaled gradients are clipped, or None."""
    for enlarged in (True, False):
        uses = pair.uses(number, enlarged=enlarged)
        if uses and divided_twice(pair, number, enlarged=enlarged):
            return uses[0].step.gradient.norm * pair.scales[0]
    return None


@dataclass(frozen=True)
class Compared:
    """The gradient of a step and the fp32 gradients of its micro-batches.

    gradient: unscaled and not clipped
    parts:    the gradient of each micro-batch: of the fp32 loss, or as it arrived if not `exact`
    sizes:    of each micro-batch: its examples, or, if `counted`, its weight in the loss itself
    rounded:  gradients of the loss under autocast, which show rounding alone; [] if unknown
    """

    gradient: Tensor
    parts: Sequence[Tensor]
    sizes: Sequence[float]
    exact: bool
    rounded: Sequence[Tensor] = ()
    counted: bool = False

    def tolerance(self, least: float) -> float:
        """Return the distance to allow: `least`, or three times that of rounding, at most 1/4.

        Rounding may move a unit's input across ReLU's kink, which no bound in units in the last
        place covers.
        """
        if not self.rounded:
            return least
        _, distance = along(_weighed(self.rounded, self.sizes), _weighed(self.parts, self.sizes))
        return max(least, min(3 * distance, 0.25)) if math.isfinite(distance) else least


def _weighed(parts: Sequence[Tensor], sizes: Sequence[float]) -> Tensor:
    total = sum(sizes)
    return torch.stack([part * (n / total) for part, n in zip(parts, sizes, strict=True)]).sum(0)


def check_reference(one: Compared, tolerance: float) -> Findings:
    """Find the weights of the micro-batches in the gradient: each its share of the examples.

    Weights by another count, such as tokens, are right too. Without a loss, only a lost micro-batch
    can be found.
    """
    k = len(one.parts)
    if k == 1:
        factor, distance = along(one.gradient, one.parts[0])
        weights = [factor]
    else:
        weights, distance = mixture(one.gradient, one.parts)
        if not all(map(math.isfinite, weights)):
            factor, distance = along(one.gradient, _weighed(one.parts, one.sizes))
            weights = [factor * n / sum(one.sizes) for n in one.sizes]
    total = sum(weights)
    shown: Evidence = {"micro_batches": k, "weights": ", ".join(f"{w:.3g}" for w in weights)}
    if distance > tolerance:
        if one.exact:
            yield finding("gradient-differs", relative_distance=distance, tolerance=tolerance)
        return
    close = max(CLOSE, tolerance / 2)
    if k > 1 and max(map(abs, weights[:-1])) < 0.1 * abs(weights[-1]):
        yield finding("cleared-every-micro-batch", **shown)
    elif not one.exact:
        return
    elif k > 1 and near(total, k, close) and all(near(w, 1.0, 3 * close) for w in weights):
        yield finding("sum-not-mean", factor=total, **shown)
    elif abs(total - 1) > close:
        more = {"variant": "upwards"} if total < 0 else {}
        yield finding("wrong-factor", factor=total, **(shown if k > 1 else {}), **more)
    elif k > 1 and _counts_alike(weights, one.sizes):
        whole = sum(one.sizes)
        shares = ", ".join(f"{size / whole:.1%}" for size in one.sizes)
        yield finding("mean-of-means", shares_of_the_examples=shares, **shown)


def _counts_alike(weights: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return True if the weights are equal although the sizes are not."""
    alike = max(abs(w - 1 / len(weights)) for w in weights)
    by_size = max(abs(w - n / sum(sizes)) for w, n in zip(weights, sizes, strict=True))
    return alike < 0.02 and by_size > max(3 * alike, 0.02)


def as_masters(gradients: Sequence[Gradient], number: int, originals: Sequence[int]) -> Tensor:
    """Return an optimizer's gradient, with that of the original for each fp32 master."""
    own, rest = gradients[number], gradients[-1]
    values = own.values.clone()
    _copy_originals(values, own.layout, rest.values, rest.layout, originals)
    return values


def arrived_for_masters(update: Update, training: Training, number: int) -> Tensor | None:
    """Return what arrived at the originals of an optimizer's fp32 masters, None if it has none."""
    originals, arrivals = training.originals(number), update.arrivals(training.rest)
    if originals is None or max(originals, default=-1) < 0 or not arrivals:
        return None
    slot = training.slots[number]
    total = torch.stack([one.values for one in arrivals]).sum(0)
    values = total.new_zeros(slot.size)
    _copy_originals(values, slot, total, arrivals[0].layout, originals)
    return values


def _copy_originals(
    values: Tensor, layout: Layout, source: Tensor, from_: Layout, originals: Sequence[int]
) -> None:
    for place, original in zip(layout.slices, originals, strict=True):
        if original >= 0:
            values[place] = source[from_.slices[original]]


def by_calls(used: StepUse, number: int) -> dict[int, Tensor]:
    """Return the sum of what arrived in each call of the step."""
    found: dict[int, Tensor] = {}
    for one in used.parts:
        if number in one.arrived:
            found[one.call] = found.get(one.call, 0) + one.arrived[number].values
    return found
