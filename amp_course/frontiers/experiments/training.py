"""Train the character GPT and the digits ResNet under a variant, with the same initial weights,
batches and learning rates for all.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from amp_course.frontiers.activations import CompressedActivations
from amp_course.frontiers.experiments.variants import Variant
from amp_course.kit.data import (
    Batches,
    CharText,
    digit_batches,
    digits,
    documentation_text,
    text_batches,
)
from amp_course.kit.models import CharGPT, DigitsResNet
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread

CONTEXT, LAST = 64, 20


@dataclass(frozen=True)
class Run:
    """The result of one training.

    workload:         "gpt" or "resnet"
    losses:           of each step, on its batch
    score:            on held-out data: the loss of the GPT, the share of right digits of the ResNet
    seconds_per_step: the time of this simulation, not of hardware with such formats
    kept, whole:      bytes of activations in few bits in the first step, and of the same in fp32
    """

    workload: str
    variant: str
    bits: float
    rate: float
    seed: int
    losses: tuple[float, ...]
    score: float
    seconds_per_step: float
    kept: int = 0
    whole: int = 0

    @property
    def last_loss(self) -> float:
        """The mean of the last 20 losses."""
        return sum(self.losses[-LAST:]) / len(self.losses[-LAST:])


def train_gpt(
    variant: Variant,
    *,
    steps: int = 250,
    rate: float = 4e-3,
    seed: int = 0,
    loss_scale: float = 1.0,
) -> Run:
    """Train a small character GPT on Python's documentation by AdamW; 16 stretches of 64 characters
    a step.

    The learning rate rises for 20 steps and falls to 0 along a cosine. The loss is multiplied by
    `loss_scale` before the backward pass, and the gradients are divided by it before the
    optimizer's step.
    """
    text = char_text()
    with same_random_state(), one_thread():
        model = _small_gpt(CONTEXT, seed)
        batches = text_batches(text, 16, CONTEXT, steps, seed)
        adamw = torch.optim.AdamW(model.parameters(), lr=rate)
        run = _train(variant, model, adamw, batches, seed, loss_scale)
        held_out = text_batches(text, 32, CONTEXT, 8, seed=1, split="validation")
        with torch.no_grad():
            losses = [cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in held_out]
        score = fmean(loss.item() for loss in losses)
    return Run("gpt", variant.name, variant.bits, rate, seed, score=score, **run)


def train_resnet(variant: Variant, *, steps: int = 250, rate: float = 0.05, seed: int = 0) -> Run:
    """Train a small ResNet on the digits by SGD with momentum 0.9;
    32 pictures a step, with the same schedule.
    """
    data = digits()
    with same_random_state(), one_thread():
        torch.manual_seed(seed)
        model = DigitsResNet(16)
        batches = digit_batches(data, 32, steps=steps, seed=seed)
        sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        run = _train(variant, model, sgd, batches, seed)
        model.eval()
        with torch.no_grad():
            score = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean().item()
    return Run("resnet", variant.name, variant.bits, rate, seed, score=score, **run)


def pretrained_gpt(context: int, batch_size: int, steps: int, seed: int) -> CharGPT:
    """Return the small GPT of `train_gpt`, trained in fp32 at a constant learning rate."""
    model = _small_gpt(context, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for inputs, targets in text_batches(char_text(), batch_size, context, steps, seed):
        optimizer.zero_grad()
        cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return model


@functools.cache
def char_text() -> CharText:
    """Return the text that the GPTs are trained on."""
    return CharText(documentation_text())


def _small_gpt(context: int, seed: int) -> CharGPT:
    torch.manual_seed(seed)
    return CharGPT(len(char_text().vocabulary), context, layers=2, heads=4, width=64)


def _train(
    variant: Variant,
    model: nn.Module,
    usual: torch.optim.Optimizer,
    batches: Batches,
    seed: int,
    loss_scale: float = 1.0,
) -> dict[str, Any]:
    variant.convert(model, seed)
    optimizer, steps = variant.optimizer(usual, seed), len(batches)
    schedule = LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps)),
    )
    losses: list[float] = []
    sizes: dict[str, int] = {}
    saving = variant.saving(seed)
    began = time.perf_counter()
    for inputs, targets in batches:
        with saving:
            outputs = model(inputs)
        loss = cross_entropy(outputs.flatten(0, -2), targets.flatten())
        model.zero_grad()
        (loss * loss_scale).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= loss_scale
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        # later activations may have NaN, and are not compressed then
        if len(losses) == 1 and isinstance(saving, CompressedActivations):
            sizes = {"kept": saving.kept, "whole": saving.whole}
    seconds = (time.perf_counter() - began) / steps
    return {"losses": tuple(losses), "seconds_per_step": seconds, **sizes}
