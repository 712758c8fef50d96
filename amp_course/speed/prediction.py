"""Predict what AMP buys on this machine: Amdahl's ceiling, then a price for every op, then the
measurement.

The ceiling takes the matmuls alone: their share of the fp32 step, and how much faster 16 bits make
each of them here. The prediction adds what AMP brings along: casts, and the other ops in other
dtypes. Each op is timed on its own; the AMP step runs only to check the prediction.

`predict_speedup` does this for a net of your own, `predict_workload` for one of the course's, whose
ops it counts on fake tensors.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.dtypes import dtype_name
from amp_course.kit.measure import CpuWait, busy_text, seconds_text
from amp_course.kit.random_state import same_random_state
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32, Recipe
from amp_course.loop.workloads import Workload
from amp_course.speed.counting import (
    CAST,
    MATMUL,
    OTHER,
    count_on_fakes,
    count_ops,
    forward_backward,
)
from amp_course.speed.experiments.workbench import low_dtype
from amp_course.speed.machine import measure_launch
from amp_course.speed.pricing import Side, TimedStep

_ROUNDS, _BLOCK = 4, 5  # turns of each side, and steps in a turn
_RECIPES = {torch.bfloat16: AMP_BF16, torch.float16: AMP_FP16}


@dataclass(frozen=True)
class Prediction:
    """What AMP could, should and does buy for a workload; speed-ups are fp32's time over AMP's."""

    title: str
    recipe: Recipe
    fp32: Side
    amp: Side

    @property
    def share(self) -> float:
        """The share of the fp32 step that is spent in matmuls, which AMP runs in 16 bits."""
        return min(1.0, self.fp32.priced_seconds(MATMUL) / self.fp32.seconds)

    @property
    def factor(self) -> float:
        """How many times faster those matmuls are in 16 bits, here; below 1 they are slower."""
        fp32, amp = (side.priced_seconds(MATMUL) for side in (self.fp32, self.amp))
        return fp32 / amp if fp32 and amp else 1.0

    @property
    def ceiling(self) -> float:
        """The speed-up if only the matmuls changed, by Amdahl's law."""
        return 1 / (1 - self.share + self.share / self.factor)

    @property
    def predicted_seconds(self) -> float:
        """The fp32 step with the price of its ops replaced by that of AMP's.

        A GPU works while the CPU queues the next ops: the longer of the two decides, and AMP has
        more ops to queue, its casts.
        """
        return max(self._priced_seconds, self.queueing)

    @property
    def queueing(self) -> float:
        """The CPU's time to queue an AMP step: fp32's, and a launch for each additional op."""
        more = len(self.amp.priced) - len(self.fp32.priced)
        return self.fp32.queueing + self.fp32.launch * more

    @property
    def _priced_seconds(self) -> float:
        """Timed one by one, ops may take longer than the whole step, which finds their data in the
        cache. Then the step is taken to be nothing but ops, and both prices shrink alike.
        """
        step, fp32, amp = self.fp32.seconds, self.fp32.priced_seconds(), self.amp.priced_seconds()
        if not fp32 or not amp:
            return step  # nothing could be priced
        return amp * step / fp32 if fp32 > step else step - fp32 + amp

    @property
    def predicted(self) -> float:
        return self.fp32.seconds / self.predicted_seconds

    @property
    def measured(self) -> float:
        """The speed-up of the fastest steps; the sides took turns."""
        return self.fp32.seconds / self.amp.seconds

    @property
    def busy(self) -> str:
        """Why the times show nothing; "" on a quiet machine."""
        return busy_text(self.fp32.timing.waited, self.amp.timing.waited)

    @property
    def error(self) -> float:
        """The prediction over the measurement, minus 1: 0.05 is 5 % too high."""
        return self.predicted / self.measured - 1

    def gap(self) -> dict[str, float]:
        """Split the time between the ceiling and the measured AMP step, in seconds a step; negative
        parts are gains.

        casts:       to 16 bits and back
        other ops:   norms, activations and losses, in another dtype than in fp32
        memory:      new pages from the system, compared with fp32
        launches:    on a GPU, waiting for the CPU to queue ops
        unexplained: the rest: autocast's own bookkeeping, caches, noise
        """
        casts, other = (
            self.amp.priced_seconds(kind) - self.fp32.priced_seconds(kind) for kind in (CAST, OTHER)
        )
        memory = self.amp.fault_seconds - self.fp32.fault_seconds
        whole = self.amp.seconds - self.fp32.seconds / self.ceiling
        parts = {"casts": casts, "other ops": other, "memory": memory}
        if self.fp32.queueing:
            parts["launches"] = self.predicted_seconds - self._priced_seconds
        return {**parts, "unexplained": whole - sum(parts.values())}

    def to_dict(self) -> dict[str, Any]:
        sides = {"fp32": self.fp32, "amp": self.amp}
        return {
            "workload": self.title,
            "recipe": self.recipe.name,
            "share": self.share,
            "factor": self.factor,
            "ceiling": self.ceiling,
            "predicted": self.predicted,
            "measured": self.measured,
            "seconds": {name: side.seconds for name, side in sides.items()},
            "quartiles": {name: [side.timing.q1, side.timing.q3] for name, side in sides.items()},
            "queueing_seconds": {
                "fp32": self.fp32.queueing,
                "amp": self.queueing,
                "amp_measured": self.amp.queueing,
            },
            "launch_seconds": self.fp32.launch,
            "gap_seconds": self.gap(),
            "waited": self.amp.timing.waited,
        }

    def __str__(self) -> str:
        if self.busy:
            return f"{self.title}: {self.busy}"
        label, fp32, amp = self.recipe.label, self.fp32.timing, self.amp.timing
        gap = ", ".join(f"{name} {1e3 * part:+.2f} ms" for name, part in self.gap().items())
        if amp.q3 < fp32.q1 or fp32.q3 < amp.q1:
            measured = f"{fp32.median / amp.median:.2f} times as fast"
        else:
            measured = "no difference that this machine can show"
        return (
            f"{self.title}: {label} should make a step {self.predicted:.2f} times as fast; "
            f"the ceiling is {self.ceiling:.2f}\n"
            f"    measured: {measured} "
            f"({seconds_text(fp32.median)}, then {seconds_text(amp.median)})\n"
            f"    matmuls take {self.share:.0%} of the fp32 step, and {1 / self.factor:.2g} times "
            f"as long in {label}\n"
            "    from the ceiling to the fastest step of "
            f"{seconds_text(self.amp.seconds)}: {gap}"
        )


def predict_speedup(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    batch: Sequence[Tensor],
    *,
    dtype: torch.dtype | None = None,
    seconds: float = 4.0,
) -> Prediction:
    """Predict and measure what AMP buys for a net of your own on this machine, in about `seconds`.

    model:   with parameters in float32, on the device to predict for
    loss_fn: as in `loss_fn(model(inputs), targets)`; returns a loss of one element
    batch:   (inputs, targets); a model that takes several inputs gets all but the last
    dtype:   torch.bfloat16 or torch.float16; None takes bfloat16, or float16 on GPUs without it

    A step is forward and backward, on copies: weights, gradients, buffers, mode and random numbers
    stay as they are. The optimizer, which takes the same time in both, is left out, so a whole step
    gains a little less.

    Raises TypeError for what is no model, function or batch, ValueError for a step that cannot run.
    Example: predict_speedup(net, nn.functional.cross_entropy, (x, y)).predicted → 1.7 on a CPU with
    bf16 units
    """
    device = _checked(model, loss_fn, batch)
    dtype = dtype or low_dtype(device)
    if dtype not in _RECIPES:
        raise ValueError(
            f"dtype is {dtype}: give torch.bfloat16 or torch.float16, the formats that AMP "
            f"computes in."
        )
    with (
        same_random_state(),
        _same_gradients(model),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        timed = {}
        for name, low in (("fp32", None), ("amp", dtype)):
            step = _own_step(model, loss_fn, batch, device, low)
            try:
                step()
                with count_ops() as counter:
                    step()
            except Exception as error:
                side = f"under autocast in {dtype_name(low)}" if low else "in float32"
                raise ValueError(
                    f"a step {side} raised {type(error).__name__}: {str(error).rstrip('.')}. Make "
                    "`loss_fn(model(inputs), targets)` and its `backward()` run on their own "
                    "first, with the batch on the model's device."
                ) from error
            timed[name] = TimedStep(step, nullcontext, device, counter)
        return _measure(type(model).__name__, _RECIPES[dtype], timed, device, seconds, _ROUNDS)


def _checked(model: Any, loss_fn: Any, batch: Any) -> torch.device:
    """Return the model's device. Raises TypeError or ValueError as `predict_speedup`."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}: pass the torch.nn.Module itself, as in "
            f"predict_speedup(net, …)."
        )
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn is a {type(loss_fn).__name__}: pass a function of outputs and targets, not a "
            f"loss."
        )
    tensors = isinstance(batch, (tuple, list)) and all(isinstance(one, Tensor) for one in batch)
    if not tensors or len(batch) < 2:
        raise TypeError(
            "batch has to be a pair of tensors, (inputs, targets), as one step takes it."
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(
            "the model has no parameter that requires a gradient, so there is no training step to "
            "predict."
        )
    others = sorted({dtype_name(one.dtype) for one in trained if one.dtype != torch.float32})
    if others:
        raise ValueError(
            f"the model has parameters in {', '.join(others)}: AMP starts from float32 ones, so "
            "pass the model before `.half()` or `.bfloat16()`."
        )
    return trained[0].device


@contextmanager
def _same_gradients(model: nn.Module) -> Iterator[None]:
    """Put the model's own gradients back: a loss that uses the model's weights adds to them."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _own_step(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    batch: Sequence[Tensor],
    device: torch.device,
    dtype: torch.dtype | None,
) -> Callable[[], None]:
    """Return a function that runs forward and backward on a copy of the model."""
    try:
        own, own_loss = copy.deepcopy((model, loss_fn))  # a loss may have parameters, too
    except Exception as error:
        raise ValueError(
            f"the model or the loss could not be copied ({error}). A tensor that it keeps, and "
            "that was computed with gradients, has to be detached first; of a DDP model, pass "
            "`.module`."
        ) from error
    *inputs, targets = (one.detach() for one in batch)

    def step() -> None:
        own.zero_grad(set_to_none=True)
        forward_backward(own, own_loss, inputs, targets, device, dtype)

    return step


def predict_workload(
    workload: Workload,
    recipe: Recipe,
    device: torch.device,
    *,
    seconds: float = 4.0,
    rounds: int = _ROUNDS,
) -> Prediction:
    """Predict and measure what `recipe` buys for a workload with its optimizer, in about `seconds`,
    or as long as two slow steps take.

    Example: predict_workload(simple_net(device), AMP_BF16, device).predicted → 1.7 on a CPU with
    bf16 units
    """
    timed = {}
    for name, one in (("fp32", FP32), ("amp", recipe)):
        session = workload.start(one)
        stepper, batch = session.stepper, next(session.batches)
        counter = count_on_fakes(stepper.model, stepper.loss_fn, *batch, device, one.dtype)
        step = partial(stepper.step, *batch)
        timed[name] = TimedStep(step, one.precision, device, counter)
    return _measure(workload.title, recipe, timed, device, seconds, rounds)


def _measure(
    title: str,
    recipe: Recipe,
    timed: dict[str, TimedStep],
    device: torch.device,
    seconds: float,
    rounds: int,
) -> Prediction:
    launch = measure_launch(device) if device.type == "cuda" else 0.0
    late = time.perf_counter() + seconds
    with CpuWait() as wait:
        for number in range(rounds):
            if number > 1 and time.perf_counter() > late:
                break
            in_turn = [*timed.values()] if number % 2 else [*reversed(timed.values())]
            ends = time.perf_counter() + seconds / 2 / rounds
            for side in in_turn:
                side.block(_BLOCK, ends)
            # in between, so that a busy moment of the machine slows steps and prices alike
            for side in in_turn:
                side.price(seconds / 4 / rounds)
    return Prediction(title, recipe, *(one.side(wait.share, launch) for one in timed.values()))
