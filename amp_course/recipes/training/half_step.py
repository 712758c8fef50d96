"""Record a training step of a pure fp16 model and the same step in fp32, to show why it fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class HalfStep:
    """What a step of a half model computed, without a loss scale.

    outputs:         name of a module → its output in fp16, in the order of the forward pass
    loss:            the loss in fp16, one number
    gradients:       name of a parameter → its gradient in fp16, in the order of the backward pass
    exact_gradients: the same from the same weights, computed in float32
    weights:         name of a parameter → its value in fp16 before the step
    lr:              the learning rate of the following SGD step
    """

    outputs: dict[str, Tensor]
    loss: Tensor
    gradients: dict[str, Tensor]
    exact_gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    lr: float


def record_half_step(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    lr: float,
) -> HalfStep:
    """Run forward and backward of one copy of `model` in fp16 and of another in float32.

    inputs, targets: floating ones are rounded to fp16 for both
    Example: record_half_step(nn.Linear(4, 2), x, y, mse_loss, 0.1).loss.dtype → torch.float16
    """
    half = copy.deepcopy(model).half()
    exact = copy.deepcopy(half).float()  # the rounded weights: only the arithmetic differs
    outputs: dict[str, Tensor] = {}
    order: list[str] = []
    for name, module in half.named_modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda _, args, output, name=name: outputs.update({name: output.detach()})
            )
    for name, parameter in half.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    weights = {name: parameter.detach().clone() for name, parameter in half.named_parameters()}
    x, y = (batch.half() if batch.is_floating_point() else batch for batch in (inputs, targets))
    loss = loss_fn(half(x), y)
    loss.backward()
    x, y = (batch.float() if batch.is_floating_point() else batch for batch in (x, y))
    loss_fn(exact(x), y).backward()
    found, wanted = (
        {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
        for twin in (half, exact)
    )
    gradients = {name: found[name] for name in order}
    exact_gradients = {name: wanted[name] for name in order}
    return HalfStep(outputs, loss.detach(), gradients, exact_gradients, weights, lr)
