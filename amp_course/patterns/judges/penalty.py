"""Judge a gradient penalty under autocast and a scaler: by the gradient at the step, beside fp32's double backward."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.stepping import about_clearing
from amp_course.checking.values import fresh
from amp_course.checking.witness import Scene, WatchedLoss, drawn_seed
from amp_course.patterns.judges.gradients import flat, near

TINY = 2.0**-18  # what the loss is multiplied by: without a scale, fp16 loses most of its gradients


class TinyLoss(WatchedLoss):
    """Cross-entropy times a small number, with the notes of a watched loss."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets) * TINY
        self.notes.events.append("loss")
        self.notes.loss_in_autocast.append(torch.is_autocast_enabled(outputs.device.type))
        if loss.requires_grad:
            loss.register_hook(self._backward)
        return loss


Penalty = Callable[[list[Tensor]], Tensor]


def whole(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together."""
    return torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()


def judge(answer: Callable[..., Any]) -> None:
    """`penalty_step(model, inputs, targets, loss_fn, optimizer, scaler, weight)`: a step on loss and penalty."""
    generator = fresh()
    weight = 1.5 + 1.5 * float(torch.rand((), generator=generator))
    first = int(torch.randint(9, 12, (), generator=generator))
    for exponent in (first, first + 4):  # one scale, and one 16 times larger: the gradient must be the same
        scene = Scene(drawn_seed(), 3, overflow_at=(1,), scaler={"init_scale": 2.0**exponent, "growth_interval": 100})
        scene.model[1] = nn.Tanh()  # with second derivatives that are not 0
        scene.loss_fn = TinyLoss(scene.notes)
        scene.optimizer.param_groups[0]["lr"] = 1.0 / TINY / 10
        for number in range(len(scene.batches)):
            _play(answer, scene, number, weight)


def _play(answer: Callable[..., Any], scene: Scene, number: int, weight: float) -> None:
    inputs, targets = scene.batches[number]
    assert scene.scaler is not None
    scale = scene.scaler.get_scale()
    model = copy.deepcopy(scene.model)
    model[0]._forward_hooks.clear()  # the copy is the oracle's, and takes no notes
    steps, passes = len(scene.notes.step_gradients), len(scene.notes.backward_scales)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*backward\\(\\) with create_graph=True")
        answer(scene.model, inputs, targets, scene.loss_fn, scene.optimizer, scene.scaler, weight)
    _about_passes(scene, scene.notes.backward_scales[passes:], number)
    seen = scene.notes.step_gradients[steps:]
    if number == 1:
        if seen:
            raise Wrong("a batch overflowed, and the step was made anyway: `scaler.step` would have skipped it")
        return
    if not seen:
        raise Wrong(
            "a clean step was skipped: its gradients were inf or NaN. Was something scaled twice, or not cleared "
            "after the step that overflowed?"
        )
    if any(gradient is None for gradient in seen[0]):
        raise Wrong("the optimizer stepped without gradients: clear them before the passes, or after the step")
    _about_gradient(
        flat(g for g in seen[0] if g is not None),
        lambda penalty, share=1.0: _fp32(model, inputs, targets, penalty, share),
        scene,
        scale,
        weight,
    )
    about_clearing(scene, "scaler.step")


def _fp32(model: nn.Module, inputs: Tensor, targets: Tensor, penalty: Penalty | None, share: float) -> Tensor:
    """Return the flat fp32 gradient of share · loss + penalty(∇ loss)."""
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(inputs), targets) * TINY
    total = loss * share
    if penalty is not None:
        total = total + penalty(list(torch.autograd.grad(loss, parameters, create_graph=True)))
    return flat(torch.autograd.grad(total, parameters, allow_unused=False))


def _about_passes(scene: Scene, starts: list[float], number: int) -> None:
    notes, seen = scene.notes, scene.notes.count()
    if notes.layer_dtypes[-1:] != [torch.float16]:
        raise Wrong(
            "the forward pass did not run under fp16 autocast: put the model's call and the loss into the region"
        )
    if not all(notes.loss_in_autocast):
        raise Wrong("the loss was computed outside of the autocast region: move `loss_fn` into the `with` block")
    if notes.stray_steps:
        raise Wrong("`optimizer.step()` was called directly: `scaler.step(optimizer)` divides by the scale and skips")
    if len(starts) < 2:
        raise Wrong(
            f"{len(starts)} backward pass over the loss was seen, and a penalty takes two: `torch.autograd.grad(…, "
            "create_graph=True)` for its gradients, then `backward()` on loss and penalty together"
        )
    if starts[0] == 1.0 and starts[-1] != 1.0:
        raise Wrong(
            "the first pass started from the plain loss, and fp16 lost the small gradients on the way. Scale the loss for "
            "`torch.autograd.grad`, too, and divide what it returns by `scaler.get_scale()`"
        )
    if starts[-1] == 1.0:
        raise Wrong(
            "the second pass started from the plain sum of loss and penalty, and `scaler.step` divides its gradients by a "
            "scale that they never had. `scaler.scale(loss + penalty).backward()`"
        )
    if seen["scaler.step"] < number + 1 or seen["update"] < number + 1:
        raise Wrong("`scaler.step(optimizer)` and `scaler.update()` have to run once a step")


def _about_gradient(got: Tensor, fp32: Callable[..., Tensor], scene: Scene, scale: float, weight: float) -> None:
    want = fp32(lambda g: weight * whole(g))
    if near(got, want):
        return
    told = f"the gradient at the step is {float((got - want).norm() / want.norm()):.0%} away from that in fp32"
    plain = fp32(None)
    for other, why in (
        (
            plain,
            "the penalty has no effect. Its gradients need a graph of their own, `create_graph=True`, and nothing "
            "may cut it: no `detach`, `item` or `no_grad`",
        ),
        (
            fp32(lambda g: weight * whole([scale * one for one in g])),
            f"the penalty was computed on scaled gradients and is {scale:,.0f} times too large. Divide what "
            "`autograd.grad` returned by `scaler.get_scale()` before the norm",
        ),
        (
            fp32(lambda g: weight * whole(g) / scale),
            "the penalty was divided by the scale once more than it was scaled, and hardly counts",
        ),
        (
            want + plain,
            "the first pass left its gradients in `parameter.grad`, and the second added to them. "
            "`torch.autograd.grad` returns gradients and adds nothing",
        ),
        (fp32(lambda g: weight * whole(g), 0.0), "the penalty went backward without the loss: add the two"),
        (fp32(whole), "the penalty is to be multiplied by `weight`"),
        (
            fp32(lambda g: weight * torch.stack([one.norm() for one in g]).sum()),
            "the norm is that of all gradients together, and you added up the norms of each parameter's",
        ),
        (want * scale, "the gradients still carry the scale"),
        (want / scale, "the gradients were divided by the scale twice"),
    ):
        if near(got, other):
            raise Wrong(f"{told}: {why}")
    if scene.notes.count()["zero_grad"] == 0:
        raise Wrong(f"{told}: the gradients are never cleared")
    raise Wrong(f"{told}, at a scale of {scale:,.0f}: unscale the first gradients, not those of the penalty")
