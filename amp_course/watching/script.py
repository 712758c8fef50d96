"""Watch a script's training as it runs, and cut it into updates.

An update is complete once every optimizer has stepped, or its scaler has skipped the step; the next
one begins with the next autocast region or backward pass.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.observer import Observer
from amp_course.watching.optimizer_steps import OpenStep
from amp_course.watching.origins import Line
from amp_course.watching.records import (
    Backward,
    Call,
    Event,
    Intervention,
    Region,
    Step,
    Training,
    Update,
    index_of,
)
from amp_course.watching.taps import Original
from amp_course.watching.uses import steps_of
from amp_course.watching.values import all_finite

_PATIENCE = 8  # steps of one optimizer, after which another that took none counts as idle


@dataclass(eq=False)
class Clip(Event):
    """A call that clips the gradients of some optimizers, with a `norm`, to `limit`.

    numbers: of the optimizers; `scaled`: those whose gradients carry a loss scale
    """

    numbers: frozenset[int]
    limit: float
    norm: float
    scaled: frozenset[int]


@dataclass(frozen=True)
class StepNorms:
    """What a step used, in short: the norms of its gradients, and of what `arrived` for it.

    number:  of the optimizer
    scale:   that the loss carried for certain; None if it is unknown
    at_call: the norm when the optimizer's `step` was called, before what that does to gradients
    line:    of the step
    """

    number: int
    norm: float
    arrived: float
    scale: float | None
    by_scaler: bool
    unscaled: bool
    at_call: float = 0.0
    line: Line | None = None


@dataclass(frozen=True)
class Summary:
    """What is kept of an update once it is over.

    losses:    at its backward passes, without the scale where that is known
    attempted: the optimizers that a scaler was to step; `stepped`: those that did step
    moves:     of schedulers
    divided:   each loss was divided by the number of passes
    crossed:   a loss was scaled by one scaler, and another stepped the optimizer
    """

    passes: int
    losses: tuple[float, ...]
    scales: tuple[float, ...]
    scales_after: tuple[float, ...]
    attempted: frozenset[int]
    stepped: frozenset[int]
    uses: tuple[StepNorms, ...]
    clips: tuple[Clip, ...]
    moves: int
    divided: bool = False
    crossed: bool = False

    @property
    def skipped(self) -> bool:
        """A scaler skipped a step."""
        return bool(self.attempted - self.stepped)


@dataclass
class Script:
    """What is known of a script's updates: the last two in full, and summaries.

    idle:  optimizers that take no step for now
    lines: kind of event → the lines that made it
    """

    summaries: list[Summary] = field(default_factory=list)
    recent: list[Update] = field(default_factory=list)
    idle: set[int] = field(default_factory=set)
    lines: dict[str, Counter[Line]] = field(default_factory=dict)

    def most_common_lines(self) -> dict[str, str]:
        """Return, for each kind of event, the line that made most of them."""
        return {kind: str(lines.most_common(1)[0][0]) for kind, lines in self.lines.items()}


class ScriptObserver(Observer):
    """An observer for a whole run.

    aside:    a context for what is not part of the training
    complete: called after each update; returns what to do to the gradients of the next one
    trouble:  an error in the observer itself, which then stops; the script goes on
    """

    def __init__(
        self,
        training: Training,
        aside: Callable[[], AbstractContextManager[None]],
        complete: Callable[[Update], Intervention | None],
        script: Script,
    ) -> None:
        super().__init__(training, graphs=True)
        self.aside, self.script = aside, script
        self.complete = complete
        self.trouble: Exception | None = None
        # id → a tensor that `scale` returned, with the scale and the number of the scaler
        self._scaled: dict[int, tuple[weakref.ref[Tensor], float, int]] = {}
        self._region_began = False  # the next backward pass belongs to its micro-batch

    def __enter__(self) -> ScriptObserver:
        with self.aside():
            super().__enter__()
        return self

    def enter_step(self, optimizer: Any) -> None:
        """Begin inside an optimizer's step, whose closure has run its first backward pass."""
        self._open_steps.append(OpenStep(optimizer))
        self._note_step(optimizer, closure=True)

    def _points(self) -> dict[str, Callable[..., Any]]:
        clips = {"clip_norm": self._clip, "clip_value": self._clip}
        return super()._points() | clips | {"scale": self._scale}

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # ---- where one update ends and the next begins ----

    def _note(self, event: Event) -> None:
        is_backward = isinstance(event, Backward)
        if is_backward or (isinstance(event, Region) and event.enabled):
            if self.is_complete():
                self.end_update()
                if isinstance(event, Backward):
                    event.moved = False
            goes_on = is_backward and self._region_began
            if not goes_on and self.update.backwards:
                self.call += 1
            self._region_began = not is_backward
            self.update.calls = max(self.update.calls, self.call + 1)
        event.call = self.call
        super()._note(event)
        if event.line is not None:
            kind = event.name if isinstance(event, Call) else type(event).__name__.lower()
            self.script.lines.setdefault(kind, Counter())[event.line] += 1

    def is_complete(self) -> bool:
        tried = [number for one in self.update.events if (number := _tried(one)) is not None]
        in_closure = any(one.noted for one in self._open_steps)
        if in_closure or not tried or not self.update.backwards:
            return False
        missing = set(self.training.numbers) - set(tried) - self.script.idle
        if missing and max(map(tried.count, tried)) >= _PATIENCE:
            self.script.idle |= missing
            return True
        return not missing

    def end_update(self) -> None:
        with self._outside_training(), torch.no_grad():
            update, training = self.update, self.training
            update.scales_after = training.scales()
            update.scalers_made = len(self._new_scalers)
            self._new_scalers.clear()
            for slot, was in zip(training.slots, self._start, strict=True):
                now = [p.detach() for p in slot.parameters]
                update.changed.append(not all(map(torch.equal, now, was)))
                update.corrupted.append(not all_finite(now))
            self.script.summaries.append(self._summary(update))
            self.script.recent = [*self.script.recent, update][-2:]
            self._start = [slot.copies() for slot in training.slots]
            intervention = self.complete(update)
            self.update, self.call = Update(training.scales()), 0
            self.intervention = intervention or Intervention()
            self._scaled = {key: one for key, one in self._scaled.items() if one[0]() is not None}

    def _summary(self, update: Update) -> Summary:
        losses, divided = [], len(update.backwards) > 1
        for one in update.backwards:
            # The script may have called `scale` before it was observed, in the first update.
            missed = self.training.scalers and not self.script.summaries
            if one.scale is not None or not missed:
                scale = one.scale or 1.0
                losses.append(one.value / scale)
                share = one.graph.factor / scale
                divided &= math.isclose(share * len(update.backwards), 1.0, rel_tol=1e-3)
        return Summary(
            passes=len(update.backwards),
            losses=tuple(losses),
            scales=tuple(update.scales),
            scales_after=tuple(update.scales_after),
            # −1 is an optimizer that is not observed
            attempted=frozenset(one.number for one in update.called("scaler.step")) - {-1},
            stepped=frozenset(one.number for one in update.steps()),
            uses=tuple(self._uses(update)),
            clips=tuple(update.of(Clip)),
            moves=len(update.called("scheduler")),
            divided=divided and bool(losses),
            crossed=any(map(partial(self._crossed, update), self.training.numbers)),
        )

    def _crossed(self, update: Update, number: int) -> bool:
        """Return True if another scaler stepped an optimizer than one that scaled its loss."""
        by = {one.scaler for one in update.called("scaler.step", number)}
        used = [one.parts for one in steps_of(update.events, number) if not one.stale]
        scaled = {one.scaler for parts in used for one in parts if number in one.arrived}
        return bool(by) and -1 not in by and not scaled - {-1} <= by

    def _uses(self, update: Update) -> Iterator[StepNorms]:
        for number in self.training.numbers:
            for used in steps_of(update.events, number):
                parts = [one for one in used.parts if number in one.arrived and one.complete]
                scales = {one.scale for one in parts}
                if not parts or used.stale or len(scales) > 1 or not used.step.gradient.finite:
                    continue
                arrivals = [one.arrived[number] for one in parts]
                stride = math.sqrt(arrivals[0].layout.stride)
                arrived = torch.stack([one.values for one in arrivals]).sum(0).norm()
                yield StepNorms(
                    number=number,
                    norm=float(used.step.gradient.values.norm()) * stride,
                    arrived=float(arrived) * stride,
                    scale=scales.pop(),
                    by_scaler=used.step.by_scaler,
                    unscaled=bool(update.called("unscale", number)),
                    at_call=float(used.step.at_call.values.norm()) * stride,
                    line=used.step.line,
                )

    # ---- what is watched ----

    @contextmanager
    def _outside_training(self) -> Iterator[None]:
        """Do something that is not part of the training; an error in it stops the observer."""
        try:
            with self.aside():
                yield
        except Exception as error:
            self.trouble, self.paused = error, True

    def _begin(self, tensors: Any) -> Backward:
        event = Backward(self.call)
        with self._outside_training():
            event = super()._begin(tensors)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        known = [self._scaled.get(id(one), (lambda: None, None, -1)) for one in roots]
        if known and all(scaled() is one for (scaled, *_), one in zip(known, roots, strict=True)):
            _, event.scale, event.scaler = known[0]
        return event

    def _keep_weights(self, number: int) -> None:
        """Keep none: only an audit compares them with the weights at the end."""

    def _new_scaler(self, original: Original, scaler: Any, *args: Any, **kwargs: Any) -> None:
        """Follow the first scaler even if the training has begun without one."""
        super()._new_scaler(original, scaler, *args, **kwargs)
        if not self.training.scalers and scaler.is_enabled():
            self.training.scalers.append(scaler)
            self.update.scales = self.training.scales()

    def _scale(self, original: Original, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._scaler_method("scale", original, scaler, *args, **kwargs)
        if isinstance(result, Tensor) and scaler.is_enabled():
            with self.aside():
                index = index_of(scaler, self.training.scalers)
                self._scaled[id(result)] = weakref.ref(result), float(scaler.get_scale()), index
        return result

    def _clip(self, original: Original, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = next(iter(args), kwargs.get("max_norm", kwargs.get("clip_value", math.inf)))
        numbers = frozenset(self._slot_of[id(p)] for p in parameters if id(p) in self._slot_of)
        with self.aside():
            grads = [p.grad.detach() for p in parameters if p.grad is not None]
            largest = max((float(g.abs().max()) for g in grads if g.numel()), default=0.0)
        result = original(parameters, *args, **kwargs)
        with self.aside():
            norm = float(result) if isinstance(result, Tensor) else largest
            if not self.paused:
                with_scale = self._with_scale()
                scaled = frozenset(
                    self._slot_of[key] for key in map(id, parameters) if key in with_scale
                )
                self._note(Clip(self.call, numbers, float(limit), norm, scaled))
        return result

    def _with_scale(self) -> set[int]:
        """Return the ids of the parameters whose gradients carry a loss scale."""
        scaled: set[int] = set()
        for event in self.update.events:
            if isinstance(event, Backward):
                for gradient in event.arrived.values():
                    parts = zip(gradient.layout.parameters, gradient.present, strict=True)
                    new = {id(p) for p, present in parts if present}
                    scaled = scaled | new if event.scale not in (None, 1.0) else scaled - new
            elif isinstance(event, Call) and event.name == "unscale" and event.number >= 0:
                scaled -= set(map(id, self.training.slots[event.number].parameters))
        return scaled


def _tried(event: Event) -> int | None:
    """Return the number of the optimizer that steps in an event, or is to step; else None."""
    if isinstance(event, Step) or (isinstance(event, Call) and event.name == "scaler.step"):
        return event.number if event.number >= 0 else None
    return None
