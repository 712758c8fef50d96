"""Record the steps of optimizers, with the gradients by which they move the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.gradients import Gradient, GradSummary, Layout
from amp_course.watching.origins import user_line
from amp_course.watching.records import Event, Step, Training, Update, index_of
from amp_course.watching.taps import Original
from amp_course.watching.values import skips
from amp_course.watching.weights import highest_rate, weights_of


def not_training(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of an observer do what is not part of the training."""

    @wraps(method)
    def wrapped(self: StepObserver, *args: Any, **kwargs: Any) -> None:
        with self._outside_training():
            method(self, *args, **kwargs)

    return wrapped


@dataclass
class OpenStep:
    """A step of an optimizer that has begun and not ended.

    noted: its records
    moved: ids of the parameters that a function of torch's moved; None before it is called
    """

    optimizer: Any
    noted: list[Step] = field(default_factory=list)
    moved: set[int] | None = None


class StepObserver:
    """Listens to the steps of a training's optimizers; `Observer` listens to the rest.

    update: what happened, to be read afterwards
    paused: what runs now is the auditor's own, and is not recorded
    """

    def __init__(self, training: Training, *, graphs: bool) -> None:
        self.training, self.graphs = training, graphs
        self.update = Update(training.scales())
        self.call = 0
        self.paused = False
        self._running: list[tuple[str, Any]] = []  # methods of scalers and schedulers, with these
        self._open_steps: list[OpenStep] = []
        self._after_step: dict[int, list[Tensor]] = {}  # weights, by the optimizer that moved them
        self._backward_depth = 0
        self._slot_of = {id(p): n for n, slot in enumerate(training.slots) for p in slot.parameters}

    def _outside_training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _note(self, event: Event) -> None:
        event.line = event.line or user_line()
        self.update.events.append(event)

    def _summarize_grads(self, number: int) -> GradSummary:
        slot = self.training.slots[number]
        if all(p.grad is None for p in slot.parameters):
            return GradSummary()
        current = slot.current()
        return GradSummary(current.empty, current.finite, current.norm)

    def number_of(self, optimizer: Any) -> int:
        """Return the index of an optimizer, or of that with the same parameters; -1 for none."""
        number = index_of(optimizer, self.training.optimizers)
        if number >= 0 or not hasattr(optimizer, "param_groups"):
            return number
        found = (self._slot_of[id(p)] for p in weights_of(optimizer) if id(p) in self._slot_of)
        number = next(found, -1)
        return number if number < len(self.training.optimizers) else -1

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or skips(optimizer):
            return None
        self._open_steps.append(OpenStep(optimizer))
        positional = len(args) > 1 and callable(args[1])
        closure = args[1] if positional else kwargs.get("closure")
        if closure is None:
            self._note_step(optimizer, closure=False)
            return None
        called = False

        def watched(*a: Any, **k: Any) -> Any:
            nonlocal called
            result = closure(*a, **k)
            if not called:
                called = True
                self._note_step(optimizer, closure=True)
            return result

        if positional:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _move_weights(
        self, original: Original, parameters: Any, gradients: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._open_steps and not self.paused:
            self._note_gradients(self._open_steps[-1], parameters, gradients)
        return original(parameters, gradients, *args, **kwargs)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        if self._open_steps and self._open_steps[-1].optimizer is optimizer:
            ended = self._open_steps.pop()
            if not self.paused:
                self._note_left_out(ended)
        number = self.number_of(optimizer)
        if self.graphs and number >= 0:
            self._keep_weights(number)

    def _keep_weights(self, number: int) -> None:
        self._after_step[number] = self.training.slots[number].copies()

    @not_training
    @torch.no_grad()
    def _note_gradients(
        self, open_step: OpenStep, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Note the gradients that move the weights: the step may have clipped them."""
        moving = {id(p): g for p, g in zip(parameters, gradients, strict=True)}
        open_step.moved = (open_step.moved or set()) | moving.keys()
        for step in open_step.noted:
            layout = step.gradient.layout
            found = layout.gradient([moving.get(id(p)) for p in layout.parameters])
            step.replace(_unscaled(found, open_step.optimizer), found.present)

    @not_training
    @torch.no_grad()
    def _note_left_out(self, ended: OpenStep) -> None:
        """Note which parameters torch's own function has left out of a step."""
        moved = ended.moved
        if moved is None:
            return
        for step in ended.noted:
            layout = step.gradient.layout
            left_out = [id(p) not in moved for p in layout.parameters]
            step.replace(layout.gradient([None] * len(left_out)), left_out)

    def next_call(self, number: int) -> None:
        """Begin the next micro-batch."""
        self.call, self.update.calls = number, number + 1
        self._open_steps.clear()

    @not_training
    def _note_step(self, optimizer: Any, *, closure: bool) -> None:
        number, weights = self.number_of(optimizer), weights_of(optimizer)
        slots, ids = self.training.slots, set(map(id, weights))
        layout = slots[number] if number >= 0 else Layout(weights)
        gradient = layout.gradient([p.grad if id(p) in ids else None for p in layout.parameters])
        own = number >= 0 and self.training.optimizers[number] is optimizer
        step = Step(
            self.call,
            number,
            _unscaled(gradient, optimizer),
            rate=highest_rate(optimizer),
            other="" if own else type(optimizer).__name__,
            closure=closure,
            by_scaler=any(name == "scaler_step" for name, _ in self._running),
            optimizer=optimizer,
            rest=math.hypot(
                *(self._summarize_grads(n).norm for n in range(len(slots)) if n != number)
            ),
        )
        if self._backward_depth:
            for event in self.update.backwards[-1:]:
                event.complete = False
        for outer in self._open_steps[:-1]:
            # SAM, Lookahead and their like step another optimizer over the same parameters, others
            # their own base class's step: the innermost one counts.
            for one in outer.noted if self.number_of(outer.optimizer) == number >= 0 else ():
                if one in self.update.events:
                    self.update.events.remove(one)
                    step.at_call, step.line = one.at_call, one.line
            outer.noted = [one for one in outer.noted if one in self.update.events]
        self._note(step)
        if self._open_steps and self._open_steps[-1].optimizer is optimizer:
            self._open_steps[-1].noted.append(step)


def _unscaled(gradient: Gradient, optimizer: Any) -> Gradient:
    """Divide by the scale that a scaler leaves to a fused optimizer."""
    scale = getattr(optimizer, "grad_scale", None)
    return gradient * (1 / scale.item()) if isinstance(scale, Tensor) else gradient
