"""Judge a training step by what it does: dtypes, order of calls, gradients at the step, the loss curve."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Wrong
from amp_course.checking.stepping import about_clearing, about_passes, about_step
from amp_course.checking.witness import Scene, drawn_seed
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, Recipe
from amp_course.loop.train import RunRecord, train

# What the scaler says of a step that was put together wrongly; the notes tell which call is at fault.
_SCALER_SAYS = re.compile(r"inf checks|_scale is None|already been called|FP16 gradients")


def judge_autocast(answer: Callable[..., Any]) -> None:
    """`train_step(model, inputs, targets, loss_fn, optimizer)` under bf16 autocast → the loss."""
    seed, steps = drawn_seed(), 5
    scene = Scene(seed, steps)
    losses = _play(answer, scene, AMP_BF16)
    record, weights = _reference(seed, steps, AMP_BF16)
    _same_curve(scene, losses, record, weights)


def judge_scaler(answer: Callable[..., Any]) -> None:
    """`train_step(model, inputs, targets, loss_fn, optimizer, scaler)` in fp16 → the loss, unscaled.

    One batch overflows, so one step must be skipped and the scale halved; a growth comes after.
    """
    seed, steps = drawn_seed(), 7
    options: dict[str, Any] = {"init_scale": 2.0**10, "growth_interval": 3}
    scene = Scene(seed, steps, overflow_at=(2,), scaler=options)
    losses = _play(answer, scene, AMP_FP16)
    record, weights = _reference(seed, steps, AMP_FP16, overflow_at=(2,), scaler=options)
    _same_curve(scene, losses, record, weights)


def _play(answer: Callable[..., Any], scene: Scene, recipe: Recipe) -> list[float]:
    """Run the answer on every batch; on an exception, tell the cause that the notes show, if they show one."""
    losses = []
    scaler = () if scene.scaler is None else (scene.scaler,)
    for number, (inputs, targets) in enumerate(scene.batches):
        try:
            loss = answer(scene.model, inputs, targets, scene.loss_fn, scene.optimizer, *scaler)
        except (AssertionError, RuntimeError, ValueError) as error:
            if _SCALER_SAYS.search(str(error)):
                _diagnose(scene, number + 1, recipe)
            raise
        if number == 0:
            _diagnose(scene, 1, recipe)
        if loss is None:
            raise Wrong("your function returned None: give the loss back with `return`")
        if (isinstance(loss, Tensor) and loss.numel() != 1) or not isinstance(loss, (Tensor, float, int)):
            raise Wrong(f"your function returned a {type(loss).__name__} that is not one number: return the loss")
        losses.append(loss.item() if isinstance(loss, Tensor) else float(loss))
    _diagnose(scene, len(scene.batches), recipe)
    return losses


def _reference(
    seed: int, steps: int, recipe: Recipe, overflow_at: tuple[int, ...] = (), scaler: dict[str, Any] | None = None
) -> tuple[RunRecord, list[Tensor]]:
    scene = Scene(seed, steps, overflow_at=overflow_at, scaler=scaler)
    record = train(
        scene.model,
        scene.batches,
        scene.loss_fn,
        scene.optimizer,
        recipe,
        scaler=scene.scaler,
        memory=False,
        progress=False,
    )
    return record, scene.weights()


def _diagnose(scene: Scene, steps: int, recipe: Recipe) -> None:
    """Raise `Wrong` for the first fault that the notes of `steps` steps show."""
    assert recipe.dtype is not None
    about_passes(scene, steps, recipe.dtype)
    if scene.scaler is None:
        about_step(scene, steps)
    else:
        _about_scaler(scene, steps)


def _about_scaler(scene: Scene, steps: int) -> None:
    notes, seen = scene.notes, scene.notes.count()
    scale = notes.backward_scales[0]
    if seen["scale"] == 0 and scale != 1.0:
        raise Wrong(
            "the loss was scaled, and not by the scaler that was handed in. A new one in each step forgets its scale and "
            "its streak of clean steps: use `scaler`"
        )
    if scale == 1.0:
        raise Wrong(
            "the loss was not scaled: `backward()` started from 1.0, so gradients below fp16's smallest number are lost as "
            "before. Call `scaler.scale(loss).backward()`"
        )
    if notes.stray_steps:
        raise Wrong(
            f"`optimizer.step()` was called directly: it applied gradients {scale:,.0f} times too large, and would apply "
            "inf and NaN too. `scaler.step(optimizer)` divides by the scale first and skips a step that overflowed"
        )
    about_clearing(scene, "scaler.step")
    if seen["scaler.step"] < steps:
        raise Wrong(
            f"`scaler.step(optimizer)` ran {seen['scaler.step']} times in {steps} steps: the weights never learn"
        )
    if seen["update"] < steps:
        raise Wrong(
            f"`scaler.update()` ran {seen['update']} times in {steps} steps: the scale would stay where it began, too large "
            "for ever after an overflow. Call it after every `scaler.step(optimizer)`, skipped or not"
        )


def _same_curve(scene: Scene, losses: list[float], record: RunRecord, weights: list[Tensor]) -> None:
    got, expected = torch.tensor(losses), torch.tensor(record.losses)
    for number, scale in enumerate(record.scales):
        if scale != 1.0 and torch.isclose(got[number], expected[number] * scale, rtol=1e-3):
            raise Wrong(
                f"the returned loss is {scale:,.0f} times too large: that is the scaled one, good for `backward()` only. "
                "Return the loss itself"
            )
    if not torch.allclose(got, expected, rtol=2e-3, atol=1e-4, equal_nan=True):
        first = int((~torch.isclose(got, expected, rtol=2e-3, atol=1e-4, equal_nan=True)).nonzero()[0])
        raise Wrong(
            f"the loss curve leaves the right one at step {first}: {got[first]:.5g} instead of {expected[first]:.5g}"
            f"{_gradient_hint(scene, record)}"
        )
    if not all(
        torch.allclose(a, b.detach(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(weights, scene.model.parameters(), strict=True)
    ):
        raise Wrong(f"the weights after the last step are not the right ones{_gradient_hint(scene, record)}")


def _gradient_hint(scene: Scene, record: RunRecord) -> str:
    """Compare the first step's gradient with the right one, whose norm the first two losses do not tell."""
    if scene.scaler is None or not scene.notes.step_gradients:
        return ""
    norm = sum(float(g.norm()) for g in scene.notes.step_gradients[0] if g is not None)
    if norm < 50 / record.scales[0]:
        return (
            ": the gradients were divided by the scale more than once. `scaler.step(optimizer)` does it, unless you called "
            "`scaler.unscale_` before; never do it by hand as well"
        )
    return ""
