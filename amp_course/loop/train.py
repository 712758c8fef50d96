"""The tested twin of the loops that chapter 06 writes in plain cells: train, and keep a record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.measure import StepTimer, Timing
from amp_course.kit.memory import StepMemory, step_memory
from amp_course.loop.recipe import FP32, AnyRecipe, Recipe, find_recipe
from amp_course.loop.stepper import LossFn, Stepper

_MEMORY_STEP = 1  # the second step: the first one is where an optimizer makes its state
# steps that a GPU may be behind when the time limit is checked: enough to keep its queue filled
_IN_FLIGHT = 2


@dataclass(frozen=True)
class RunRecord:
    """What a run left behind.

    losses:       the loss of every step, unscaled
    scales:       the loss scale that every step used; 1.0 where nothing scales
    skipped:      the numbers (from 0) of the steps that the scaler skipped
    step_seconds: the time of every step; the first `warmup` of them are no measurement
    memory:       the bytes of one step, or None
    complete:     False when `max_seconds` ended the run early
    waited:       the share of the time in which the process waited for a CPU; None if not known
    """

    recipe: AnyRecipe
    device: str
    losses: tuple[float, ...]
    scales: tuple[float, ...]
    skipped: tuple[int, ...]
    step_seconds: tuple[float, ...]
    warmup: int
    memory: StepMemory | None
    complete: bool
    waited: float | None = None

    @property
    def timing(self) -> Timing:
        """The steps after the warm-up; of a run that ended in it, the last step alone."""
        return Timing(self.step_seconds[self.warmup :] or self.step_seconds[-1:], self.waited)


def train(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe | str = FP32,
    **options: Any,
) -> RunRecord:
    """Train on every batch once under a recipe and return the record.

    model:   on one device, its parameters fp32
    batches: yields (inputs, targets) on the model's device; a list or anything else that can be
             iterated
    loss_fn: (outputs, targets) → a loss with one element
    options: those of `run`

    Raises ValueError for a model without parameters, no batches, a loss of more than one element,
    an unknown recipe.

    Source: the loop of PyTorch's "Automatic Mixed Precision examples".
    """
    recipe = find_recipe(recipe)
    stepper = recipe.prepare(model, lambda parameters: optimizer, loss_fn)
    return run(stepper, batches, recipe, **options)


def run(
    stepper: Stepper,
    batches: Iterable[tuple[Tensor, Tensor]],
    recipe: AnyRecipe,
    *,
    warmup: int = 3,
    memory: bool = True,
    max_seconds: float | None = None,
    progress: bool = True,
) -> RunRecord:
    """Step through every batch once, with whatever recipe made the stepper, and return the record.

    warmup:  how many steps are no measurement
    memory:  count the bytes of the second step, which is part of the warm-up and never of the
             timing
    max_seconds: a limit for the run: a step begins only if it would end in time at the pace of the
        fastest step so far. The first step always runs, and the second one too if memory is counted
        in it.
    progress: a bar, shown only once the run has taken 3 seconds

    Raises ValueError for no batches, or a loss of more than one element.
    """
    losses: list[Tensor] = []  # left on the device: reading one would make the CPU wait for the GPU

    def step(inputs: Tensor, targets: Tensor) -> None:
        losses.append(stepper.step(inputs, targets))

    timer = StepTimer(stepper.device)
    scales: list[float] = []
    skipped: list[int] = []
    counted: StepMemory | None = None
    scale, skips = stepper.scale, stepper.skipped
    memory_step = min(_MEMORY_STEP, warmup - 1) if memory else -1
    fastest, complete = float("inf"), True
    ends = time.monotonic() + (float("inf") if max_seconds is None else max_seconds)
    with recipe.precision():
        for number, (inputs, targets) in enumerate(_with_bar(batches, progress, recipe)):
            step_began = time.monotonic()
            if number > max(0, memory_step) and step_began + fastest > ends:
                complete = False
                break
            timer.start()
            if number == memory_step:
                work = partial(step, inputs, targets)
                counted = step_memory(stepper.model, stepper.optimizer, work, (inputs, targets))
            else:
                step(inputs, targets)
            timer.stop()
            scales.append(scale)
            scale = stepper.scale  # read once a step: on a GPU, reading it waits for the step
            if stepper.skipped > skips:
                skipped.append(number)
                skips = stepper.skipped
            if max_seconds is not None:
                timer.wait(_IN_FLIGHT)
                fastest = min(fastest, time.monotonic() - step_began)
    if not losses:
        raise ValueError(
            "there is no batch to train on: is the data set empty, or an iterator already used up?"
        )
    return RunRecord(
        recipe=recipe,
        device=str(stepper.device),
        losses=tuple(torch.stack(losses).float().tolist()),
        scales=tuple(scales),
        skipped=tuple(skipped),
        step_seconds=tuple(timer.seconds()),
        warmup=warmup,
        memory=counted,
        complete=complete,
        waited=timer.waited,
    )


def join(records: list[RunRecord]) -> RunRecord:
    """Join records that follow one another in one training, the first one's warm-up included."""
    whole = records[0]
    for part in records[1:]:
        at = len(whole.losses)
        whole = replace(
            whole,
            losses=whole.losses + part.losses,
            scales=whole.scales + part.scales,
            skipped=whole.skipped + tuple(at + number for number in part.skipped),
            step_seconds=whole.step_seconds + part.step_seconds,
            memory=whole.memory or part.memory,
            complete=whole.complete and part.complete,
        )
    return replace(whole, waited=_mean_share(records))


def _mean_share(records: list[RunRecord]) -> float | None:
    """Return the share of all records' time that was spent waiting for a CPU."""
    known = [(one.waited, sum(one.step_seconds)) for one in records if one.waited is not None]
    seconds = sum(taken for _, taken in known)
    return sum(share * taken for share, taken in known) / seconds if seconds else None


def _with_bar(batches: Iterable[Any], progress: bool, recipe: AnyRecipe) -> Iterable[Any]:
    # tqdm's notebook bar overrules TQDM_DISABLE, so it is asked for here: notebooks that are run to
    # be stored set it.
    if not progress or os.environ.get("TQDM_DISABLE"):
        return batches
    from tqdm.auto import tqdm

    return tqdm(batches, desc=recipe.label, delay=3, leave=False, unit="step")
