"""Judge what the optimizers see: at two loss scales, and against the gradient of the fp32 loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.diagnosis.compare import CLOSE, along, mixture, near
from amp_course.diagnosis.findings import Evidence, Finding, finding
from amp_course.watching.records import Gradient, Training, Update
from amp_course.watching.uses import Used, steps_of


def tolerance_for(dtypes: set[torch.dtype]) -> float:
    """Return the relative distance from fp32 that rounding explains: fp16 → 2^-5, bf16 → 2^-3, else 2^-10.

    A gradient goes through tens of roundings: 64 units in the last place leave room for them (32 in bf16).
    """
    if torch.bfloat16 in dtypes:
        return 16 * torch.finfo(torch.bfloat16).eps
    return 32 * torch.finfo(torch.float16).eps if torch.float16 in dtypes else 2.0**-10


def first_use(update: Update, number: int) -> Used | None:
    """Return the first step of an optimizer that had gradients to step with."""
    return next((one for one in steps_of(update.events, number) if not one.step.gradient.empty), None)


def arrived(used: Used, number: int) -> Gradient | None:
    """Return what the backward passes of a step have added up to, or None if not all of it can be seen."""
    parts = [one.arrived.get(number) for one in used.parts]
    arrivals = [one for one in parts if one is not None]
    if not arrivals or len(arrivals) < len(parts) or not all(one.complete for one in used.parts):
        return None
    total = torch.stack([one.values for one in arrivals]).sum(0)
    present = tuple(any(flags) for flags in zip(*(one.present for one in arrivals), strict=True))
    stepped = used.step.gradient
    for place, here, there in zip(stepped.layout.slices, present, stepped.present, strict=True):
        if there and not here and bool(stepped.values[place].any()):
            return None  # set by the step itself, as those of fp32 masters are
    return Gradient(arrivals[0].layout, total, present)


@dataclass(frozen=True)
class Pair:
    """The same update at two loss scales, `high` and `low`; `large`: the same two with gradients made very large, if they were.

    scales: of the optimizer's scaler
    tolerance: the relative distance that rounding, and what differs from run to run, explain
    """

    high: Update
    low: Update
    scales: tuple[float, float]
    tolerance: float
    large: tuple[Update, Update] | None = None


def check_scale(pair: Pair, number: int) -> Iterator[Finding]:
    """Compare the gradients of one optimizer at two loss scales: what arrives grows with the scale, what is used does not.

    Gradients that shrink as the scale grows are told as clipped: `divided_twice` knows, of smaller ones, whether that is so.
    """
    high, low = first_use(pair.high, number), first_use(pair.low, number)
    if high is None or low is None:
        return
    ratio = pair.scales[0] / pair.scales[1]
    evidence: dict[str, float | str] = {
        "gradient_norms_at_the_step": f"{high.step.gradient.norm:.3g} and {low.step.gradient.norm:.3g}",
        "loss_scales": f"{pair.scales[0]:g} and {pair.scales[1]:g}",
    }
    factor, distance = along(high.step.gradient.values, low.step.gradient.values)
    same = distance <= pair.tolerance and near(factor, 1.0)
    powers = [
        _power(one, other, number, ratio, pair.tolerance) for one, other in zip(high.parts, low.parts, strict=False)
    ]
    if not same and any(one is None for one in powers) and arrived(high, number) is not None:
        yield finding("depends-on-scale", **evidence, relative_distance=distance)
    elif 0 in powers and set(powers) <= {0, 1} and high.step.by_scaler and not (same and 1 not in powers):
        yield finding("loss-not-scaled", **evidence, backward_passes=len(powers), without_scale=powers.count(0))
    elif not same and powers and max(one or 0 for one in powers) == 2:
        cause = (
            "a part of the loss was computed from gradients of a scaled loss, which nobody divided by the scale first: it grows "
            "with the scale, too"
        )
        twice = finding("scaled-twice", **evidence)
        yield finding("depends-on-scale", cause, **evidence) if pair.high.second_order else twice
    elif not same and near(factor, ratio) and distance <= pair.tolerance:
        yield _with_scale(pair, high, number, evidence)
    elif (limit := _limit_while_scaled(pair, number)) is not None:
        yield finding("clipped-while-scaled", **evidence, norm_times_scale_at_the_step=limit)
    elif not same and (high.step.by_scaler or powers.count(1) == len(powers)):
        yield finding("depends-on-scale", **evidence, relative_distance=distance)
    else:
        yield from _by_parameter(pair, number, ratio)


_OF_A_PART = {  # powers of the scale in what arrives and in what is used → the fault
    (1, -1): "clipped-while-scaled",
    (1, 1): "still-scaled",
    (0, -1): "loss-not-scaled",
    (2, 1): "depends-on-scale",
}


def _by_parameter(pair: Pair, number: int, ratio: float) -> Iterator[Finding]:
    """Look for parameters whose gradients depend on the scale, where larger ones hide it in the whole.

    What underflows at the lower scale is missing in what arrives as well: the powers then do not fit.
    """
    found: dict[str, int] = {}
    for one, other in (pair.large or (pair.high, pair.low), (pair.high, pair.low)):
        high, low = first_use(one, number), first_use(other, number)
        if high is None or low is None:
            continue
        came, went = arrived(high, number), arrived(low, number)
        if came is None or went is None:
            continue
        for place in came.layout.slices:
            power = _exponent(came.values[place], went.values[place], ratio)
            used = _exponent(high.step.gradient.values[place], low.step.gradient.values[place], ratio)
            if power is not None and used is not None and (power, used) in _OF_A_PART:
                name = _OF_A_PART[power, used]
                found[name] = found.get(name, 0) + 1
        if found:
            name = max(found, key=lambda key: found[key])
            scales = f"{pair.scales[0]:g} and {pair.scales[1]:g}"
            yield finding(name, parameters=found[name], loss_scales=scales)
            return


def _exponent(high: Tensor, low: Tensor, ratio: float) -> int | None:
    """Return n if one gradient is ratio**n times the other, None for no such n from −1 to 2."""
    factor, distance = along(high, low)
    fits = (n for n in (-1, 0, 1, 2) if near(factor, ratio**n, 0.05))
    return next(fits, None) if distance < 0.2 else None


def carries_scale(pair: Pair, number: int) -> bool:
    """Tell whether some gradient of an optimizer grows with the loss scale, or the scaler steps it; True if it cannot be seen."""
    high, low = first_use(pair.high, number), first_use(pair.low, number)
    if high is None or low is None or high.step.by_scaler or pair.high.called("unscale", number):
        return True
    ratio = pair.scales[0] / pair.scales[1]
    powers = [
        _power(one, other, number, ratio, pair.tolerance) for one, other in zip(high.parts, low.parts, strict=False)
    ]
    return not powers or any(power != 0 for power in powers)


def _power(high: object, low: object, number: int, ratio: float, tolerance: float) -> int | None:
    """Return n if what a backward pass adds grows with the loss scale to the power of n, None for no such n."""
    one, other = high.arrived.get(number), low.arrived.get(number)  # type: ignore[attr-defined]
    if one is None or other is None:
        return None
    if one.empty and other.empty:
        return 1
    factor, distance = along(one.values, other.values)
    if distance > tolerance:
        return None
    return next((n for n in (0, 1, 2) if near(factor, ratio**n, 0.1)), None)


def _with_scale(pair: Pair, high: Used, number: int, evidence: dict[str, float | str]) -> Finding:
    """The stepped gradient grows with the scale: not divided at all, or by a number that only fits one scale."""
    total = arrived(high, number)
    share = 1.0 if total is None or not total.norm else high.step.gradient.norm / total.norm
    if near(share * pair.scales[0], 1.0, 0.05) or share < 1e-3:
        cause = (
            f"the gradients are divided by {1 / share:g} whatever the loss scale is: when the scale moves, the update is too "
            "large or too small"
        )
        return finding("depends-on-scale", cause, **evidence)
    return finding("still-scaled", **evidence)


def divided_twice(pair: Pair, number: int) -> bool:
    """Tell, of gradients too small for any clip, whether they are divided by the scale twice."""
    high, low = first_use(pair.high, number), first_use(pair.low, number)
    if high is None or low is None:
        return False
    factor, distance = along(high.step.gradient.values, low.step.gradient.values)
    return near(factor, pair.scales[1] / pair.scales[0], 0.05) and distance < 0.2


def _limit_while_scaled(pair: Pair, number: int) -> float | None:
    """Return the norm to which scaled gradients are cut: at the step it is this divided by the scale, at both scales."""
    for one, other in ((pair.large or (pair.high, pair.low)), (pair.high, pair.low)):
        high, low = first_use(one, number), first_use(other, number)
        if high is None or low is None:
            return None
        factor, distance = along(high.step.gradient.values, low.step.gradient.values)
        if near(factor, pair.scales[1] / pair.scales[0], 0.05) and distance < 0.2:
            return high.step.gradient.norm * pair.scales[0]
    return None


@dataclass(frozen=True)
class Compared:
    """The gradient of a step and the fp32 gradients of its micro-batches.

    gradient: unscaled, and not cut by a clip
    parts:    the gradient of each micro-batch: of the fp32 loss, or as it arrived if there is none
    sizes:    examples of each, or what each counts in the loss of all of them together
    rounded:  the loss's under autocast: what rounding alone does; empty if it was not computed
    """

    gradient: Tensor
    parts: Sequence[Tensor]
    sizes: Sequence[float]
    exact: bool
    rounded: Sequence[Tensor] = ()
    counted: bool = False  # the sizes are what the loss itself counts

    def tolerance(self, least: float) -> float:
        """Return the distance from fp32 to allow: at least `least`, and thrice what rounding does, up to a quarter.

        Where a unit's input lies near ReLU's kink, rounding moves it across: no bound by units in the last place covers that.
        """
        if not self.rounded:
            return least
        _, distance = along(_weighed(self.rounded, self.sizes), _weighed(self.parts, self.sizes))
        return max(least, min(3 * distance, 0.25)) if math.isfinite(distance) else least


def _weighed(parts: Sequence[Tensor], sizes: Sequence[float]) -> Tensor:
    total = sum(sizes)
    return torch.stack([part * (n / total) for part, n in zip(parts, sizes, strict=True)]).sum(0)


def check_reference(one: Compared, tolerance: float) -> Iterator[Finding]:
    """Find the weights with which micro-batches enter the gradient: they ought to add up to 1, each by its examples.

    Weights by other counts, of tokens for one, are as right; without a loss only a lost micro-batch can be told.
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
        yield finding("wrong-factor", factor=total, **(shown if k > 1 else {}))
    elif k > 1 and _counts_alike(weights, one.sizes):
        whole = sum(one.sizes)
        shares = ", ".join(f"{size / whole:.1%}" for size in one.sizes)
        yield finding("mean-of-means", shares_of_the_examples=shares, **shown)


def _counts_alike(weights: Sequence[float], sizes: Sequence[float]) -> bool:
    """Tell whether weights are equal although sizes are not."""
    alike = max(abs(w - 1 / len(weights)) for w in weights)
    by_size = max(abs(w - n / sum(sizes)) for w, n in zip(weights, sizes, strict=True))
    return alike < 0.02 and by_size > max(3 * alike, 0.02)


def as_masters(gradients: Sequence[Gradient], number: int, twins: Sequence[int]) -> Tensor:
    """Return the gradient of an optimizer's parameters, that of the model's own parameter for each fp32 master."""
    own, rest = gradients[number], gradients[-1]
    values = own.values.clone()
    for place, twin in zip(own.layout.slices, twins, strict=True):
        if twin >= 0:
            values[place] = rest.values[rest.layout.slices[twin]]
    return values


def arrived_for_masters(update: Update, training: Training, number: int) -> Tensor | None:
    """Return what arrived at the model's parameters for which an optimizer holds fp32 masters; None if it holds none."""
    twins, last = training.twins(number), len(training.optimizers)
    passes = [one.arrived[last] for one in update.backwards if last in one.arrived]
    if twins is None or max(twins, default=-1) < 0 or not passes:
        return None
    slot = training.slots[number]
    values = passes[0].values.new_zeros(slot.size)
    for place, twin in zip(slot.slices, twins, strict=True):
        if twin >= 0:
            values[place] = torch.stack([one.values[one.layout.slices[twin]] for one in passes]).sum(0)
    return values


def by_calls(used: Used, number: int) -> dict[int, Tensor]:
    """Return what arrived, added up for each call of the step."""
    found: dict[int, Tensor] = {}
    for one in used.parts:
        if number in one.arrived:
            values = one.arrived[number].values
            found[one.call] = found[one.call] + values if one.call in found else values
    return found
