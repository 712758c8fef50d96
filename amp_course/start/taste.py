"""The one-minute taste: one model, one data set, trained in fp32 and with AMP."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from amp_course.kit.dtypes import DtypeSupport, dtype_support
from amp_course.kit.hardware import pick_device
from amp_course.kit.measure import busy_text
from amp_course.loop import AMP_BF16, FP32
from amp_course.loop.recipe import AnyRecipe
from amp_course.loop.train import RunRecord, join
from amp_course.loop.workloads import digits_resnet

_ROUNDS, _STEPS = 4, 22  # 22 batches of 64 are one pass over the digits


@dataclass(frozen=True)
class Side:
    """One recipe's median seconds and peak bytes of a step, and its share of right answers.

    waited: the share of the time in which the process waited for a CPU; None if unknown
    """

    recipe: AnyRecipe
    seconds_per_step: float
    peak_bytes: int
    accuracy: float
    waited: float | None = None


def taste(device: torch.device, max_seconds: float = 30) -> tuple[Side, Side]:
    """Train the digits ResNet for four passes in fp32 and under bf16 autocast, taking turns; return
    both sides.

    max_seconds: after the first pass, one begins only if it would end in time at the pace of the
                 fastest so far
    """
    workload = digits_resnet(device)
    sessions = [workload.start(recipe) for recipe in (FP32, AMP_BF16)]
    records: list[list[RunRecord]] = [[], []]
    began, fastest = time.monotonic(), 0.0
    while not records[0] or (
        len(records[0]) < _ROUNDS and time.monotonic() + fastest <= began + max_seconds
    ):
        pass_began = time.monotonic()
        for session, done in zip(sessions, records, strict=True):
            done.append(session.run(_STEPS))
        seconds = time.monotonic() - pass_began
        fastest = min(fastest or seconds, seconds)
    sides = [
        _side(session.recipe, join(done), workload.accuracy(session) if workload.accuracy else 0.0)
        for session, done in zip(sessions, records, strict=True)
    ]
    return sides[0], sides[1]


def in_words(fp32: Side, amp: Side, bf16: DtypeSupport | None = None) -> str:
    """Say in Markdown what the two sides show and, if AMP is slower, why.

    bf16: how the machine computes bf16 matmuls; by default measured, in a second, if necessary
    """
    ratio = amp.seconds_per_step / fp32.seconds_per_step
    speed = f"{1 / ratio:.1f} times as fast" if ratio < 0.95 else "as fast as before"
    saved = 1 - amp.peak_bytes / fp32.peak_bytes
    memory = f"{saved:.0%} less memory" if saved >= 0.01 else "no less memory"
    points = abs(fp32.accuracy - amp.accuracy) * 100
    quality, noise = "the same accuracy", ""
    if points >= 0.05:
        quality = f"accuracies {points:.1f} percentage points apart"
        noise = (
            " (A training this short is noisy: with its batches in another order, fp32 itself ends "
            "some points away.)"
        )
    if busy := busy_text(fp32.waited, amp.waited):
        return f"Three changed lines: {memory}, {quality}.{noise} And the time? {busy}"
    if ratio < 1.05:
        return f"Three changed lines: {speed}, {memory}, {quality}.{noise}"
    facts = (
        f"Three changed lines: {memory}, {quality}, and each step takes **{ratio:.1f} times as "
        f"long**.{noise}\n\nSlower?"
    )
    bf16 = bf16 or next(
        support for support in dtype_support(pick_device()) if support.name == "bf16"
    )
    if bf16.state == "unknown":
        return f"{facts} The machine was too busy to tell how fast its bf16 is: run this again."
    if bf16.state != "emulated" or bf16.times_fp32 is None:
        return (
            f"{facts} This net is small, and small steps gain little from 16 bits. Chapter 06 "
            "measures larger ones."
        )
    return (
        f"{facts} On this machine a bf16 matmul takes {bf16.times_fp32:.1f} times as long as one "
        "in fp32: torch has to emulate it, as on many laptops. Nothing is wrong with your set-up. "
        "The memory that you just saved is real, and so is all that this course shows about "
        "numbers, autocast and the scaler. For the speed it takes a processor or GPU with bf16 "
        "units, and the table below says what yours has."
    )


def _side(recipe: AnyRecipe, record: RunRecord, accuracy: float) -> Side:
    assert record.memory is not None
    return Side(recipe, record.timing.median, record.memory.peak, accuracy, record.waited)
