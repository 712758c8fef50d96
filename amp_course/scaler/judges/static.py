"""Judge a training step with a fixed loss scale: by where `backward()` starts, and by the gradients at the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.stepping import about_clearing
from amp_course.checking.values import fresh
from amp_course.checking.witness import Scene, drawn_seed

_TINY = 2.0**-16  # what the model's outputs are multiplied by: without a scale, most gradients are 0 in fp16
_SIZES = (3, 2)  # micro-batches of the two steps


class Fp16Model(nn.Module):
    """A model that opens its own fp16 region, and whose gradients are far too small for fp16."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.float16):
            outputs = self.body(inputs)
        return outputs.float() * _TINY


def judge(answer: Callable[..., Any]) -> None:
    """`static_step(model, batches, loss_fn, optimizer, scale)`: one step on the mean loss of the micro-batches."""
    seed, scale = drawn_seed(), 2.0 ** int(torch.randint(10, 15, (), generator=fresh()))
    wanted = _right_gradients(seed, scale)
    scene = Scene(seed, sum(_SIZES))
    model, rate, done = Fp16Model(scene.model), scene.optimizer.param_groups[0]["lr"], 0
    for number, size in enumerate(_SIZES):
        before = scene.weights()
        answer(model, scene.batches[done : done + size], scene.loss_fn, scene.optimizer, scale)
        _count(scene, number, done + size)
        starts = scene.notes.backward_scales[done:]
        rate_then = scene.optimizer.param_groups[0]["lr"]
        _compare(scene, wanted, number, starts, scale, _shrank(before, scene.weights()), rate_then != rate)
        if not torch.allclose(torch.cat([w.flatten() for w in scene.weights()]), _stepped(before, scene, rate)):
            raise Wrong(
                "the gradients were right at the step, and the weights are not where the step puts them: leave them to "
                "`optimizer.step()`, and its learning rate as it is"
            )
        done += size
        for parameter in scene.model.parameters():  # what is kept must not count in the next step
            if parameter.grad is not None and bool(parameter.grad.any()):
                parameter.grad.fill_(1e3 * scale)


def _right_gradients(seed: int, scale: float) -> list[Tensor]:
    """Return the flat gradients at both steps, and the first step's last micro-batch alone, by torch's scaler."""
    found = []
    for parts in (_SIZES, (1,)):
        scene, done = Scene(seed, sum(_SIZES)), _SIZES[0] - 1 if parts == (1,) else 0
        model, scaler = Fp16Model(scene.model), torch.amp.GradScaler("cpu", init_scale=scale)
        for size in parts:
            for inputs, targets in scene.batches[done : done + size]:
                scaler.scale(scene.loss_fn(model(inputs), targets) / size).backward()
            scaler.step(scene.optimizer)
            scaler.update()
            scene.optimizer.zero_grad()
            done += size
        found += [_flat(gradients) for gradients in scene.notes.step_gradients]
    return found


def _flat(gradients: list[Tensor | None]) -> Tensor:
    if any(gradient is None for gradient in gradients):
        raise Wrong(
            "a parameter has no gradient when the optimizer steps: call `backward()` first, and clear after the step"
        )
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def _shrank(before: list[Tensor], now: list[Tensor]) -> bool:
    return all(float(b.norm()) < 0.1 * float(a.norm()) for a, b in zip(before, now, strict=True))


def _stepped(before: list[Tensor], scene: Scene, rate: float) -> Tensor:
    return torch.cat([w.flatten() for w in before]) - rate * _flat(scene.notes.step_gradients[-1])


def _count(scene: Scene, number: int, batches: int) -> None:
    seen = scene.notes.count()
    if seen["backward"] < batches:
        raise Wrong(
            f"`backward()` ran {seen['backward']} times for {batches} micro-batches: each has its own, and the gradients add up"
        )
    if seen["step"] < number + 1:
        raise Wrong("`optimizer.step()` did not run: the weights never learn")
    if seen["step"] > number + 1:
        raise Wrong(
            "`optimizer.step()` ran more than once: the micro-batches are one batch, and one batch makes one step"
        )


def _compare(
    scene: Scene, wanted: list[Tensor], number: int, starts: list[float], scale: float, shrank: bool, other_rate: bool
) -> None:
    got, want, size = _flat(scene.notes.step_gradients[number]), wanted[number], _SIZES[number]
    times = float(got @ want / (want @ want))
    unscaled = all(start <= 1.0 for start in starts)
    right = _near(got, want)
    if shrank:
        raise Wrong(
            f"the weights were divided by the scale: they are {scale:,.0f} times smaller now. What carries the scale are "
            "the gradients, `parameter.grad`"
        )
    if other_rate and _near(got, want * scale):
        raise Wrong(
            "the scale was taken out of the learning rate instead of the gradients. That is right for plain SGD only: weight "
            "decay, clipping, Adam's epsilon and a momentum that outlives a change of the scale see gradients "
            f"{scale:,.0f} times too large. Divide `parameter.grad`"
        )
    if unscaled and _near(got, want * scale, 0.7):
        raise Wrong(
            "the gradients were multiplied by the scale after `backward()`: what fp16 had lost on the way was 0 by then, and "
            "stays 0. Scale the loss, before `backward()`"
        )
    if unscaled and _near(got * scale, want, 0.7):
        raise Wrong(
            "the gradients were divided by a scale that the loss never had: `backward()` started from the plain loss. Call "
            "`(loss * scale).backward()`"
        )
    if unscaled and not right:
        raise Wrong(
            f"`backward()` started from the plain loss, and {float((got == 0).float().mean()):.0%} of the gradients are 0. The "
            "scale has to be in the loss when `backward()` runs; divide the gradients by it afterwards, not the loss before"
        )
    if right:
        return
    if not got.isfinite().all():
        raise Wrong("gradients are inf or NaN at the step: is the scale applied twice, or the loss scaled in fp16?")
    if bool(got.any()) and scene.notes.between("backward", "step", "zero_grad"):
        raise Wrong(
            "the gradients were cleared between two micro-batches, so that only the last one counts: clear once a step, before "
            "the loop or after the step"
        )
    about_clearing(scene, "step")
    tail = wanted[2] / size if number == 0 else None
    if tail is not None and any(_near(got, tail * factor) for factor in (1.0, size)):
        raise Wrong(
            "only the last micro-batch is left of the gradients. Unscaling inside the loop divides what the earlier ones "
            "left, again and again: unscale once, after the last `backward()`"
        )
    raise Wrong(_by_factor(times, scale, size, number, got, want))


def _by_factor(times: float, scale: float, size: int, number: int, got: Tensor, want: Tensor) -> str:
    for factor, why in (
        (
            scale,
            f"{scale:,.0f} times too large: they still carry the scale. Divide each `parameter.grad` by it before the step",
        ),
        (1 / scale, f"{scale:,.0f} times too small: they were divided by the scale twice"),
        (
            size,
            f"{size} times too large: the mean over {size} micro-batches is wanted, `loss / len(batches)`, not the sum",
        ),
        (1 / size, f"{size} times too small: the mean over the micro-batches was taken twice"),
        (
            scale * size,
            f"{scale * size:,.0f} times too large: neither the scale nor the number of micro-batches is out",
        ),
    ):
        if _near(got, want * factor):
            return f"the gradients at the step are {why}"
    if number:
        return (
            "the second step is not the right one: it began with the gradients of the first. Call `optimizer.zero_grad()` once "
            "a step"
        )
    return f"the gradients at the step are not the right ones; along these they are {times:.3g} times as large"


def _near(got: Tensor, want: Tensor, tolerance: float = 0.02) -> bool:
    return float((got - want).norm()) <= tolerance * float(want.norm())
