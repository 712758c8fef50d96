"""Judge what a step does when it is put to the test: with gradients far above max_norm, and with an inf in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from amp_course.patterns.findings import Finding, finding
from amp_course.patterns.seen import Seen, Training
from amp_course.patterns.values import CLOSE, Group, along, weighed


def about_clipping(
    seen: Seen, groups: Sequence[Group], factors: Sequence[float], max_norm: float, accumulate: int
) -> Iterator[Finding]:
    """Look at an update whose gradients were made a thousand times as large as max_norm.

    factors: what each micro-batch's gradient was multiplied by: they differ, so that the order of adding and clipping shows
    """
    if not seen.stepped_with:
        return
    norms = {n: flats[0].norm().item() for n, flats in seen.stepped_with.items()}
    together = torch.tensor(list(norms.values())).norm().item()
    worst = max(norms.values())
    evidence = {"norm_at_the_step": worst, "max_norm": max_norm, "loss_scale": seen.scale}
    if accumulate > 1:
        name, distance = _direction(seen, groups, factors)
        if name:
            yield finding(name, distance_of_direction=distance)
        if name == "cleared-every-micro-batch":
            return
    if worst > max_norm * (1 + CLOSE):
        # Clipping each micro-batch leaves at most as many times max_norm as there are.
        each = accumulate > 1 and worst <= accumulate * max_norm * (1 + CLOSE)
        yield finding("clipped-every-micro-batch" if each else "not-clipped", **evidence)
    elif together < max_norm * (1 - CLOSE):
        scaled = seen.scale > 1 and together <= max_norm / seen.scale * accumulate * (1 + CLOSE)
        yield finding("clipped-while-scaled" if scaled else "clipped-wrong", **evidence)


def _direction(seen: Seen, groups: Sequence[Group], factors: Sequence[float]) -> tuple[str, float]:
    """Return the name of what is wrong with the direction of the clipped gradient, or "", and how far off it is."""
    for number, flats in seen.stepped_with.items():
        group = groups[number]
        parts = [gradient * factor for gradient, factor in zip(group.own, factors, strict=True)]
        _, distance = along(flats[0], weighed(parts, group.sizes))
        if distance > 0.2:
            return ("cleared-every-micro-batch" if seen.lost else "clipped-every-micro-batch"), distance
    return "", 0.0


def about_skipping(poisoned: Seen, clean: Seen, number: int) -> Iterator[Finding]:
    """Look at an update with an inf in the gradients of one optimizer, and at the one after it."""
    if poisoned.error is None and poisoned.count("step", number):
        yield finding("overflow-not-skipped", optimizer=number)
        return
    if poisoned.count("update") == 0 or poisoned.scale_after >= poisoned.scale:
        yield finding("no-update-after-skip", scale_before=poisoned.scale, scale_after=poisoned.scale_after)
    elif clean.error is None and not clean.count("step", number):
        yield finding("kept-after-skip", steps_after_the_skip=0)


def about_waiting(poisoned: Seen, training: Training) -> Iterator[Finding]:
    """Look whether the schedulers wait in an update that every optimizer skips."""
    for number in range(len(training.schedulers)):
        if poisoned.count("scheduler", number) and not poisoned.count("step"):
            yield finding("scheduler-ran-on", moves_in_a_skipped_update=poisoned.count("scheduler", number))
