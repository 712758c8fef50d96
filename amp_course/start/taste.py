"""The one-minute taste: one model, one data set, trained in fp32 and with AMP."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from amp_course.loop import AMP_BF16, FP32, Recipe
from amp_course.loop.train import join
from amp_course.loop.workloads import digits_resnet

_ROUNDS, _STEPS = 4, 22  # 22 batches of 64 are one pass over the digits


@dataclass(frozen=True)
class Side:
    """What one recipe took and gave: seconds per step (median), bytes at the peak of a step, share of right answers."""

    recipe: Recipe
    seconds_per_step: float
    peak_bytes: int
    accuracy: float


def taste(device: torch.device) -> tuple[Side, Side]:
    """Train the digits ResNet for four passes in fp32 and under bf16 autocast, taking turns; return both sides."""
    workload = digits_resnet(device)
    sessions = [workload.start(recipe) for recipe in (FP32, AMP_BF16)]
    runs = [[session.run(_STEPS) for session in sessions] for _ in range(_ROUNDS)]
    fp32, amp = (
        _side(join([run[index] for run in runs]), workload.accuracy(session), session.recipe)  # type: ignore[misc]
        for index, session in enumerate(sessions)
    )
    return fp32, amp


def in_words(fp32: Side, amp: Side) -> str:
    """Say what the two sides show, with what this machine can show and what it cannot."""
    gain = fp32.seconds_per_step / amp.seconds_per_step
    speed = (
        f"{gain:.1f} times as fast" if gain >= 1.05 else "no faster" if gain > 0.95 else f"{1 / gain:.1f} times slower"
    )
    saved = 1 - amp.peak_bytes / fp32.peak_bytes
    memory = f"in {saved:.0%} less memory" if saved >= 0.01 else "in no less memory"
    right = abs(fp32.accuracy - amp.accuracy) * 100
    quality = "the same accuracy" if right < 0.05 else f"accuracies {right:.1f} percentage points apart"
    return f"Three changed lines: {speed}, {memory}, {quality}."


def _side(record, accuracy, recipe):  # type: ignore[no-untyped-def]
    return Side(recipe, record.timing.median, record.memory.peak, accuracy)
