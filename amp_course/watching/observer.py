"""Watch a training step and record its backward passes, calls and steps, in order.

Nothing is put on an object of the reader's: torch is tapped (see `taps`) until the observer leaves.
Two things can be done on purpose once a gradient has been computed: make it larger, and put an inf
into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from amp_course.kit.tensors import tensors_in
from amp_course.watching import taps
from amp_course.watching.graphs import LOW_DTYPES, look_at, next_node
from amp_course.watching.interventions import added, enlarge, inject_inf
from amp_course.watching.origins import readers_line
from amp_course.watching.records import (
    Backward,
    Call,
    Event,
    Gradient,
    GradSummary,
    Graph,
    Intervention,
    Layout,
    Region,
    Step,
    Training,
    Update,
    weights_of,
)
from amp_course.watching.taps import Original
from amp_course.watching.values import all_finite, skips

_COMPOSITE_LOSSES = ("kl_div", "l1_loss")  # those that leave no node of their own in the graph


def _aside(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of an observer do what is not part of the training."""

    @wraps(method)
    def done(self: Observer, *args: Any, **kwargs: Any) -> None:
        with self._apart():
            method(self, *args, **kwargs)

    return done


@dataclass
class _Stepping:
    """An optimizer inside its step, what was noted of it, and what torch has moved."""

    optimizer: Any
    noted: list[Step] = field(default_factory=list)
    moved: set[int] | None = None  # ids of parameters


class Observer:
    """In `with Observer(training) as observer:` say `observer.next_call(n)` and run the step.

    graphs:    walk the graphs of losses
    update:    what happened, to be read afterwards
    unknown_scalers: enabled scalers that were used and are not among the training's
    """

    def __init__(
        self, training: Training, intervention: Intervention | None = None, *, graphs: bool = False
    ) -> None:
        self.training, self.graphs = training, graphs
        self.intervention = intervention or Intervention()
        self.update = Update(training.scales())
        self.call = 0
        self.unknown_scalers: list[torch.amp.GradScaler] = []
        self.paused = False  # what the audit itself computes is not written down
        self._made: list[Any] = []
        # methods of scalers and schedulers that are running
        self._inside: list[tuple[str, Any]] = []
        self._stepping_now: list[_Stepping] = []
        self._after_step: dict[int, list[Tensor]] = {}  # the weights that an optimizer left
        self._backward_depth = 0
        self._region_end = math.inf  # the next node's sequence number at the end of the last region
        # A pass made a graph of its own, which the caller did not write
        self._differentiable = False
        self._stack = ExitStack()
        self._slot_of = {id(p): n for n, slot in enumerate(training.slots) for p in slot.parameters}

    def __enter__(self) -> Observer:
        self._start = [slot.copies() for slot in self.training.slots]
        given = self.training.scalers, self.training.schedulers
        self._stack.enter_context(taps.listening(self._points(), *given))
        return self

    def _points(self) -> dict[str, Callable[..., Any]]:
        losses = _COMPOSITE_LOSSES if self.graphs else ()
        return {
            "backward": self._backward, "engine": self._engine, "enter_region": self._enter,
            "leave_region": self._leave, "new_scaler": self._new_scaler,
            "schedule": self._schedule, "step_begins": self._step_begins,
            "step_ends": self._step_ends, "move_weights": self._move_weights,
            **{point: partial(self._scaler_method, point) for point in taps.SCALER_METHODS},
            **{name: partial(self._loss, name) for name in losses},
        }  # fmt: skip

    def _apart(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __exit__(self, *_: object) -> None:
        update, training = self.update, self.training
        self._stack.close()
        update.scales_after = training.scales()
        update.scalers_made = len(self._made)
        for number, after in self._after_step.items():
            now = training.slots[number].parameters
            update.left[number] = _share_left(self._start[number], after, now)
        for slot, was in zip(training.slots, self._start, strict=True):
            update.changed.append(_moved(slot.parameters, was))
            update.spoilt.append(all_finite(was) and not all_finite(slot.parameters))

    def _note(self, event: Event) -> None:
        event.line = event.line or readers_line()
        self.update.events.append(event)

    # ---- backward passes ----

    def _backward(self, original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
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
            if not self.paused:
                self._arrived(event, before)

    def _engine(self, original: Original, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Its fourth argument is `create_graph`."""
        self._differentiable |= bool(args[2]) and not self.paused
        self.update.second_order = self._differentiable
        self.update.differentiated += not self.paused
        return original(outputs, *args, **kwargs)

    def _begin(self, tensors: Any) -> Backward:
        roots, slots = list(tensors_in(tensors)), self.training.slots
        region_end = math.inf if self._differentiable else self._region_end
        event = Backward(
            self.call,
            in_autocast=torch.is_autocast_enabled(self.training.device_type),
            dtype=roots[0].dtype if roots else None,
            value=float(roots[0].detach()) if roots and roots[0].numel() == 1 else math.nan,
            graph=look_at(roots, region_end) if self.graphs else Graph(),
            before=[self._held(n) for n in range(len(slots))],
            wanted=[tuple(p.requires_grad for p in slot.parameters) for slot in slots],
            moved=any(map(_moved, (slot.parameters for slot in slots), self._start)),
        )
        if self.graphs and not self.update.modes:
            self.update.modes = self.training.current_modes()
        self._note(event)
        return event

    def _held(self, number: int) -> GradSummary:
        slot = self.training.slots[number]
        if all(p.grad is None for p in slot.parameters):
            return GradSummary()
        now = slot.now()
        return GradSummary(now.empty, now.finite, now.norm)

    @_aside
    @torch.no_grad()
    def _arrived(self, event: Backward, before: list[list[Tensor | None]]) -> None:
        number = len(self.update.backwards) - 1
        for n, slot in enumerate(self.training.slots):
            new = [added(p.grad, was) for p, was in zip(slot.parameters, before[n], strict=True)]
            if all(one is None for one in new):
                continue
            event.arrived[n] = slot.gradient(new)
            if self.intervention.factor != 1.0:
                for p, was, one in zip(slot.parameters, before[n], new, strict=True):
                    if one is not None:
                        enlarge(p, was, one, self.intervention.factor)
            if (number, n) in self.intervention.inject_inf:
                inject_inf(slot, self.intervention)

    def _enter(self, original: Original, region: Any) -> Any:
        if not self.paused:
            self._region_end = math.inf
            inside = torch.is_autocast_enabled(self.training.device_type)
            kind = region.device, bool(region._enabled), region.fast_dtype
            self._note(Region(self.call, *kind, inside))
        return original(region)

    def _leave(self, original: Original, region: Any, *args: Any) -> Any:
        result = original(region, *args)
        if not self.paused and not torch.is_autocast_enabled(self.training.device_type):
            self._region_end = next_node()
        return result

    def _loss(self, name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
        outputs: Any = args[0] if args else kwargs.get("input")
        low = isinstance(outputs, Tensor) and outputs.requires_grad and outputs.dtype in LOW_DTYPES
        if low and not self.paused and not torch.is_autocast_enabled(outputs.device.type):
            self.update.losses_outside.append((name, outputs.dtype))
        return original(*args, **kwargs)

    # ---- scalers and schedulers ----

    def _new_scaler(self, original: Original, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        self._made.append(scaler)

    def _scaler_method(
        self, name: str, original: Original, scaler: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # A call by `super()`, or of `unscale_` from `step`, comes from inside.
        inside = any(one is scaler for _, one in self._inside)
        if not inside and not self.paused and scaler.is_enabled():
            self._note_call(name.replace("_", "."), scaler, args, kwargs)
        return self._run_inside(name, original, scaler, *args, **kwargs)

    def _run_inside(
        self, name: str, original: Original, owner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._inside.append((name, owner))
        try:
            return original(owner, *args, **kwargs)
        finally:
            self._inside.pop()

    @_aside
    def _note_call(
        self, name: str, scaler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        index = _place_of(scaler, self.training.scalers)
        if index < 0 and _place_of(scaler, [*self.unknown_scalers, *self._made]) < 0:
            self.unknown_scalers.append(scaler)
        number, empty, closure = -1, False, False
        if name in ("unscale", "scaler.step"):
            number = self.number_of(args[0] if args else kwargs.get("optimizer"))
            empty = number >= 0 and self._held(number).empty
            closure = any(callable(one) for one in (*args[1:], *kwargs.values()))
        self._note(Call(self.call, name, number, index, empty, closure))

    def _schedule(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        number = _place_of(scheduler, self.training.schedulers)
        inside = any(one is scheduler for _, one in self._inside)  # by a subclass's own `step`
        if number >= 0 and not inside and not self.paused:
            self._note(Call(self.call, "scheduler", number))
        return self._run_inside("schedule", original, scheduler, *args, **kwargs)

    # ---- optimizers ----

    def number_of(self, optimizer: Any) -> int:
        """Return the number of an optimizer, or of the training's over its parameters; else -1."""
        number = _place_of(optimizer, self.training.optimizers)
        if number >= 0 or not hasattr(optimizer, "param_groups"):
            return number
        found = (self._slot_of[id(p)] for p in weights_of(optimizer) if id(p) in self._slot_of)
        number = next(found, -1)
        return number if number < len(self.training.optimizers) else -1

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or skips(optimizer):
            return None
        self._stepping_now.append(_Stepping(optimizer))
        place = len(args) > 1 and callable(args[1])
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

    def _move_weights(
        self, original: Original, parameters: Any, gradients: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._stepping_now and not self.paused:
            self._used(self._stepping_now[-1], parameters, gradients)
        return original(parameters, gradients, *args, **kwargs)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        if self._stepping_now and self._stepping_now[-1].optimizer is optimizer:
            stepping = self._stepping_now.pop()
            if not self.paused:
                self._settle(stepping)
        number = self.number_of(optimizer)
        if self.graphs and number >= 0:
            self._keep_weights(number)

    def _keep_weights(self, number: int) -> None:
        self._after_step[number] = self.training.slots[number].copies()

    @_aside
    @torch.no_grad()
    def _used(
        self, stepping: _Stepping, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Take down the gradients that move the weights: the step has clipped them, say."""
        given = {id(p): g for p, g in zip(parameters, gradients, strict=True)}
        stepping.moved = (stepping.moved or set()) | given.keys()
        for step in stepping.noted:
            layout = step.gradient.layout
            now = layout.gradient([given.get(id(p)) for p in layout.parameters])
            step.replace(_unscaled(now, stepping.optimizer), now.present)

    @_aside
    @torch.no_grad()
    def _settle(self, stepping: _Stepping) -> None:
        """Note which parameters torch's own function has left out of a step."""
        moved = stepping.moved
        if moved is None:
            return
        for step in stepping.noted:
            layout = step.gradient.layout
            out = [id(p) not in moved for p in layout.parameters]
            step.replace(layout.gradient([None] * len(out)), out)

    def next_call(self, number: int) -> None:
        """Say that the next micro-batch begins."""
        self.call, self.update.calls = number, number + 1
        self._stepping_now.clear()

    @_aside
    def _note_step(self, optimizer: Any, *, closure: bool) -> None:
        number, weights = self.number_of(optimizer), weights_of(optimizer)
        slots, held = self.training.slots, set(map(id, weights))
        layout = slots[number] if number >= 0 else Layout(weights)
        gradient = layout.gradient([p.grad if id(p) in held else None for p in layout.parameters])
        own = number >= 0 and self.training.optimizers[number] is optimizer
        step = Step(
            self.call,
            number,
            _unscaled(gradient, optimizer),
            rate=highest_rate(optimizer),
            other="" if own else type(optimizer).__name__,
            closure=closure,
            in_backward=self._backward_depth > 0,
            by_scaler=any(name == "scaler_step" for name, _ in self._inside),
            optimizer=optimizer,
            rest=math.hypot(*(self._held(n).norm for n in range(len(slots)) if n != number)),
        )
        if step.in_backward:
            for event in self.update.backwards[-1:]:
                event.complete = False
        for outer in self._stepping_now[:-1]:
            # SAM, Lookahead and their like step another optimizer over the same parameters, others
            # their own base class's step: the innermost one counts.
            for one in outer.noted if self.number_of(outer.optimizer) == number >= 0 else ():
                if one in self.update.events:
                    self.update.events.remove(one)
                    step.given, step.line = one.given, one.line
            outer.noted = [one for one in outer.noted if one in self.update.events]
        self._note(step)
        if self._stepping_now and self._stepping_now[-1].optimizer is optimizer:
            self._stepping_now[-1].noted.append(step)


def highest_rate(optimizer: Any) -> float:
    """Return the highest learning rate of an optimizer's groups."""
    return max((float(group.get("lr", 1.0)) for group in optimizer.param_groups), default=1.0)


def _place_of(one: Any, among: Sequence[Any]) -> int:
    """Return the place of this very object in a list, -1 if it is not there."""
    return next((n for n, other in enumerate(among) if other is one), -1)


def _unscaled(gradient: Gradient, optimizer: Any) -> Gradient:
    """Divide by the scale that a scaler leaves to a fused optimizer."""
    scale = getattr(optimizer, "grad_scale", None)
    return gradient * (1 / scale.item()) if isinstance(scale, Tensor) else gradient


def _moved(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Return True if a weight is another than before; NaN is like NaN."""
    return any(
        not torch.equal(p.detach(), was) and not torch.equal(_plain(p), _plain(was))
        for p, was in zip(parameters, before, strict=True)
    )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().nan_to_num() if tensor.is_floating_point() else tensor


def _share_left(begin: Sequence[Tensor], stepped: Sequence[Tensor], end: Sequence[Tensor]) -> float:
    """Return how much of a step is left in the weights at the end: 1 if nothing else moves them."""
    made = left = 0.0
    for was, after, now in zip(begin, stepped, end, strict=True):
        if was.shape == now.shape and was.is_floating_point():
            step = (after - was).flatten().double()
            made += float(step @ step)
            left += float(step @ (now.detach() - was).flatten().double())
    return left / made if made and math.isfinite(left / made) else 1.0
