"""Predict what AMP buys on this machine: Amdahl's ceiling, then a price for every op, then the measurement.

The ceiling takes the matmuls alone: their share of the fp32 step, and how much faster 16 bits make each of them here. The
prediction adds what AMP brings along: casts, and the other ops in other dtypes. Which ops those are is counted on fake tensors,
which compute nothing; what each takes is timed on its own. The AMP step itself runs only to be compared with that.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from amp_course.kit.measure import Timing, synchronize
from amp_course.loop.recipe import FP32, Recipe
from amp_course.loop.workloads import Session, Workload
from amp_course.speed.counting import CAST, MATMUL, OTHER, OpCounter, count_ops
from amp_course.speed.faults import page_faults, seconds_per_fault
from amp_course.speed.pricing import PricedCall, Pricer, total_seconds

_ROUNDS, _BLOCK = 4, 5  # turns of each side, and steps in one


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its steps in seconds, the pages that each was handed, and the price of its ops.

    priced: forward and backward; the optimizer's ops are the same on both sides
    """

    timing: Timing
    fault_seconds: float
    priced: tuple[PricedCall, ...] = field(repr=False)

    @property
    def seconds(self) -> float:
        """The fastest step: other programs can only make one slower, and the prices are fastest calls, too."""
        return min(self.timing.samples)

    def priced_seconds(self, kind: str | None = None) -> float:
        """Return the price of all ops, or of those of a kind."""
        return total_seconds(self.priced, kind)


@dataclass(frozen=True)
class Prediction:
    """What AMP could buy for one workload, what it should, and what it does. Speed-ups are fp32's time over AMP's."""

    title: str
    recipe: Recipe
    fp32: Side
    amp: Side

    @property
    def share(self) -> float:
        """The share of the fp32 step that is spent in matmuls, the ops that autocast lowers for speed."""
        return min(1.0, self.fp32.priced_seconds(MATMUL) / self.fp32.seconds)

    @property
    def factor(self) -> float:
        """How many times faster those matmuls are in 16 bits, here; below 1 they are slower."""
        return self.fp32.priced_seconds(MATMUL) / self.amp.priced_seconds(MATMUL)

    @property
    def ceiling(self) -> float:
        """Amdahl's law: the speed-up if nothing but the matmuls changed."""
        return 1 / (1 - self.share + self.share / self.factor)

    @property
    def predicted_seconds(self) -> float:
        """The fp32 step without the price of its ops, plus that of AMP's."""
        return self.fp32.seconds - self.fp32.priced_seconds() + self.amp.priced_seconds()

    @property
    def predicted(self) -> float:
        """The speed-up that the ops' prices promise."""
        return self.fp32.seconds / self.predicted_seconds

    @property
    def measured(self) -> float:
        """The speed-up of the fastest steps, which were taken in turn."""
        return self.fp32.seconds / self.amp.seconds

    @property
    def error(self) -> float:
        """How far the prediction is from the measurement, as a share of the latter: 0.05 is 5 % too high."""
        return self.predicted / self.measured - 1

    def gap(self) -> dict[str, float]:
        """Name what lies between the ceiling and the measured AMP step, in seconds a step; negative parts are gains.

        casts:      to 16 bits and back, which fp32 does not need
        other ops:  norms, activations, losses, that run in another dtype now
        memory:     pages that the system handed out, more than to fp32
        unexplained: the rest: autocast's own bookkeeping, caches, noise
        """
        casts = self.amp.priced_seconds(CAST) - self.fp32.priced_seconds(CAST)
        other = self.amp.priced_seconds(OTHER) - self.fp32.priced_seconds(OTHER)
        memory = self.amp.fault_seconds - self.fp32.fault_seconds
        whole = self.amp.seconds - self.fp32.seconds / self.ceiling
        parts = {"casts": casts, "other ops": other, "memory": memory}
        return {**parts, "unexplained": whole - sum(parts.values())}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
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
            "gap_seconds": self.gap(),
        }


def predict_speedup(
    workload: Workload, recipe: Recipe, device: torch.device, *, seconds: float = 4.0, rounds: int = _ROUNDS
) -> Prediction:
    """Predict and measure what `recipe` buys for a workload, in about `seconds`, or as long as two slow steps take.

    Example: predict_speedup(simple_net(device), AMP_BF16, device).predicted → 1.7 on a CPU with bf16 units
    """
    sessions = {name: workload.start(one) for name, one in (("fp32", FP32), ("amp", recipe))}
    inputs, targets = next(sessions["fp32"].batches)
    stepper = sessions["fp32"].stepper
    counters = {
        name: count_on_fakes(stepper.model, stepper.loss_fn, inputs, targets, device, dtype)
        for name, dtype in (("fp32", None), ("amp", recipe.dtype))
    }
    timed = {name: _Timed(session, inputs, targets, device, counters[name]) for name, session in sessions.items()}
    late = time.perf_counter() + seconds
    for number in range(rounds):
        if number > 1 and time.perf_counter() > late:
            break
        sides_in_turn = [*timed.values()] if number % 2 else [*reversed(timed.values())]
        ends = time.perf_counter() + seconds / 2 / rounds
        for one in sides_in_turn:
            one.block(_BLOCK, ends)
        # in between, so that a machine that slows down for a while slows steps and prices alike
        for one in sides_in_turn:
            one.price(seconds / 4 / rounds)
    sides = {
        name: Side(
            Timing(tuple(one.seconds)),
            statistics.median(one.faults) * (seconds_per_fault() if device.type == "cpu" else 0.0),
            one.pricer.prices(),
        )
        for name, one in timed.items()
    }
    return Prediction(workload.title, recipe, sides["fp32"], sides["amp"])


def count_on_fakes(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    device: torch.device,
    dtype: torch.dtype | None,
) -> OpCounter:
    """Count the ops of forward and backward under autocast in `dtype` (None: without), on fake copies: nothing is computed.

    The model keeps its weights, gradients and buffers. It may not read values (`.item()`, `if x.any()`): fakes have none.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, FakeCopyMode(mode):
        fake = copy.deepcopy(model)
    with mode, torch.enable_grad():
        fake_inputs, fake_targets = mode.from_tensor(inputs), mode.from_tensor(targets)
        with count_ops() as counter:
            with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_fn(fake(fake_inputs), fake_targets)
            loss.backward()
    return counter


class _Timed:
    """A session that is timed block by block, on one batch."""

    def __init__(
        self, session: Session, inputs: Tensor, targets: Tensor, device: torch.device, counter: OpCounter
    ) -> None:
        self.pricer = Pricer(counter, device)
        self.session, self.batch, self.device = session, (inputs, targets), device
        self.seconds: list[float] = []
        self.faults: list[int] = []
        self._step()  # the first one allocates and loads

    def block(self, steps: int, ends: float) -> None:
        """Take one step that is not timed, then `steps` that are; stop early once `ends` has passed and two are there."""
        if len(self.seconds) >= 2 and time.perf_counter() > ends:
            return
        if not self.seconds or statistics.median(self.seconds) < 0.2:
            self._step()  # after the other side's, so that caches hold this side's weights
        for _ in range(steps):
            synchronize(self.device)
            faults, start = page_faults(), time.perf_counter()
            self._step()
            synchronize(self.device)
            self.seconds.append(time.perf_counter() - start)
            self.faults.append(page_faults() - faults)
            if time.perf_counter() > ends and len(self.seconds) >= 2:
                return

    def price(self, seconds: float) -> None:
        """Price the step's ops, with fp32 meaning what it means in the step: TF32 or not."""
        with self.session.recipe.precision():
            self.pricer.run(seconds)

    def _step(self) -> None:
        with self.session.recipe.precision():
            self.session.stepper.step(*self.batch)
