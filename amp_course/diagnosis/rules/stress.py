"""Judge a step under stress: very large gradients, an inf in them, a scale that grows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import CLOSE, along, near
from amp_course.diagnosis.findings import Finding, Findings
from amp_course.diagnosis.rules.gradients import arrived, arrived_for_masters, first_use
from amp_course.watching.records import Step, Training, Update
from amp_course.watching.uses import StepUse, steps_of

HIDDEN = (
    "inf and NaN are removed from the gradients before the scaler looks for them: no step is "
    "skipped, and the scale never falls, however often it overflows"
)


# ---- large gradients ----


def check_clipping(
    plain: Update, large: Update, factor: float, max_norm: float, training: Training
) -> Iterator[Finding | str]:
    """Check an update with gradients far above max_norm; a string is an observation, no fault."""
    uses = ((n, first_use(large, n)) for n in training.numbers)
    used = {n: use for n, use in uses if use is not None}
    if not used:
        return
    steps = {n: use.step for n, use in used.items()}
    norms = {n: step.gradient.norm for n, step in steps.items()}
    fits, worst = _fits_some_clip(steps, max_norm, training), max(norms.values())
    kinds, free = {}, {}
    for n, use in used.items():
        small = first_use(plain, n)
        kinds[n] = "no" if small is None else _kind_of_limit(small, use, factor, large, training)
        free[n] = 0 if small is None else _count_free(small, use, factor, max_norm)
    limit = max_norm * (1 + CLOSE)
    unlimited = [n for n, kind in kinds.items() if kind == "no" and norms[n] > limit]
    shown = {"norm_at_the_step": worst, "max_norm": max_norm}
    if not fits and any(kinds[n] == "parts" and free[n] for n in steps):
        shown["parameters_that_are_not_clipped"] = sum(free.values())
        yield finding("not-clipped", **shown)
    elif unlimited:
        which = {"optimizer": unlimited[0]} if len(unlimited) < len(steps) else {}
        shown["norm_at_the_step"] = norms[unlimited[0]]
        yield finding("not-clipped", **shown, **which)
    elif not fits and all(kind == "whole" for kind in kinds.values()):
        yield finding("clipped-wrong", **shown)
    elif fits and worst > limit and "parts" in kinds.values():
        one_by_one = f"Parts of the gradients are clipped to {max_norm:g} one by one"
        yield f"{one_by_one}; the overall norm is {worst:.3g}."
    elif not fits:
        norm = f"a norm of {worst:.3g}, not the max_norm of {max_norm:g}"
        yield f"Large gradients come out with {norm}."


def _kind_of_limit(
    small: StepUse, big: StepUse, factor: float, large: Update, training: Training
) -> str:
    """Return how gradients are limited: "no", "whole" (all by the same factor), or "parts"."""
    number = big.step.number
    total = arrived(big, number)
    values = arrived_for_masters(large, training, number) if total is None else total.values
    grown, distance = along(big.step.gradient.values, small.step.gradient.values)
    if values is None or (distance < 0.05 and near(grown, factor, 0.05)):
        return "no"
    _, turned = along(big.step.gradient.values, values)
    return "whole" if turned < 0.05 else "parts"


def _count_free(small: StepUse, big: StepUse, factor: float, max_norm: float) -> int:
    """Count the parameters whose gradients grow with the factor."""
    norms = zip(big.step.gradient.norms.tolist(), small.step.gradient.norms.tolist(), strict=True)
    return sum(bool(was) and now > max_norm and near(now / was, factor, 0.05) for now, was in norms)


def _fits_some_clip(steps: Mapping[int, Step], max_norm: float, training: Training) -> bool:
    """Return True if the gradients are what a usual kind of clip to max_norm leaves."""
    if any(one.gradient.layout.stride > 1 for one in steps.values()):
        return True  # from a sample, only the usual norm can be computed
    return any(all(near(norm, max_norm) for norm in norms) for norms in _norms(steps, training))


def _norms(steps: Mapping[int, Step], training: Training) -> Iterator[list[float]]:
    """Yield, for each kind of clip, the norms that it makes max_norm."""
    gradients = {n: one.gradient for n, one in steps.items()}
    values = [one.values for one in gradients.values()]
    yield from ([math.hypot(one.gradient.norm, one.rest)] for one in steps.values())
    whole = torch.cat([one.cpu() for one in values]).double()  # for an L1 norm of millions
    for order in (1.0, 2.0, 3.0, math.inf):
        for parts in ([whole], values):
            yield [torch.linalg.vector_norm(one, order).item() for one in parts]
    yield [max(norm for one in gradients.values() for norm in one.norms.tolist())]
    groups = []
    for n, one in gradients.items():
        norm_of = dict(zip(map(id, one.layout.parameters), one.norms, strict=True))
        for group in training.optimizers[n].param_groups:
            if found := [norm_of[id(p)] for p in group["params"] if id(p) in norm_of]:
                groups.append(torch.stack(found).norm().item())
    yield [max(groups)]


def check_early_clipping(plain: Update, large: Update, factor: float, number: int) -> Findings:
    """Look for gradients of one micro-batch that are clipped before the next one's are added."""
    small, big = first_use(plain, number), first_use(large, number)
    if small is None or big is None or len(small.parts) != len(big.parts):
        return
    pairs = zip(itertools.pairwise(small.parts), itertools.pairwise(big.parts), strict=True)
    for (was, then), (first, following) in pairs:
        arrival, usual = first.arrived.get(number), was.arrived.get(number)
        left, usually_left = following.before[number].norm, then.before[number].norm
        if arrival is None or usual is None or first.call == following.call:
            return
        if not arrival.norm or not usual.norm or not usually_left:
            return
        whole = arrival.norm * factor
        if left / whole < 0.5 * usually_left / usual.norm:
            shown = {"norm_between_micro_batches": left, "norm_that_arrived": whole}
            yield finding("clipped-every-micro-batch", **shown)
            return


# ---- an inf ----


def pass_for_inf(update: Update, number: int, training: Training) -> tuple[int, int] | None:
    """Return (number of the pass, slot) for an inf that reaches an optimizer's first step."""
    order = update.backwards
    for used in steps_of(update.events, number)[:1]:
        # The last slot: the model's own gradients, where an optimizer holds masters.
        for slot, passes in ((number, used.parts), (training.rest, order)):
            for one in reversed(passes):
                if slot in one.arrived and one.complete:
                    return order.index(one), slot
    return None


def earlier_pass(update: Update, number: int) -> tuple[int, int] | None:
    """Return (number of the pass, slot) of gradients that were cleared unused, as SAM's are."""
    for used in steps_of(update.events, number)[:1]:
        if used.cleared and number in used.cleared[0].arrived:
            return update.backwards.index(used.cleared[0]), number
    return None


def check_stress(plain: Update, with_inf: Update, clean: Update, training: Training) -> Findings:
    """Judge a script's update with an inf in it, between a plain one and a clean one."""
    for number in training.numbers:
        yield from check_skipping(with_inf, clean, plain, number)
        # With other passes, the script may have skipped on its own, or a cut-off group came first.
        same = len(with_inf.backwards) == len(plain.backwards)
        if same or _uses_pass(with_inf, number, pass_for_inf(plain, number, training)):
            yield from check_hidden([with_inf], number)
    if plain.called("scheduler"):  # one that moves once an epoch may do so now
        yield from check_waiting(with_inf, training)


def _uses_pass(update: Update, number: int, place: tuple[int, int] | None) -> bool:
    """Return True if an optimizer's first step uses the gradients of the pass at a place."""
    used = steps_of(update.events, number)[:1]
    if place is None or place[0] >= len(update.backwards):
        return False
    return any(part is update.backwards[place[0]] for one in used for part in one.parts)


def check_skipping(with_inf: Update, clean: Update, plain: Update, number: int) -> Findings:
    """Check that an update with an inf in one optimizer's gradients is skipped.

    clean: the update after it; plain: one without an inf
    """
    steps = with_inf.steps(number)
    taken = any(not one.gradient.finite for one in steps)
    if with_inf.error is None and with_inf.corrupted[number] and taken:
        yield finding("overflow-not-skipped", optimizer=number)
    elif not steps and plain.steps(number):
        before, after = with_inf.scales, clean.scales_after
        lowered = clean.error is None and _falls(before, after)
        if plain.called("update") and not with_inf.called("update") and not lowered:
            yield finding("no-update-after-skip", scale_before=before[0], scale_after=after[0])
        else:
            yield from check_kept(with_inf, clean, number)


def _falls(before: Sequence[float], after: Sequence[float]) -> bool:
    return any(now < was for was, now in zip(before, after, strict=True))


def check_kept(with_inf: Update, clean: Update, number: int) -> Findings:
    """Look for gradients with an inf that a loop keeps after it skipped the step."""
    skipped = clean.error is None and not with_inf.steps(number) and not clean.steps(number)
    own = [one for one in clean.backwards if number in one.arrived]
    if skipped and own and not any(one.before[number].finite for one in own):
        yield finding("kept-after-skip", steps_after_the_skip=0)


def check_hidden(outcomes: Sequence[Update], number: int) -> Findings:
    """Look for inf that is gone before the scaler checks; each update has it in another place."""
    for one in outcomes:
        steps = one.steps(number)
        finite = all(step.by_scaler and step.gradient.finite for step in steps)
        if one.error is not None or not steps or not finite or _falls(one.scales, one.scales_after):
            return
    shown = {"optimizer": number, "steps_with_an_inf": len(outcomes)}
    yield finding("overflow-not-skipped", HIDDEN, **shown, variant="hidden")


def check_waiting(with_inf: Update, training: Training) -> Findings:
    """Check that the schedulers wait in an update that every optimizer skips."""
    for number in range(len(training.schedulers)):
        moves = len(with_inf.called("scheduler", number))
        if moves and with_inf.called("scaler.step") and not with_inf.steps():
            yield finding("scheduler-ran-on", moves_in_a_skipped_update=moves)


def misses_some_inf(outcomes: Sequence[Update], number: int) -> bool:
    """Return True if a loop with its own check skips some updates with inf or NaN, but not all."""
    taken = any(one.steps(number) and one.corrupted[number] for one in outcomes)
    return taken and any(not one.steps(number) and one.error is None for one in outcomes)


# ---- a scale that grows ----


def check_growth(grown: Update, plain: Update, training: Training, *, steady: bool) -> Findings:
    """Check schedulers and gradients in an update that makes the scale grow."""
    growth = list(zip(grown.scales_after, grown.scales, strict=True))
    if not grown.steps() or not any(now > was for now, was in growth):
        return
    for number in range(len(training.schedulers)):
        if plain.called("scheduler", number) and not grown.called("scheduler", number):
            scales = {"scale_before": grown.scales[0], "scale_after": grown.scales_after[0]}
            yield finding("scheduler-stalls", **scales, moves=0, steps=len(grown.steps()))
    for number in training.numbers if steady else ():
        one, other = first_use(grown, number), first_use(plain, number)
        if one is None or other is None:
            continue
        factor, distance = along(one.step.gradient.values, other.step.gradient.values)
        shares = [was / now for now, was in growth if now > 1.2 * was]
        if distance < 0.1 and any(near(factor, share, 0.05) for share in shares):
            cause = (
                "when the scale changes during an update, the gradients of one optimizer are "
                "divided by the new scale although they were computed with the old one"
            )
            times = {"gradient_when_the_scale_grows": f"{factor:.3g} times"}
            yield finding("depends-on-scale", cause, optimizer=number, **times)
