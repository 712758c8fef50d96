"""Train and keep a record: the tested twin of the loops in the cells of chapter 06."""

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

_MEMORY_STEP = 1  # the second step: in the first one an optimizer makes its state
_IN_FLIGHT = 2  # steps that a GPU may lag behind, so that its queue stays filled


@dataclass(frozen=True)
class RunRecord:
    """What happened in a run.

    losses:       the loss of every step, unscaled
    scales:       the loss scale of every step; 1.0 without a scaler
    skipped:      the steps, counted from 0, that the scaler skipped
    step_seconds: the time of every step; the first `warmup` of them are not a measurement
    memory:       the bytes of one step, or None
    complete:     False if `max_seconds` ended the run early
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
        """The steps after the warm-up; the last step alone if the run ended in the warm-up."""
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
    batches: (inputs, targets) on the model's device
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
    """Step through every batch once, and return the record.

    recipe:  the one that made the stepper
    warmup:  how many steps are not a measurement
    memory:  count the bytes of the second step, which is part of the warm-up and not timed
    max_seconds: a limit for the run: a step begins only if it would end in time at the pace of the
        fastest step so far. The first step always runs, as does the second one if memory is counted
        in it.
    progress: a bar, shown only once the run has taken 3 seconds

    Raises ValueError for no batches, or a loss of more than one element.
    """
    losses: list[Tensor] = []  # stay on the device: reading one would make the CPU wait for the GPU

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
            # both are read once a step: on a GPU, reading them waits for the step
            scale = stepper.scale
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
    """Join the records of one training's parts; the first one's warm-up is included."""
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
    known = [(of.waited, sum(of.step_seconds)) for of in records if of.waited is not None]
    seconds = sum(taken for _, taken in known)
    return sum(share * taken for share, taken in known) / seconds if seconds else None


def _with_bar(batches: Iterable[Any], progress: bool, recipe: AnyRecipe) -> Iterable[Any]:
    # tqdm's notebook bar ignores TQDM_DISABLE, which is set where notebooks are run to be stored
    if not progress or os.environ.get("TQDM_DISABLE"):
        return batches
    from tqdm.auto import tqdm

    return tqdm(batches, desc=recipe.label, delay=3, leave=False, unit="step")
