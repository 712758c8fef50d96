"""Judge clipping under a scaler: by the norm that came back, and the gradients that the optimizer got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import number
from amp_course.checking.values import fresh
from amp_course.checking.witness import Notes, WatchedScaler, WatchedSGD

INF = float("inf")
_CLOSE = 1e-3


class ClipScene:
    """Two parameters with drawn gradients of a wanted norm, under a watched scaler."""

    def __init__(self, scale: float, start: list[Tensor]) -> None:
        self.notes = Notes()
        self.parameters = [nn.Parameter(value.clone()) for value in start]
        self.optimizer = WatchedSGD(self.parameters, lr=0.1, notes=self.notes)
        self.scaler = WatchedScaler(self.notes, init_scale=scale, growth_interval=3)
        self.optimizer.has_scaler = True
        self.before_step: list[Tensor] = []  # the weights, as the optimizer finds them
        self.optimizer.register_step_pre_hook(self._about_to_step)

    def _about_to_step(self, *_: Any) -> None:
        self.before_step = [parameter.detach().clone() for parameter in self.parameters]

    def loss(self, gradients: list[Tensor]) -> Tensor:
        """Return a loss that has these gradients."""
        parts = [(p * g).sum() for p, g in zip(self.parameters, gradients, strict=True)]
        return torch.stack(parts).sum()


def judge(answer: Callable[..., Any]) -> None:
    """`clipped_step(loss, parameters, optimizer, scaler, max_norm)` → the norm of the true gradients, before clipping."""
    generator = fresh()
    scale = 2.0 ** int(torch.randint(10, 17, (), generator=generator))
    max_norm = 1.0 + 4.0 * float(torch.rand((), generator=generator))
    scene = ClipScene(scale, [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)])
    # Above and below the limit, one overflow, and a growth at the end.
    for turn, size in enumerate((6.0, 0.4, INF, 3.0, 0.6, 9.0, 2.0)):
        gradients = [torch.randn(p.shape, generator=generator) for p in scene.parameters]
        gradients = [g * (max_norm * min(size, 5.0) / _norm(gradients)) for g in gradients]
        if size == INF:
            gradients[1][3] = INF
        _play(answer, scene, gradients, max_norm, turn)


def _play(answer: Callable[..., Any], scene: ClipScene, gradients: list[Tensor], max_norm: float, turn: int) -> None:
    scale, before = scene.scaler.get_scale(), [parameter.detach().clone() for parameter in scene.parameters]
    scene.optimizer.zero_grad()
    scene.scaler.scale(torch.ones(()))  # so that the scaler knows its scale, whoever multiplies the loss
    first = len(scene.notes.events)
    try:
        got = answer(scene.loss(gradients), scene.parameters, scene.optimizer, scene.scaler, max_norm)
    except RuntimeError as error:
        if "already been called" in str(error) and scene.notes.count()["update"] == 0 < turn:
            raise Wrong(_NO_UPDATE) from error
        if "non-finite" in str(error):
            raise Wrong(
                "`error_if_nonfinite` stops the training at an overflow, which the scaler is there to skip: leave it out"
            ) from error
        raise
    seen = scene.notes.events[first:]
    if _finite(gradients) and "scaler.step" not in seen and "step" not in seen:
        raise Wrong("no step was taken: `scaler.step(optimizer)` is missing")
    _about_gradients(scene, gradients, before, max_norm, scale, got)
    if "update" not in seen:
        raise Wrong(_NO_UPDATE)
    _about_norm(got, gradients, scale)


_NO_UPDATE = (
    "`scaler.update()` is missing: the scale never adapts, and the next `unscale_` or `step` finds the scaler still in "
    "this one. Call it once a step, skipped or not"
)
_STRAY = (
    "`optimizer.step()` was called by hand: nothing skips the step that overflowed. After `scaler.unscale_(optimizer)`, too, "
    "the step is `scaler.step(optimizer)`, which knows that the gradients are unscaled already"
)


def _about_gradients(
    scene: ClipScene, gradients: list[Tensor], before: list[Tensor], max_norm: float, scale: float, got: Any
) -> None:
    seen, scene.notes.step_gradients = scene.notes.step_gradients, []
    if not _finite(gradients):
        if seen:
            raise Wrong(
                _STRAY if scene.notes.stray_steps else "a step with inf in its gradients was taken: the scaler skips it"
            )
        return
    if not seen:
        raise Wrong("a step with finite gradients was not taken: `scaler.step(optimizer)` does that automatically")
    at_step = [g for g in seen[0] if g is not None]
    if len(at_step) < len(gradients):
        raise Wrong(
            "the optimizer had no gradients: call `scaler.scale(loss).backward()` first, and clear after the step"
        )
    if not _alike(scene.before_step, before):
        raise Wrong(
            "the weights changed before the step: what is clipped are the gradients, `parameter.grad`, not the parameters"
        )
    norm = _norm(gradients)
    wanted = [g * min(1.0, max_norm / norm) for g in gradients]
    if _alike(at_step, wanted):
        return
    size = _norm(at_step)
    told = f"the gradients at the step have the norm {size:.4g}, and {min(norm, max_norm):.4g} is right"
    if scene.notes.stray_steps and _close(size, norm * scale):
        raise Wrong(f"{_STRAY}; and here they are not: they are {scale:,.0f} times too large")
    if _close(size, max_norm / scale) and norm * scale > max_norm and not _is_twice(got, norm):
        raise Wrong(
            f"your norm is {scale:,.0f} times too large: you clipped before unscaling. Every gradient is cut then, to "
            f"{max_norm / scale:.3g} instead of {max_norm:.3g}. Call `scaler.unscale_(optimizer)` first"
        )
    if _close(size, min(norm, max_norm) / scale):
        raise Wrong(
            f"the gradients were divided by the scale twice, and are {scale:,.0f} times too small: once by hand, and again in "
            "`scaler.step`, which cannot know of it. Unscale by `scaler.unscale_(optimizer)`, which it remembers"
        )
    if _close(size, norm) and norm > max_norm:
        now = [p.grad for p in scene.parameters if p.grad is not None]
        if len(now) == len(gradients) and _norm(now) <= max_norm * (1 + _CLOSE):
            raise Wrong(f"you clipped after the step, when the optimizer had used the gradients: {told}")
        raise Wrong(f"the optimizer got the gradients unclipped: {told}")
    if norm < max_norm and _close(size, max_norm):
        raise Wrong(f"{told}: gradients below the limit were made larger. Clip only if the norm exceeds it")
    apart = [g * min(1.0, max_norm / _norm([g])) for g in gradients]
    if _alike(at_step, apart):
        raise Wrong(
            f"{told}: each parameter was clipped on its own, which turns the gradient. The norm is that of all together"
        )
    if max(float(g.abs().max()) for g in at_step) <= max_norm * (1 + _CLOSE) and size > max_norm:
        raise Wrong(f"{told}: elements were clipped, and the norm of all of them was wanted, `clip_grad_norm_`")
    raise Wrong(f"{told}. Unscale, clip by norm, step, in this order")


def _about_norm(got: Any, gradients: list[Tensor], scale: float) -> None:
    norm = _norm(gradients)
    value = number(got, "the norm")
    if not _finite(gradients) or _close(value, norm):
        return
    if _close(value, norm * scale):
        raise Wrong(
            f"the step is right, and the norm that you return is that of the scaled gradients, {scale:,.0f} times too large: "
            "divide it by the scale for the log"
        )
    if value < norm:
        raise Wrong(
            f"the norm before clipping is {norm:.4g}, and you return {value:.4g}: is it measured after clipping? "
            "`clip_grad_norm_` returns the one before"
        )
    raise Wrong(f"the norm of the true gradients is {norm:.4g}, and you return {value:.4g}")


def _is_twice(got: Any, norm: float) -> bool:
    """Tell whether the answer saw the true norm: then it unscaled before clipping, and something divided again."""
    try:
        return _close(float(got), norm)
    except (TypeError, ValueError, RuntimeError):
        return False


def _finite(gradients: list[Tensor]) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=_CLOSE, atol=1e-9) for a, b in zip(some, others, strict=True))


def _close(value: float, other: float) -> bool:
    return abs(value - other) <= _CLOSE * abs(other)
