"""Judge the calls of one update: how many, in which order, in which micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from amp_course.patterns.findings import Finding, finding
from amp_course.patterns.seen import Seen, Training


def about_passes(seen: Seen, training: Training) -> Iterator[Finding]:
    """Look at `backward()` and the autocast region."""
    if seen.left_open:
        yield finding("autocast-left-open")
    elif seen.in_autocast:
        yield finding("backward-in-autocast")
    if seen.error is None and not seen.backwards and not _any_gradient(seen):
        frozen = not any(p.requires_grad for held in training.parameters for p in held)
        yield finding("frozen-optimizer" if frozen else "no-backward", gradients_that_arrived=0)


def _any_gradient(seen: Seen) -> bool:
    return any(bool(flat.any()) for flats in seen.stepped_with.values() for flat in flats)


def about_steps(seen: Seen, training: Training, accumulate: int) -> Iterator[Finding]:
    """Look for one step of each optimizer, and one update of the scaler, in one update of the weights."""
    steps = [seen.count("step", n) for n in range(len(training.optimizers))]
    if seen.finite:
        if not any(steps):
            yield finding("never-stepped", micro_batches=accumulate, steps=0)
        elif not all(steps):
            yield finding("optimizer-not-stepped", optimizer=steps.index(0), steps=str(steps))
    most = max(steps)
    if most > 1:
        every = accumulate > 1 and most == accumulate
        yield finding("stepped-every-micro-batch" if every else "stepped-twice", steps=most, micro_batches=accumulate)
    if training.scaler is not None:
        yield from _about_scaler(seen, training, accumulate, every_step=most > 1)


def _about_scaler(seen: Seen, training: Training, accumulate: int, *, every_step: bool) -> Iterator[Finding]:
    updates, optimizers = seen.count("update"), len(training.optimizers)
    if updates == 0 and seen.count("scaler.step"):
        yield finding("update-missing", updates=0, steps=seen.count("scaler.step"))
    if updates > 1 and not every_step:
        last = max(call.micro for call in seen.calls if call.name == "update")
        if accumulate > 1 and updates >= accumulate and last:
            name = "update-every-micro-batch"
        else:
            name = "update-per-optimizer" if optimizers > 1 and updates == optimizers else "updated-twice"
        yield finding(name, updates=updates, micro_batches=accumulate)
    early = [call for call in seen.calls if call.name == "unscale" and call.micro < accumulate - 1]
    if early and not every_step:
        yield finding("unscaled-every-micro-batch", unscaled=len(early), micro_batches=accumulate)


def about_schedule(updates: list[Seen], training: Training, accumulate: int) -> Iterator[Finding]:
    """Look for one move of each scheduler an update, after the optimizer's step."""
    for number in range(len(training.schedulers)):
        moves = [seen.count("scheduler", number) for seen in updates]
        if not any(moves):
            yield finding("scheduler-never-moved", updates=len(updates), moves=0)
        elif max(moves) > 1:
            every = accumulate > 1 and max(moves) == accumulate
            yield finding("scheduler-every-micro-batch" if every else "scheduler-moved-twice", moves=max(moves))
        for seen in updates:
            moved, stepped = seen.first("scheduler", number), seen.first("step")
            if moved is not None and stepped is not None and moved < stepped and max(moves) == 1:
                yield finding("scheduler-before-optimizer")
