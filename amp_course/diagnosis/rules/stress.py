"""Judge what a step does when it is put to the test: with very large gradients, with an inf in them, with a scale that grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.compare import CLOSE, along, near
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.rules.gradients import arrived, arrived_for_masters, first_use
from amp_course.watching.records import Gradient, Step, Training, Update
from amp_course.watching.uses import Used, steps_of

HIDDEN = (
    "inf and NaN are replaced in the gradients before the scaler looks for them: no step is skipped, and the scale never "
    "falls, however often it overflows"
)
_NORMS = (1.0, 2.0, 3.0, math.inf)


def limits_of(plain: Update, large: Update, factor: float, number: int, training: Training) -> str:
    """Say how the gradients of an optimizer are limited when they grow by a factor: "no", "whole" (as a norm is), or "parts"."""
    small, big = first_use(plain, number), first_use(large, number)
    if small is None or big is None:
        return "no"
    total = arrived(big, number)
    values = arrived_for_masters(large, training, number) if total is None else total.values
    if values is None:
        return "no"
    grown, distance = along(big.step.gradient.values, small.step.gradient.values)
    if distance < 0.05 and near(grown, factor, 0.05):
        return "no"
    _, turned = along(big.step.gradient.values, values)
    return "whole" if turned < 0.05 else "parts"


def check_clipping(
    plain: Update, large: Update, factor: float, max_norm: float, training: Training
) -> Iterator[Finding | str]:
    """Look at an update whose gradients were made a thousand times as large as max_norm; a string is an observation, no fault."""
    firsts = {n: first_use(large, n) for n in range(len(training.optimizers))}
    steps = {n: one.step for n, one in firsts.items() if one is not None}
    if not steps:
        return
    fits = _fits_some_clip(steps, max_norm, training)
    worst = max(one.gradient.norm for one in steps.values())
    evidence = {"norm_at_the_step": worst, "max_norm": max_norm}
    kinds = {n: limits_of(plain, large, factor, n, training) for n in steps}
    free = {n: _free(firsts[n], first_use(plain, n), factor, max_norm) for n in steps}
    if kinds and not fits and any(kinds[n] == "parts" and free[n] for n in steps):
        yield finding("not-clipped", **evidence, parameters_that_are_not_clipped=sum(map(len, free.values())))
        return
    unlimited = [n for n, kind in kinds.items() if kind == "no" and steps[n].gradient.norm > max_norm * (1 + CLOSE)]
    if unlimited:
        if len(unlimited) < len(steps):
            evidence["optimizer"] = unlimited[0]
        evidence["norm_at_the_step"] = steps[unlimited[0]].gradient.norm
        yield finding("not-clipped", **evidence)
    elif not fits and all(kind == "whole" for kind in kinds.values()):
        yield finding("clipped-wrong", **evidence)
    elif fits and worst > max_norm * (1 + CLOSE) and "parts" in kinds.values():
        yield f"Parts of the gradients are clipped to {max_norm:g} one by one; the overall norm is {worst:.3g}."
    elif not fits:
        yield f"Large gradients come out with a norm of {worst:.3g}, not the max_norm of {max_norm:g}."


def _free(big: Used | None, small: Used | None, factor: float, max_norm: float) -> list[int]:
    """Return the parameters whose gradients grow with the factor, whatever happens to the others."""
    if big is None or small is None:
        return []
    norms = zip(big.step.gradient.norms.tolist(), small.step.gradient.norms.tolist(), strict=True)
    return [n for n, (now, was) in enumerate(norms) if was and now > max_norm and near(now / was, factor, 0.05)]


def _fits_some_clip(steps: Mapping[int, Step], max_norm: float, training: Training) -> bool:
    """Tell whether gradients are what some clip to max_norm leaves: by any usual norm, over all of them, a group, a parameter."""
    gradients = {n: one.gradient for n, one in steps.items()}
    if any(one.layout.stride > 1 for one in gradients.values()):
        return True  # of a sample other norms than the usual one cannot be told
    whole = torch.cat([one.values.cpu() for one in gradients.values()]).double()  # an L1 norm of millions needs it
    around = [math.hypot(one.gradient.norm, one.rest) for one in steps.values()]
    if any(near(norm, max_norm) for norm in around) or near(float(whole.abs().max()), max_norm):
        return True
    for norm in _NORMS:
        if near(torch.linalg.vector_norm(whole, norm).item(), max_norm):
            return True
        if all(near(torch.linalg.vector_norm(one.values, norm).item(), max_norm) for one in gradients.values()):
            return True
    parts = [gradient.values[place] for gradient in gradients.values() for place in gradient.layout.slices]
    if near(max(part.norm().item() for part in parts), max_norm):
        return True
    norms = [norm for n, one in gradients.items() for norm in _group_norms(training.optimizers[n], one)]
    return near(max(norms, default=0.0), max_norm)


def _group_norms(optimizer: torch.optim.Optimizer, gradient: Gradient) -> Iterator[float]:
    place = {id(p): n for n, p in enumerate(gradient.layout.parameters)}
    for group in optimizer.param_groups:
        norms = [gradient.norms[place[id(p)]] for p in group["params"] if id(p) in place]
        if norms:
            yield torch.stack(norms).norm().item()


def check_early_clipping(plain: Update, large: Update, factor: float, number: int) -> Iterator[Finding]:
    """Look whether the gradients of one micro-batch are cut before the next one's are added."""
    small, big = first_use(plain, number), first_use(large, number)
    if small is None or big is None or len(big.parts) < 2 or len(small.parts) != len(big.parts):
        return
    for n in range(1, len(big.parts)):
        first, before = big.parts[n - 1].arrived.get(number), big.parts[n].before[number]
        was, then = small.parts[n - 1].arrived.get(number), small.parts[n].before[number]
        if (
            first is None
            or was is None
            or not first.norm
            or not was.norm
            or not then.norm
            or big.parts[n].call == big.parts[n - 1].call
        ):
            return
        kept, usual = before.norm / (first.norm * factor), then.norm / was.norm
        if kept < 0.5 * usual:
            yield finding(
                "clipped-every-micro-batch",
                norm_between_micro_batches=before.norm,
                norm_that_arrived=first.norm * factor,
            )
            return


def check_skipping(poisoned: Update, clean: Update, plain: Update, number: int) -> Iterator[Finding]:
    """Look at an update with an inf in the gradients of one optimizer, at the one after it, and at one without an inf."""
    bad = [one for one in poisoned.steps(number) if not one.gradient.finite]
    if poisoned.error is None and bad and poisoned.spoilt[number]:
        yield finding("overflow-not-skipped", optimizer=number)
        return
    if poisoned.error is None and poisoned.spoilt[number] and not poisoned.steps(number):
        yield finding(
            "overflow-not-skipped", "the step was skipped, and an inf in the gradients reached the weights anyway"
        )
        return
    if poisoned.steps(number) or not plain.steps(number):
        return
    lowered = any(now < was for now, was in zip(clean.scales_after, poisoned.scales, strict=True))
    if plain.called("update") and not poisoned.called("update") and not (lowered and clean.error is None):
        yield finding("no-update-after-skip", scale_before=poisoned.scales[0], scale_after=clean.scales_after[0])
    else:
        yield from check_kept(poisoned, clean, number)


def check_hidden(outcomes: Sequence[Update], number: int) -> Iterator[Finding]:
    """Look whether inf in different parameters are gone before the scaler looks for them."""
    for one in outcomes:
        steps = one.steps(number)
        lowered = any(now < was for now, was in zip(one.scales_after, one.scales, strict=True))
        finite = all(step.by_scaler and step.gradient.finite for step in steps)
        if one.error is not None or not steps or not finite or lowered:
            return
    yield finding("overflow-not-skipped", HIDDEN, optimizer=number, steps_with_an_inf=len(outcomes), variant="hidden")


def check_waiting(poisoned: Update, training: Training) -> Iterator[Finding]:
    """Look whether the schedulers wait in an update that every optimizer skips."""
    for number in range(len(training.schedulers)):
        moves = len(poisoned.called("scheduler", number))
        if moves and poisoned.called("scaler.step") and not poisoned.steps():
            yield finding("scheduler-ran-on", moves_in_a_skipped_update=moves)


def check_growth(grown: Update, plain: Update, training: Training, *, steady: bool) -> Iterator[Finding]:
    """Look whether schedulers and gradients are in an update that makes the scale grow what they are in one that does not."""
    if not grown.steps() or not any(a > b for a, b in zip(grown.scales_after, grown.scales, strict=True)):
        return
    for number in range(len(training.schedulers)):
        if plain.called("scheduler", number) and not grown.called("scheduler", number):
            yield finding(
                "scheduler-stalls",
                scale_before=grown.scales[0],
                scale_after=grown.scales_after[0],
                moves=0,
                steps=len(grown.steps()),
            )
    for number in range(len(training.optimizers)) if steady else ():
        one, other = first_use(grown, number), first_use(plain, number)
        if one is None or other is None:
            continue
        factor, distance = along(one.step.gradient.values, other.step.gradient.values)
        shares = [b / a for a, b in zip(grown.scales_after, grown.scales, strict=True) if a > 1.2 * b]
        if distance < 0.1 and any(near(factor, share, 0.05) for share in shares):
            cause = (
                "when the scale changes during an update, the gradients of one optimizer are divided by the new scale although "
                "they were computed with the old one"
            )
            yield finding(
                "depends-on-scale", cause, optimizer=number, gradient_when_the_scale_grows=f"{factor:.3g} times"
            )


def check_kept(poisoned: Update, clean: Update, number: int) -> Iterator[Finding]:
    """Look whether a loop that skips an update with inf in its gradients keeps them for the next one."""
    if clean.error is not None or poisoned.steps(number) or clean.steps(number):
        return
    if any(not one.before[number].finite for one in clean.backwards):
        yield finding("kept-after-skip", steps_after_the_skip=0)


def leaky_check(outcomes: Sequence[Update], number: int) -> bool:
    """Tell whether a loop that looks for inf itself skips some updates with inf or NaN and takes others."""
    taken = [bool(one.steps(number)) and one.spoilt[number] for one in outcomes]
    skipped = [not one.steps(number) and one.error is None for one in outcomes]
    return any(taken) and any(skipped)


def earlier_pass(update: Update, number: int) -> tuple[int, int] | None:
    """Return (number of the backward pass, slot) of gradients that were cleared before the first step, as SAM's are."""
    used = next(iter(steps_of(update.events, number)), None)
    if used is None or not used.cleared or number not in used.cleared[0].arrived:
        return None
    return update.backwards.index(used.cleared[0]), number


def poisoned_pass(update: Update, number: int, training: Training) -> tuple[int, int] | None:
    """Return (number of the backward pass, slot) to put an inf into, so that the first step of an optimizer gets it."""
    used = next(iter(steps_of(update.events, number)), None)
    if used is None:
        return None
    slots = (number, len(training.optimizers))  # the model's own gradients, where an optimizer holds masters
    order = update.backwards
    for slot in slots:
        for one in reversed(used.parts if slot == number else order):
            if slot in one.arrived and one.complete:
                return order.index(one), slot
    return None
