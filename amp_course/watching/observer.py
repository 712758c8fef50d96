"""Watch a training step and record what it does: backward passes, calls of scaler and scheduler, steps, in order.

Nothing is put on an object of the reader's: torch is tapped (see `taps`) until the observer leaves. Two things can be done on
purpose once a gradient has been computed: make it larger, and put an inf into it.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from amp_course.watching import taps
from amp_course.watching.births import readers_line
from amp_course.watching.graphs import LOW_DTYPES, look_at, next_node
from amp_course.watching.meddling import added, enlarge, poison
from amp_course.watching.records import (
    Backward,
    Call,
    Event,
    Gradient,
    Graph,
    Held,
    Layout,
    Meddling,
    Region,
    Step,
    Training,
    Update,
)
from amp_course.watching.values import skips

_NAMES = {"scale": "scale", "unscale": "unscale", "scaler_step": "scaler.step", "update": "update"}  # of points
_COMPOSITE_LOSSES = ("kl_div", "l1_loss")  # those that leave no node of their own in the graph


@dataclass
class _Stepping:
    """An optimizer inside its step, what was noted of it, and the parameters that torch's own function has moved."""

    optimizer: Any
    noted: list[Step] = field(default_factory=list)
    moved: set[int] | None = None


class Observer:
    """A context: in `with Observer(training) as observer:` say `observer.next_call(n)` for each batch and run the step.

    graphs:    walk the graphs of losses
    update:    what happened, to be read afterwards
    strangers: enabled scalers that were used and are not among the training's
    """

    def __init__(self, training: Training, meddling: Meddling | None = None, *, graphs: bool = False) -> None:
        self.training, self.meddling, self.graphs = training, meddling or Meddling(), graphs
        self.update = Update(training.scales())
        self.call = 0
        self.strangers: list[torch.amp.GradScaler] = []
        self.paused = False  # what the audit itself computes is not written down
        self._made: list[Any] = []
        self._inside: list[tuple[str, Any]] = []  # scaler methods that are running
        self._moving: list[Any] = []  # schedulers whose `step` is running
        self._stepping_now: list[_Stepping] = []
        self._after_step: dict[int, list[Tensor]] = {}  # the weights that an optimizer left
        self._backward_depth = 0
        self._region_end = math.inf  # the sequence number of the next node at the end of the last autocast region
        self._differentiable = False  # a pass made a graph of its own: its nodes are no part of what the caller wrote
        self._stack = ExitStack()
        self._slot_of = {id(p): n for n, slot in enumerate(training.slots) for p in slot.parameters}

    def __enter__(self) -> Observer:
        self._start = [[p.detach().clone() for p in slot.parameters] for slot in self.training.slots]
        listening = taps.listening(self._points(), self.training.scalers, self.training.schedulers)
        self._stack.enter_context(listening)
        return self

    def _points(self) -> dict[str, Callable[..., Any]]:
        points: dict[str, Callable[..., Any]] = {
            "backward": self._backward, "engine": self._engine, "enter_region": self._enter, "leave_region": self._leave,
            "new_scaler": self._new_scaler, "schedule": self._schedule, "step_begins": self._step_begins,
            "step_ends": self._step_ends, "move_weights": self._move_weights,
        }  # fmt: skip
        points |= {point: functools.partial(self._scaler_method, name) for point, name in _NAMES.items()}
        losses = _COMPOSITE_LOSSES if self.graphs else ()
        return points | {name: functools.partial(self._loss, name) for name in losses}

    def __exit__(self, *_: object) -> None:
        update, training = self.update, self.training
        self._stack.close()
        update.scales_after = training.scales()
        update.scalers_made = len(self._made)
        for number, after in self._after_step.items():
            update.left[number] = _share_left(self._start[number], after, training.slots[number].parameters)
        for slot, was in zip(training.slots, self._start, strict=True):
            update.changed.append(_moved(slot.parameters, was))
            update.spoilt.append(all(map(_finite, was)) and not all(map(_finite, slot.parameters)))

    def _note(self, event: Event) -> None:
        event.line = event.line or readers_line(sys._getframe(1))
        self.update.events.append(event)

    # ---- backward passes ----

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if self._backward_depth or self.paused:  # reentrant checkpointing: part of the one outside
            return original(tensors, *args, **kwargs)
        event = self._begin(tensors)
        grads = [[p.grad for p in slot.parameters] for slot in self.training.slots]
        before = [[None if g is None else g.detach().clone() for g in slot] for slot in grads]
        self._backward_depth += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._backward_depth -= 1
            self._arrived(event, before)

    def _engine(self, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Its fourth argument is `create_graph`."""
        self._differentiable |= bool(args[2]) and not self.paused
        self.update.second_order = self._differentiable
        self.update.differentiated += not self.paused
        return original(outputs, *args, **kwargs)

    def _begin(self, tensors: Any) -> Backward:
        roots = [
            one for one in ([tensors] if isinstance(tensors, Tensor) else list(tensors)) if isinstance(one, Tensor)
        ]
        region_end = math.inf if self._differentiable else self._region_end
        event = Backward(
            self.call,
            in_autocast=torch.is_autocast_enabled(self.training.device_type),
            dtype=roots[0].dtype if roots else None,
            value=float(roots[0].detach()) if roots and roots[0].numel() == 1 else float("nan"),
            graph=look_at(roots, region_end) if self.graphs else Graph(),
            before=[self._held(n) for n in range(len(self.training.slots))],
            wanted=[tuple(p.requires_grad for p in slot.parameters) for slot in self.training.slots],
        )
        start = zip(self.training.slots, self._start, strict=True)
        event.moved = any(_moved(slot.parameters, was) for slot, was in start)
        if self.graphs and not self.update.modes:
            self.update.modes = {
                module: module.training for model in self.training.models for module in model.modules()
            }
        self._note(event)
        return event

    def _held(self, number: int) -> Held:
        slot = self.training.slots[number]
        if all(p.grad is None for p in slot.parameters):
            return Held()
        now = slot.now()
        return Held(now.empty, now.finite, now.norm)

    @torch.no_grad()
    def _arrived(self, event: Backward, before: list[list[Tensor | None]]) -> None:
        number = sum(isinstance(one, Backward) for one in self.update.events) - 1
        for n, slot in enumerate(self.training.slots):
            new = [added(p.grad, was) for p, was in zip(slot.parameters, before[n], strict=True)]
            if all(one is None for one in new):
                continue
            event.arrived[n] = slot.gradient(new)
            if self.meddling.factor != 1.0:
                for p, was, one in zip(slot.parameters, before[n], new, strict=True):
                    if one is not None:
                        enlarge(p, was, one, self.meddling.factor)
            if (number, n) in self.meddling.poison:
                poison(slot, self.meddling)

    def _enter(self, original: Callable[..., Any], region: Any) -> Any:
        if not self.paused:
            self._region_end = math.inf
            inside = torch.is_autocast_enabled(self.training.device_type)
            self._note(Region(self.call, region.device, bool(region._enabled), region.fast_dtype, inside))
        return original(region)

    def _leave(self, original: Callable[..., Any], region: Any, *args: Any) -> Any:
        result = original(region, *args)
        if not self.paused and not torch.is_autocast_enabled(self.training.device_type):
            self._region_end = next_node()
        return result

    def _loss(self, name: str, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        low = isinstance(outputs, Tensor) and outputs.requires_grad and outputs.dtype in LOW_DTYPES
        if low and not self.paused and not torch.is_autocast_enabled(outputs.device.type):
            self.update.losses_outside.append((name, outputs.dtype))
        return original(outputs, *args, **kwargs)

    # ---- scalers and schedulers ----

    def _new_scaler(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        self._made.append(scaler)

    def _scaler_method(self, name: str, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        with self._during(name, scaler) as first:
            if first:
                self._note_call(name, scaler, args, kwargs)
            return original(scaler, *args, **kwargs)

    @contextmanager
    def _during(self, name: str, scaler: Any) -> Iterator[bool]:
        """Tell whether a call comes from outside: not by `super()`, and not `unscale_` from `step`."""
        first = not any(one is scaler for _, one in self._inside)
        self._inside.append((name, scaler))
        try:
            yield first
        finally:
            self._inside.pop()

    def _note_call(self, name: str, scaler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not scaler.is_enabled():
            return
        index = next((n for n, one in enumerate(self.training.scalers) if one is scaler), -1)
        if index < 0 and not any(one is scaler for one in [*self.strangers, *self._made]):
            self.strangers.append(scaler)
        number, empty = -1, False
        if name in ("unscale", "scaler.step"):
            number = self.number_of(args[0] if args else kwargs.get("optimizer"))
            empty = number >= 0 and self._held(number).empty
        closure = name == "scaler.step" and any(callable(one) for one in (*args[1:], *kwargs.values()))
        self._note(Call(self.call, name, number, index, empty, closure))

    def _schedule(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        number = next((n for n, one in enumerate(self.training.schedulers) if one is scheduler), -1)
        inner = any(one is scheduler for one in self._moving)  # called by a subclass's own `step`
        if number >= 0 and not inner and not self.paused:
            self._note(Call(self.call, "scheduler", number))
        self._moving.append(scheduler)
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._moving.pop()

    # ---- optimizers ----

    def number_of(self, optimizer: Any) -> int:
        """Return the number of an optimizer among the training's: itself, or one over the same parameters; else -1."""
        for number, one in enumerate(self.training.optimizers):
            if one is optimizer:
                return number
        held = (p for group in getattr(optimizer, "param_groups", []) for p in group["params"])
        number = next((self._slot_of[id(p)] for p in held if id(p) in self._slot_of), -1)
        return number if number < len(self.training.optimizers) else -1

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if skips(optimizer):
            return None
        self._stepping_now.append(_Stepping(optimizer))
        place = 1 if len(args) > 1 and callable(args[1]) else None
        closure = args[1] if place else kwargs.get("closure")
        if closure is None:
            self._note_step(optimizer, closure=False)
            return None
        once: list[bool] = []

        def watched(*a: Any, **k: Any) -> Any:
            result = closure(*a, **k)
            if not once:
                once.append(True)
                self._note_step(optimizer, closure=True)
            return result

        if place:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _move_weights(self, original: Callable[..., Any], parameters: Any, gradients: Any, *a: Any, **k: Any) -> Any:
        if self._stepping_now and not self.paused:
            self._used(self._stepping_now[-1], parameters, gradients)
        return original(parameters, gradients, *a, **k)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        if self._stepping_now and self._stepping_now[-1].optimizer is optimizer:
            stepping = self._stepping_now.pop()
            if not self.paused:
                self._settle(stepping)
        number = self.number_of(optimizer)
        if self.graphs and number >= 0:
            self._keep_weights(number)

    def _keep_weights(self, number: int) -> None:
        self._after_step[number] = [p.detach().clone() for p in self.training.slots[number].parameters]

    @torch.no_grad()
    def _used(self, stepping: _Stepping, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take down the gradients by which torch's own function moves weights: the step has clipped them, say."""
        given = {id(p): g for p, g in zip(parameters, gradients, strict=True)}
        stepping.moved = (stepping.moved or set()) | given.keys()
        for step in stepping.noted:
            layout = step.gradient.layout
            now = layout.gradient([given.get(id(p)) for p in layout.parameters])
            step.replace(_unscaled(now, stepping.optimizer), now.present)

    @torch.no_grad()
    def _settle(self, stepping: _Stepping) -> None:
        """Look at the gradients again after a step, for one that moves weights without torch's functions."""
        for step in stepping.noted:
            layout = step.gradient.layout
            if stepping.moved is not None:  # it has left some out
                out = [id(p) not in stepping.moved for p in layout.parameters]
                step.replace(layout.gradient([None] * len(out)), out)
            elif not step.closure:
                there = zip(layout.parameters, step.gradient.present, strict=True)
                now = _unscaled(layout.gradient([p.grad if one else None for p, one in there]), stepping.optimizer)
                if not torch.equal(now.values, step.gradient.values):
                    step.certain = False
                    step.replace(now, now.rescales(step.gradient))

    def next_call(self, number: int) -> None:
        """Say that the next micro-batch begins."""
        self.call, self.update.calls = number, number + 1
        self._stepping_now.clear()
        self._inside.clear()

    def _note_step(self, optimizer: Any, *, closure: bool) -> None:
        number = self.number_of(optimizer)
        groups = optimizer.param_groups
        layout = Layout([p for group in groups for p in group["params"]]) if number < 0 else self.training.slots[number]
        held = {id(p) for group in groups for p in group["params"]}
        grads = [p.grad if id(p) in held else None for p in layout.parameters]
        gradient = _unscaled(layout.gradient(grads), optimizer)
        own = number >= 0 and self.training.optimizers[number] is optimizer
        step = Step(
            self.call,
            number,
            gradient,
            rate=max((float(group.get("lr", 1.0)) for group in groups), default=1.0),
            other="" if own else type(optimizer).__name__,
            closure=closure,
            in_backward=self._backward_depth > 0,
            by_scaler=any(name == "scaler.step" for name, _ in self._inside),
            optimizer=optimizer,
            rest=math.hypot(*(self._held(n).norm for n in range(len(self.training.slots)) if n != number)),
        )
        if step.in_backward:
            for event in reversed(self.update.events):
                if isinstance(event, Backward):
                    event.complete = False
                    break
        for outer in self._stepping_now[:-1]:
            # SAM, Lookahead and their like step another optimizer over the same parameters, others their own base class's
            # step: the innermost one counts.
            for one in outer.noted if self.number_of(outer.optimizer) == number >= 0 else ():
                if one in self.update.events:
                    self.update.events.remove(one)
                    step.given, step.line = one.given, one.line
            outer.noted = [one for one in outer.noted if one in self.update.events]
        noted = self._merge(step)
        if self._stepping_now and self._stepping_now[-1].optimizer is optimizer:
            self._stepping_now[-1].noted.append(noted)

    def _merge(self, step: Step) -> Step:
        """Note a step, as part of the one just before it if that went over other parameters of the same optimizer."""
        last = self.update.events[-1] if self.update.events else None
        if isinstance(last, Step) and last.number == step.number >= 0:
            here, there = step.gradient.present, last.gradient.present
            if any(here) and not any(a and b for a, b in zip(here, there, strict=True)):
                last.given = last.given.replaced(step.given, step.given.present)
                last.replace(step.gradient, here)
                return last
        self._note(step)
        return step


def _unscaled(gradient: Gradient, optimizer: Any) -> Gradient:
    """Divide by the scale that a scaler leaves to a fused optimizer."""
    scale = getattr(optimizer, "grad_scale", None)
    return gradient * (1 / scale.item()) if isinstance(scale, Tensor) else gradient


def _moved(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Tell whether a weight is another than before; NaN is like NaN."""
    return any(
        p.shape != was.shape or (not torch.equal(p.detach(), was) and not torch.equal(_plain(p), _plain(was)))
        for p, was in zip(parameters, before, strict=True)
    )


def _share_left(begin: Sequence[Tensor], stepped: Sequence[Tensor], end: Sequence[Tensor]) -> float:
    """Return how much of a step is left in the weights at the end: 1 if nothing else moves them."""
    made = left = 0.0
    for was, after, now in zip(begin, stepped, end, strict=True):
        if was.shape == now.shape and was.is_floating_point():
            step = (after - was).flatten().double()
            made += float(step @ step)
            left += float(step @ (now.detach() - was).flatten().double())
    return left / made if made and math.isfinite(left / made) else 1.0


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().nan_to_num() if tensor.is_floating_point() else tensor.detach()


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())
