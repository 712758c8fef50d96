"""Watch a script's training as it runs: the observer, cut into updates where the next one begins.

An update is complete once every optimizer has stepped, or was asked to by a scaler that skipped;
the next one begins with the next autocast region or backward pass.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.observer import Observer, _Stepping
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
)
from amp_course.watching.taps import Original
from amp_course.watching.uses import steps_of
from amp_course.watching.values import all_finite

_PATIENCE = 8  # steps of one optimizer without one of another, which then counts as idle


@dataclass(eq=False)
class Clip(Event):
    """A call that clips a `norm` of some optimizers to `limit`; `scaled`: with a loss scale."""

    numbers: frozenset[int]
    limit: float
    norm: float
    scaled: frozenset[int]


@dataclass(frozen=True)
class Use:
    """What a step used: the `norm` of its gradients, and of what `arrived` by backward passes.

    scale: that the loss carried for certain; None where that cannot be told
    """

    number: int
    norm: float
    arrived: float
    scale: float | None
    by_scaler: bool
    unscaled: bool


@dataclass(frozen=True)
class Summary:
    """What is kept of an update once it is over.

    losses:  at its backward passes, without the scale where that is known
    asked:   the optimizers that a scaler was asked to step; `stepped`: those that did step
    """

    passes: int
    losses: tuple[float, ...]
    scales: tuple[float, ...]
    scales_after: tuple[float, ...]
    asked: frozenset[int]
    stepped: frozenset[int]
    uses: tuple[Use, ...]
    clips: tuple[Clip, ...]
    moves: int  # of schedulers
    divided: bool = False  # each loss was divided by the number of passes

    @property
    def skipped(self) -> bool:
        """A scaler was asked to step and took no step."""
        return bool(self.asked - self.stepped)


@dataclass
class Script:
    """What is known of a script's updates: the last two in full, and summaries."""

    summaries: list[Summary] = field(default_factory=list)
    recent: list[Update] = field(default_factory=list)
    idle: set[int] = field(default_factory=set)
    lines: dict[str, Counter[Line]] = field(default_factory=dict)  # of events, by their kinds

    def most_common_lines(self) -> dict[str, str]:
        """Return, for each kind of event, the line that made most of them."""
        return {kind: str(lines.most_common(1)[0][0]) for kind, lines in self.lines.items()}


class ScriptObserver(Observer):
    """An observer that stays for a whole run.

    aside:    a context for what is not part of the training
    trouble:  what went wrong in the observing itself, which then ends; the script goes on
    complete: is called after each update; returns what to do to the gradients of the next one
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
        self._completed = complete
        self.trouble: Exception | None = None
        # id → a tensor that `scale` gave, with the scale
        self._scaled: dict[int, tuple[weakref.ref[Tensor], float]] = {}
        # id of a backward event → the scale of its loss
        self._scale_of: dict[int, float | None] = {}
        self._own_call = False  # the next backward pass belongs to a micro-batch that has begun

    def __enter__(self) -> ScriptObserver:
        with self.aside():
            super().__enter__()
        return self

    def enter_step(self, optimizer: Any) -> None:
        """Go on from inside an optimizer's step, whose closure has run its first backward pass."""
        self._stepping_now.append(_Stepping(optimizer))
        self._note_step(optimizer, closure=True)

    def _points(self) -> dict[str, Callable[..., Any]]:
        more = {"scale": self._scale, "clip_norm": self._clip, "clip_value": self._clip}
        return super()._points() | more

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # ---- where one update ends and the next begins ----

    def _note(self, event: Event) -> None:
        begins = isinstance(event, Backward) or (isinstance(event, Region) and event.enabled)
        if begins and self._is_complete():
            self.end_update()
            if isinstance(event, Backward):
                event.moved = False
        goes_on = isinstance(event, Backward) and self._own_call
        if begins and not goes_on and self.update.backwards:
            self.call += 1
        self._own_call = isinstance(event, Region) if begins else self._own_call
        if begins:
            self.update.calls = max(self.update.calls, self.call + 1)
        event.call = self.call
        super()._note(event)
        if event.line is not None:
            kind = event.name if isinstance(event, Call) else type(event).__name__.lower()
            self.script.lines.setdefault(kind, Counter())[event.line] += 1

    def _is_complete(self) -> bool:
        tried = [number for one in self.update.events if (number := _tried(one)) is not None]
        in_closure = any(one.noted for one in self._stepping_now)
        if in_closure or not tried or not self.update.backwards:
            return False
        missing = set(range(len(self.training.optimizers))) - set(tried) - self.script.idle
        if missing and max(map(tried.count, tried)) >= _PATIENCE:
            self.script.idle |= missing
            return True
        return not missing

    def end_update(self) -> None:
        with self._apart(), torch.no_grad():
            update, training = self.update, self.training
            update.scales_after = training.scales()
            update.scalers_made = len(self._made)
            for slot, was in zip(training.slots, self._start, strict=True):
                now = [p.detach() for p in slot.parameters]
                update.changed.append(not all(map(torch.equal, now, was)))
                update.spoilt.append(not all_finite(now))
            self.script.summaries.append(self._summary(update))
            self.script.recent = [*self.script.recent, update][-2:]
            self._start = [slot.copies() for slot in training.slots]
            intervention = self._completed(update)
            self.update, self.call = Update(training.scales()), 0
            self.intervention = intervention or Intervention()
            self._scaled = {key: one for key, one in self._scaled.items() if one[0]() is not None}

    def _summary(self, update: Update) -> Summary:
        losses, divided = [], len(update.backwards) > 1
        for one in update.backwards:
            scale = self._scale_of.pop(id(one), None)
            one.scale = scale  # type: ignore[attr-defined]
            # The first call of `scale` may come too early.
            seen = self.script.summaries or not self.training.scalers
            if seen or scale is not None:
                losses.append(one.value / (scale or 1.0))
                share = one.graph.factor / (scale or 1.0)
                divided &= math.isclose(share * len(update.backwards), 1.0, rel_tol=1e-3)
        return Summary(
            len(update.backwards), tuple(losses), tuple(update.scales), tuple(update.scales_after),
            frozenset(one.number for one in update.called("scaler.step")),
            frozenset(one.number for one in update.steps()), tuple(self._uses(update)),
            tuple(update.of(Clip)), len(update.called("scheduler")), divided and bool(losses),
        )  # fmt: skip

    def _uses(self, update: Update) -> Iterator[Use]:
        for number in range(len(self.training.optimizers)):
            for used in steps_of(update.events, number):
                parts = [one for one in used.parts if number in one.arrived and one.complete]
                scales = {getattr(one, "scale", None) for one in parts}
                if not parts or used.stale or len(scales) > 1 or not used.step.gradient.finite:
                    continue
                arrivals = [one.arrived[number] for one in parts]
                stride = math.sqrt(arrivals[0].layout.stride)
                arrived = torch.stack([one.values for one in arrivals]).sum(0).norm()
                norm = used.step.gradient.values.norm()
                unscaled = bool(update.called("unscale", number))
                yield Use(
                    number, float(norm) * stride, float(arrived) * stride, scales.pop(),
                    used.step.by_scaler, unscaled,
                )  # fmt: skip

    # ---- what is watched, not counting what the doctor itself does ----

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Do something that is not part of the training; if it fails, the observing ends."""
        try:
            with self.aside():
                yield
        except Exception as error:
            self.trouble, self.paused = error, True

    def _begin(self, tensors: Any) -> Backward:
        event = Backward(self.call)
        with self._apart():
            event = super()._begin(tensors)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        known = [self._scaled.get(id(one), (lambda: None, None)) for one in roots]
        if known and all(of() is one for (of, _), one in zip(known, roots, strict=True)):
            self._scale_of[id(event)] = known[0][1]
        return event

    def _keep_weights(self, number: int) -> None:
        """Only an audit compares them with what is left."""

    def _scale(self, original: Original, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._scaler_method("scale", original, scaler, *args, **kwargs)
        if isinstance(result, Tensor) and scaler.is_enabled():
            with self.aside():
                self._scaled[id(result)] = weakref.ref(result), float(scaler.get_scale())
        return result

    def _clip(self, original: Original, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = next(iter(args), kwargs.get("max_norm", kwargs.get("clip_value", math.inf)))
        numbers = frozenset(self._slot_of[id(p)] for p in held if id(p) in self._slot_of)
        with self.aside():
            grads = [p.grad.detach() for p in held if p.grad is not None]
            largest = max((float(g.abs().max()) for g in grads if g.numel()), default=0.0)
        result = original(held, *args, **kwargs)
        with self.aside():
            norm = float(result) if isinstance(result, Tensor) else largest
            if not self.paused:
                self._note(Clip(self.call, numbers, float(limit), norm, self._scaled_ones(numbers)))
        return result

    def _scaled_ones(self, numbers: frozenset[int]) -> frozenset[int]:
        """Return the optimizers whose gradients carry a loss scale."""
        scaled: set[int] = set()
        for event in self.update.events:
            if isinstance(event, Backward):
                carries = self._scale_of.get(id(event)) not in (None, 1.0)
                scaled = scaled | event.arrived.keys() if carries else scaled - event.arrived.keys()
            elif isinstance(event, Call) and event.name == "unscale":
                scaled.discard(event.number)
        return numbers & scaled


def _tried(event: Event) -> int | None:
    """Return the number of the optimizer that an event is a step or a try of; else None."""
    steps = isinstance(event, Step) or (isinstance(event, Call) and event.name == "scaler.step")
    number = getattr(event, "number", -1)
    return number if steps and number >= 0 else None
