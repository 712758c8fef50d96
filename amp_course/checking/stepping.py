"""Say what is wrong with a watched training step: its parameters, its autocast region, its passes, its step.

Each function raises `Wrong` for the first fault that the notes of a `Scene` show, and returns if there is none.
"""

from __future__ import annotations

from collections import Counter

import torch

from amp_course.checking.exercise import Wrong
from amp_course.checking.values import dtype_name
from amp_course.checking.witness import Notes, Scene


def about_passes(scene: Scene, steps: int, dtype: torch.dtype) -> None:
    """Look at fp32 parameters, forward pass and loss under autocast to `dtype`, and one `backward()` a step outside of it."""
    _about_parameters(scene)
    _about_autocast(scene.notes, dtype)
    _about_backward(scene.notes.count(), steps)


def _about_parameters(scene: Scene) -> None:
    dtypes = {parameter.dtype for parameter in scene.model.parameters()}
    if dtypes != {torch.float32}:
        names = " and ".join(sorted(dtype_name(dtype) for dtype in dtypes))
        raise Wrong(
            f"the model's parameters are {names} now: `.half()` and `.bfloat16()` convert the weights themselves. Under AMP "
            "they stay float32 and autocast casts copies, op by op"
        )


def _about_autocast(notes: Notes, dtype: torch.dtype) -> None:
    wanted = dtype_name(dtype)
    seen = set(notes.layer_dtypes)
    if not seen:
        raise Wrong("the model was never called: the forward pass is `model(inputs)`")
    if seen == {torch.float32}:
        raise Wrong(
            "the forward pass ran outside of autocast: the first Linear gave float32. Put `model(inputs)` inside "
            f"`with torch.autocast(inputs.device.type, dtype=torch.{wanted}):`"
        )
    if seen != {dtype}:
        raise Wrong(
            f"the first Linear gave {dtype_name(notes.layer_dtypes[0])}, and the task asks for {wanted}: hand autocast "
            f"`dtype=torch.{wanted}`"
        )
    if not notes.loss_in_autocast:
        raise Wrong("`loss_fn` was never called: the loss is `loss_fn(model(inputs), targets)`")
    if not all(notes.loss_in_autocast):
        raise Wrong(
            f"the loss was computed outside of the autocast region, in {dtype_name(notes.loss_dtypes[0])}: inside, "
            "autocast runs cross-entropy in float32, and out here nobody does. Move `loss_fn` into the `with` block"
        )
    if any(notes.backward_in_autocast):
        raise Wrong(
            "`backward()` ran inside the autocast region. There autocast casts the ops of the backward pass as well, which "
            "can change gradients; PyTorch advises against it. End the `with` block before `backward()`"
        )


def _about_backward(seen: Counter[str], steps: int) -> None:
    if seen["backward"] < steps:
        raise Wrong(f"`backward()` ran {seen['backward']} times in {steps} steps: without it there are no gradients")
    if seen["forward"] > steps:
        raise Wrong(f"the model ran {seen['forward']} times in {steps} steps: one forward pass a step is enough")


def about_step(scene: Scene, steps: int) -> None:
    """Look for one `optimizer.step()` a training step, with gradients, and cleared ones after it."""
    seen = scene.notes.count()
    if seen["step"] < steps:
        raise Wrong(f"`optimizer.step()` ran {seen['step']} times in {steps} steps: the weights never learn")
    about_clearing(scene, "step")


def about_clearing(scene: Scene, step: str) -> None:
    """Look whether gradients live from `backward()` to the event `step`, and no longer."""
    if scene.notes.between("backward", step, "zero_grad"):
        raise Wrong(
            "the gradients were cleared between `backward()` and the step, so the step has nothing to apply: call "
            "`optimizer.zero_grad()` before `backward()` or after the step"
        )
    kept = any(parameter.grad is not None for parameter in scene.model.parameters())
    if scene.notes.count()["zero_grad"] == 0 and kept:
        raise Wrong(
            "the gradients are never cleared, so every step adds the old ones to the new: call `optimizer.zero_grad()` once "
            "a step"
        )
