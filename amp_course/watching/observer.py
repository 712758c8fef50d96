"""Watch a training step and record its backward passes, calls and steps, in order.

Nothing is attached to the user's objects: torch is patched (see `taps`) until the observer leaves.
An `Intervention` enlarges gradients on purpose once they are computed, or puts an inf into one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amp_course.kit.tensors import tensors_in
from amp_course.watching import taps
from amp_course.watching.graphs import LOW_DTYPES, inspect_graphs, next_node
from amp_course.watching.interventions import added, enlarge, inject_inf
from amp_course.watching.optimizer_steps import StepObserver, not_training
from amp_course.watching.records import (
    Backward,
    Call,
    Graph,
    Intervention,
    Region,
    Training,
    index_of,
)
from amp_course.watching.taps import Original
from amp_course.watching.values import all_finite
from amp_course.watching.weights import have_moved, share_left

_COMPOSITE_LOSSES = ("kl_div", "l1_loss")  # they leave no node of their own in the graph


class Observer(StepObserver):
    """In `with Observer(training) as observer:` call `observer.next_call(n)` and run the step.

    graphs: inspect the graphs of losses
    unknown_scalers: enabled scalers that were used and are not the training's
    """

    def __init__(
        self, training: Training, intervention: Intervention | None = None, *, graphs: bool = False
    ) -> None:
        super().__init__(training, graphs=graphs)
        self.intervention = intervention or Intervention()
        self.unknown_scalers: list[torch.amp.GradScaler] = []
        self._new_scalers: list[Any] = []
        self._region_end = math.inf  # the next node's sequence number at the end of the last region
        # A pass made a graph of its own: its nodes are none that the caller wrote.
        self._differentiable = False
        self._stack = ExitStack()

    def __enter__(self) -> Observer:
        self._start = [slot.copies() for slot in self.training.slots]
        known = self.training.scalers, self.training.schedulers
        self._stack.enter_context(taps.listening(self._points(), *known))
        return self

    def _points(self) -> dict[str, Callable[..., Any]]:
        losses = _COMPOSITE_LOSSES if self.graphs else ()
        return {
            "backward": self._backward,
            "engine": self._engine,
            "enter_region": self._enter,
            "leave_region": self._leave,
            "new_scaler": self._new_scaler,
            "schedule": self._schedule,
            "step_begins": self._step_begins,
            "step_ends": self._step_ends,
            "move_weights": self._move_weights,
            **{point: partial(self._scaler_method, point) for point in taps.SCALER_METHODS},
            **{name: partial(self._loss, name) for name in losses},
        }

    def __exit__(self, *_: object) -> None:
        update, training = self.update, self.training
        self._stack.close()
        update.scales_after = training.scales()
        update.scalers_made = len(self._new_scalers)
        for number, after in self._after_step.items():
            now = training.slots[number].parameters
            update.share_left[number] = share_left(self._start[number], after, now)
        for slot, was in zip(training.slots, self._start, strict=True):
            update.changed.append(have_moved(slot.parameters, was))
            update.corrupted.append(all_finite(was) and not all_finite(slot.parameters))

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
                self._note_arrivals(event, before)

    def _engine(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        if not self.paused:
            self._differentiable |= bool(args[3])  # create_graph
            self.update.second_order = self._differentiable
            self.update.differentiated += 1
        return original(*args, **kwargs)

    def _begin(self, tensors: Any) -> Backward:
        roots, slots = list(tensors_in(tensors)), self.training.slots
        region_end = math.inf if self._differentiable else self._region_end
        event = Backward(
            self.call,
            in_autocast=torch.is_autocast_enabled(self.training.device_type),
            dtype=roots[0].dtype if roots else None,
            value=float(roots[0].detach()) if roots and roots[0].numel() == 1 else math.nan,
            graph=inspect_graphs(roots, region_end) if self.graphs else Graph(),
            before=[self._summarize_grads(n) for n in range(len(slots))],
            wanted=[tuple(p.requires_grad for p in slot.parameters) for slot in slots],
            moved=any(map(have_moved, (slot.parameters for slot in slots), self._start)),
        )
        if not self.update.modes:
            self.update.modes = self.training.current_modes()
        self._note(event)
        return event

    @not_training
    @torch.no_grad()
    def _note_arrivals(self, event: Backward, before: list[list[Tensor | None]]) -> None:
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
            enabled = bool(region._enabled)
            self._note(Region(self.call, region.device, enabled, region.fast_dtype, inside))
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
        self._new_scalers.append(scaler)

    def _scaler_method(
        self, name: str, original: Original, scaler: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_running(scaler) and not self.paused and scaler.is_enabled():
            self._note_call(name.replace("_", "."), scaler, args, kwargs)
        return self._run_method(name, original, scaler, *args, **kwargs)

    def _is_running(self, owner: Any) -> bool:
        """Return True inside a method of a scaler or scheduler: `super()` calls another, say."""
        return any(one is owner for _, one in self._running)

    def _run_method(
        self, name: str, original: Original, owner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._running.append((name, owner))
        try:
            return original(owner, *args, **kwargs)
        finally:
            self._running.pop()

    @not_training
    def _note_call(
        self, name: str, scaler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        index = index_of(scaler, self.training.scalers)
        if index < 0 and index_of(scaler, [*self.unknown_scalers, *self._new_scalers]) < 0:
            self.unknown_scalers.append(scaler)
        number, empty, closure = -1, False, False
        if name in ("unscale", "scaler.step"):
            number = self.number_of(args[0] if args else kwargs.get("optimizer"))
            empty = number >= 0 and self._summarize_grads(number).empty
            closure = any(callable(one) for one in (*args[1:], *kwargs.values()))
        self._note(Call(self.call, name, number, index, empty, closure))

    def _schedule(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        number = index_of(scheduler, self.training.schedulers)
        if number >= 0 and not self._is_running(scheduler) and not self.paused:
            self._note(Call(self.call, "scheduler", number))
        return self._run_method("schedule", original, scheduler, *args, **kwargs)
