"""How far the gradients of a partly trained GPT are from fp32's, in one step and in the mean over
draws of the rounding.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.frontiers.experiments.training import CONTEXT, char_text, pretrained_gpt
from amp_course.frontiers.experiments.variants import Variant
from amp_course.kit.data import text_batches
from amp_course.kit.models import CharGPT
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread


@dataclass(frozen=True)
class GradientError:
    """Of one variant: the norm of a gradient's error over the norm of the gradient.

    single: of one step, the mean over draws
    mean:   of the mean gradient of all draws: the part of `single` that does not average out
    """

    variant: str
    single: float
    mean: float


def gradient_errors(
    variants: Sequence[Variant],
    *,
    draws: int = 8,
    steps: int = 60,
    stretches: int = 16,
) -> list[GradientError]:
    """Train a small GPT in fp32, then compute the gradient of one more batch under each variant,
    `draws` times.

    steps:     of the training, after which gradients are smaller and less alike than at the start
    stretches: of text in the batch, up to 16, of 64 tokens each; the mean loss divides its
               gradients by the number of tokens
    """
    with same_random_state(), one_thread():
        model, (inputs, targets) = partly_trained_gpt(steps)
        last = inputs[:stretches], targets[:stretches]
        exact = _gradient(model, last)
        found = []
        for variant in variants:
            gradients: list[Tensor] = []
            for draw in range(draws):
                rounded = copy.deepcopy(model)
                variant.convert(rounded, seed=draw)
                gradients.append(_gradient(rounded, last, variant.saving(seed=draw)))
                if draw == 1 and torch.equal(*gradients):
                    break  # nothing is drawn
            single = sum(_distance(gradient, exact) for gradient in gradients) / len(gradients)
            mean = _distance(torch.stack(gradients).mean(0), exact)
            found.append(GradientError(variant.name, single, mean))
    return found


def partly_trained_gpt(steps: int = 60) -> tuple[CharGPT, tuple[Tensor, Tensor]]:
    """Return a small GPT after some steps of training in fp32, with one more batch."""
    model, last = _trained(steps)
    return copy.deepcopy(model), last


@functools.lru_cache(maxsize=1)
def _trained(steps: int) -> tuple[CharGPT, tuple[Tensor, Tensor]]:
    model = pretrained_gpt(CONTEXT, 16, steps, seed=0)
    *_, last = text_batches(char_text(), 16, CONTEXT, steps + 1)
    return model, last


def real_tensors(steps: int = 60) -> dict[str, Tensor]:
    """Return the tensors of one matmul of a partly trained GPT, the second block's first linear
    layer, float32.

    "weights" [256, 64], "activations" [1024, 64] and "gradients" of its output [1024, 256]; a row
    for each token
    """
    with same_random_state(), one_thread():
        model, batch = partly_trained_gpt(steps)
        found: dict[str, Tensor] = {}
        layer = model.get_submodule("blocks.1.up")
        layer.register_forward_hook(
            lambda _, inputs, __: found.update(activations=inputs[0].detach().flatten(0, 1))
        )

        def record_gradient(_: nn.Module, __: Any, outputs: Any) -> None:
            found["gradients"] = outputs[0].flatten(0, 1)

        layer.register_full_backward_hook(record_gradient)
        _loss(model, *batch).backward()
    return {"weights": layer.get_parameter("weight").detach(), **found}


def head_gradient(steps: int = 60) -> Tensor:
    """Return the gradient that arrives at the output layer of a partly trained GPT: [1024,
    characters], float32.

    A row for each token, softmax minus one-hot, divided by 1,024: only the label's entry is
    negative, and the row's sum is 0.
    """
    with same_random_state(), one_thread():
        model, (inputs, targets) = partly_trained_gpt(steps)
        logits = model(inputs).flatten(0, 1).detach().requires_grad_()
        cross_entropy(logits, targets.flatten()).backward()
    assert logits.grad is not None
    return logits.grad


def imbalance_error(labels: float, others: float, *, steps: int = 60) -> float:
    """Multiply the two sides of each row of `head_gradient` by factors, round nothing, and return
    the resulting error.

    labels, others: factors of the label's entry, and of the others
    returns: the error of the gradient of the matrices in the blocks, as `GradientError.single`
    Example: imbalance_error(0.8, 0.8) → 0.2, as the whole gradient is a fifth too short
    """
    with same_random_state(), one_thread():
        model, last = partly_trained_gpt(steps)
        exact = _gradient(model, last)

        def multiply(_: nn.Module, __: Any, logits: Tensor) -> None:
            logits.register_hook(lambda grad: torch.where(grad < 0, labels * grad, others * grad))

        model.get_submodule("head").register_forward_hook(multiply)
        return _distance(_gradient(model, last), exact)


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def _gradient(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    saving: AbstractContextManager[Any] | None = None,
) -> Tensor:
    """Return the gradient of all matrices in the blocks, flat, in float64."""
    model.zero_grad()
    with saving or nullcontext():
        loss = _loss(model, *batch)
    loss.backward()
    inside = [p for name, p in model.named_parameters() if "blocks" in name and p.dim() == 2]
    return torch.cat([p.grad.flatten() for p in inside if p.grad is not None]).double()


def _distance(gradient: Tensor, exact: Tensor) -> float:
    return float((gradient - exact).norm() / exact.norm())
