"""The watchers of a training, and what the rules make of what they see: in a script's process, or around a step in place."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules.training import (
    advise_16_bits,
    advise_modules,
    advise_ratio,
    advise_saving,
    advise_speed,
    check_buried,
    check_lost,
    check_modules,
    observe_reads,
)
from amp_course.diagnosis.rules.updates import PairRules, check_summaries
from amp_course.diagnosis.rules.values import check_values
from amp_course.doctor.machine import machine_facts
from amp_course.watching import taps
from amp_course.watching.buried import Buried
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.modules import ModulesSeen
from amp_course.watching.process import Calls, Made, Raised, Ranks, Saved
from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.records import Meddling, Region, Training, Update
from amp_course.watching.script import Script, ScriptObserver, Summary
from amp_course.watching.twins import Twins

Values = tuple[list[Any], dict[Any, None], dict[str, None]]  # births, arrived, given
_OF_AN_OPTIMIZER = ("optimizer-of-old-weights", "frozen-optimizer")  # at fault is the line that made it
_OFTEN = 0.5  # of the time
_LONG = 10  # updates without one of an average that is in use
_MOST_OPTIMIZERS = 16  # that are followed: after each backward pass, all of them are looked at


class Watchers:
    """All that watch one process's training, and the training's phases: a new optimizer begins one.

    complete: is called after each update, as `ScriptObserver` calls it
    """

    def __init__(self, complete: Callable[[Update], Meddling | None]) -> None:
        self._complete = complete
        self.watch = DoctorsWatch()
        self.made = Made(self.watch, self._new_phase)
        self.begin()

    def begin(self) -> None:
        """Forget what was seen, but for the objects that were made."""
        self.raised = Raised(errors.described)
        self.calls = Calls(self.watch)
        self.saved = Saved()
        self.ranks = Ranks(self._updates)
        self.modules = ModulesSeen()
        self.buried = Buried(self.watch)
        self.twins = Twins(self.out_of_sight)
        self.ranges: RangeWatch | None = None
        self.script = Script()
        self.observer: ScriptObserver | None = None
        self.began = 0.0  # the training
        self.averages: set[AveragedModel] = set()  # that were called
        self._regions: list[tuple[Region | None, int]] = []  # entered: the event, and matmuls in 16 bits before it
        self._stepping: torch.optim.Optimizer | None = None
        self.averaged: set[int] = set()  # numbers of the updates, from 0, in which an average moved
        # Layer → with gradients? → dtypes of autocast. It keeps no layer alive.
        self.precisions: MutableMapping[nn.Module, dict[bool, set[torch.dtype]]] = WeakKeyDictionary()
        self.sharded = False  # weights are DTensors, which only a collective can look at
        self._stack = contextlib.ExitStack()
        for one in (self, self.made, self.raised, self.calls, self.saved, self.ranks, self.buried):
            self._stack.enter_context(taps.listening(one))
        self._stack.enter_context(self.twins.hooks())

    def end(self) -> None:
        """Take off all but the watch over ops."""
        self._stack.close()
        if self.observer is not None:
            self.observer.__exit__()
        if self.ranges is not None:
            self.ranges.stop()

    def enter_region(self, original: Callable[..., Any], region: Any) -> Any:
        """Begin to observe with the first region or backward pass."""
        if region._enabled:
            self._observe()
        result = original(region)
        events = self.observer.update.events if self.observer is not None else []
        last = events[-1] if events and isinstance(events[-1], Region) else None
        self._regions.append((last, self._low_matmuls()))
        return result

    def leave_region(self, original: Callable[..., Any], region: Any, *args: Any) -> Any:
        """Note whether autocast acted in it."""
        event, before = self._regions.pop() if self._regions else (None, 0)
        if event is not None:
            event.casts = self._low_matmuls() > before
        return original(region, *args)

    def _low_matmuls(self) -> int:
        return self.watch.matmuls["float16"] + self.watch.matmuls["bfloat16"]

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Begin to observe."""
        late = self._observe() and self._stepping is not None
        if self.observer is None:
            return original(*args, **kwargs)
        weights = [p for slot in self.training.slots for p in slot.parameters]
        with self.out_of_sight():
            self.ranks.pass_begins(weights)
        try:
            return original(*args, **kwargs)
        finally:
            with self.out_of_sight():
                self.ranks.pass_ends(weights)
            if late:
                self.observer.enter_step(self._stepping)

    def module_begins(self, module: nn.Module, *_: Any) -> None:
        """Note which modules run, and measure the ranges of the first that is trained."""
        if isinstance(module, AveragedModel) and not self.watch._aside:
            self.averages.add(module)
        if self.watch._aside:
            return
        if any(p is not None and p.requires_grad for p in module._parameters.values()):
            seen = self.precisions.setdefault(module, {True: set(), False: set()})
            seen[torch.is_grad_enabled()].add(_precision(module))
        if not torch.is_grad_enabled():
            return
        self.ranks.forward(module)
        self.modules.called(module)
        if self.watch._open or self.ranges is not None or not self.made.optimizers:
            return
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        if any(p.requires_grad and not _is_sharded(p) for p in inner.parameters()):
            self.ranges = watch_ranges(inner, torch.float16, every=3, bell=-float("inf"), say=lambda text: None)
            self.ranges.aside = self.watch.aside
            self.ranges.start()

    def _passes(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    clip_norm = clip_value = _passes  # listened to from the start: scripts import these by name

    def average(self, original: Callable[..., Any], *args: Any) -> Any:
        """Note that an average moves."""
        if self.observer is not None:
            self.averaged.add(len(self.script.summaries))
        return original(*args)

    def step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Remember which optimizer steps: a closure runs the backward pass inside."""
        self._stepping = optimizer

    def step_ends(self, *_: Any) -> None:
        """Forget it."""
        self._stepping = None

    def _observe(self) -> bool:
        """Begin to observe; tell whether that began just now."""
        if self.observer is not None or not self.made.optimizers or not torch.is_grad_enabled():
            return False
        alive = [one for one in self.made.optimizers if any(p.requires_grad for p in _weights(one))]
        alive = alive or self.made.optimizers  # of frozen weights alone
        if any(_is_sharded(p) for one in alive for p in _weights(one)):
            self.sharded = True
            return False
        scalers = [one for one in self.made.scalers if one.is_enabled()]
        training = Training(lambda: None, [], alive[:_MOST_OPTIMIZERS], scalers, list(self.made.schedulers))
        self.observer = ScriptObserver(training, self.watch.aside, self._complete, self.script)
        self.observer.__enter__()
        self.watch.counting = True
        self.began = self.began or time.monotonic()
        self.calls.waited = 0.0
        return True

    def _new_phase(self) -> None:
        if self.observer is not None:
            self.observer.__exit__()
            self.observer = None
            self.script.recent.clear()
            self.script.idle.clear()
            self.modules.reset()

    @property
    def training(self) -> Training:
        """The one that is observed."""
        assert self.observer is not None
        return self.observer.training

    def _updates(self) -> int:
        complete = self.observer is not None and self.observer._is_complete()
        return len(self.script.summaries) + complete

    @contextlib.contextmanager
    def out_of_sight(self) -> Iterator[None]:
        """Do something that neither the watch nor the observer sees."""
        observer, paused = self.observer, self.observer is not None and self.observer.paused
        if observer is not None:
            observer.paused = True
        try:
            with self.watch.aside():
                yield
        finally:
            if observer is not None:
                observer.paused = paused


class Examiner:
    """Judges a training's updates as they come, and all of it at the end.

    seen: what watches it, from `begin` on
    """

    def __init__(self) -> None:
        self.seen = Watchers(self._complete)
        self.begin()

    def begin(self) -> None:
        """Begin with no update."""
        self.began = time.monotonic()
        self.rules = PairRules()
        self.stress: list[Update] = []  # the plain one, the poisoned one
        self.found: list[Finding] = []
        self.ended = 0.0  # the last update
        self.before: tuple[int, Values] | None = None  # updates, and values seen, before an update was given an inf

    def _complete(self, update: Update) -> Meddling | None:
        """After each update: judge it, and say what is done to the next one."""
        seen = self.seen
        number, training = len(seen.script.summaries), seen.training
        seen.watch.step = number + 1
        seen.buried.look_for()
        self.ended = time.monotonic()
        seen.ranks.end_update([p for slot in training.slots for p in slot.parameters])
        if not self.stress:
            self.rules.look_at(seen.script.recent, training, seen.script.summaries[-1])
            seen.modules.end_update(update, training)
        return self._next(update, number)

    def _next(self, update: Update, number: int) -> Meddling | None:
        """Say what is done to the next update."""
        return None

    def close(self, error: BaseException | None) -> None:
        """Judge the update that was going on, and the weights."""
        observer, script = self.seen.observer, self.seen.script
        if observer is not None and observer.update.events and error is None:
            with contextlib.suppress(Exception):
                if observer._is_complete():
                    observer._completed = lambda update: None
                    observer.end_update()
                    self.rules.look_at(script.recent, observer.training, script.summaries[-1])
                else:
                    self.rules.look_at_rest(observer.update, observer.training)

    def result(self, error: BaseException | None) -> dict[str, Any]:
        """Judge the whole; return findings, advice, what was observed, and the facts that `reasons` tells."""
        seen, script = self.seen, self.seen.script
        with contextlib.suppress(Exception):
            if not self.stress:
                seen.watch.look_at_weights()
        if error is not None:
            seen.watch.look_at_error(error)
        now = seen.watch.births, seen.watch.arrived, seen.watch.given
        updates, (births, arrived, given) = self.before or (len(script.summaries), now)
        summaries = script.summaries[:updates]
        losses = [loss for one in summaries for loss in one.losses]
        firsts = [one.losses[0] for one in summaries if one.losses]  # of a GAN's, say, always the same one
        divisors = Counter(one.passes for one in summaries if one.divided)
        if divisors and 2 * divisors.total() > len(summaries):  # of accumulation: show the loss itself
            firsts = [loss * divisors.most_common(1)[0][0] for loss in firsts]
        found = [*self.found, *self._errors(error, summaries, births), *self.rules.findings()]
        found += check_summaries(summaries)
        late = seen.watch.late
        if late is not None:
            found = [replace(one, place=str(late)) if one.name == "loss-outside-autocast" else one for one in found]
        values = Nonfinite(tuple(births), tuple(arrived), tuple(given), updates, error, seen.watch.compiled())
        taken = any(one.name == "overflow-not-skipped" for one in found)
        faults, observed = check_values(values, losses, updates, sum(one.skipped for one in summaries), taken=taken)
        found += faults
        found += check_modules(seen.modules, diverged=any(one.name in ("diverges", "not-finite") for one in found))
        if not any(one.name == "beyond-fp16" for one in found):
            found += check_buried(seen.buried)
        found += check_lost(seen.twins.lost())
        made = next(filter(None, seen.made.lines.values()), None)
        if len(seen.made.optimizers) == 1 and made is not None:  # of several, nobody knows which
            found = [replace(one, place=str(made)) if one.name in _OF_AN_OPTIMIZER else one for one in found]
        device = next((str(p.device) for one in seen.made.optimizers for p in _weights(one)), "cpu")
        first = seen.ranks.rank in ("", "0")  # the other ranks wait, so that it can time something
        with seen.watch.aside():
            machine = machine_facts(device, seen.watch.matmuls) if first else []
        return {
            "updates": updates, "passes": seen.calls.passes, "by_hand": seen.calls.by_hand,
            "skipped": sum(one.skipped for one in summaries),
            "sharded": seen.sharded, "device": device, "machine": machine,
            "optimizers": [type(one).__name__ for one in seen.made.optimizers],
            "scalers": sum(one.is_enabled() for one in seen.made.scalers),
            "regions": sorted(seen.calls.regions), "matmuls": dict(seen.watch.matmuls),
            "scales": [list(one.scales_after) for one in summaries], "digests": seen.ranks.sums[:updates],
            "rank": seen.ranks.rank, "joined": seen.ranks.joined, "wrapped": bool(seen.ranks.wrapped),
            "drift": self._drift(), "weights": seen.ranks.weights[:updates],
            "groups": [one.passes for one in summaries if one.passes] if len(seen.made.optimizers) == 1 else [],
            "losses": firsts[:1] + firsts[-1:], "lines": script.most_common_lines(),
            "stressed": len(self.stress) == 2, "seconds": time.monotonic() - self.began,
            "findings": found, "advice": list(self._advice(updates)), "observed": [*observed, *self._observed(summaries)],
        }  # fmt: skip

    def _errors(self, error: BaseException | None, summaries: Sequence[Summary], births: Any) -> Iterator[Finding]:
        seen = self.seen
        if error is not None:
            updates, training = [], None
            if seen.observer is not None:
                seen.observer.update.error = error
                updates, training = [*seen.script.recent[-1:], seen.observer.update], seen.observer.training
            for one in errors.name_error(error, updates, training, seen.made.scalers, births):
                old = one.name == "frozen-optimizer" and training is not None and seen.modules.replaced(training)
                yield finding("optimizer-of-old-weights", torch_says=one.evidence.get("torch says", "")) if old else one
        elif (raised := [*seen.raised.errors, *seen.watch.raised]) and not any(one.stepped for one in summaries):
            yield errors.swallowed(raised)
        else:
            yield from errors.often_swallowed(seen.raised.escaped, len(summaries))

    def _drift(self) -> dict[str, str]:
        """Say what makes ranks drift apart, if they do: a variant of that finding, and its place."""
        ranks, weights = self.seen.ranks, [p for one in self.seen.made.optimizers for p in _weights(one)]
        with contextlib.suppress(Exception), self.seen.watch.aside():
            if ranks.not_called(weights) or ranks.inner is not None:
                return {"variant": "wrapper", "place": str(ranks.inner or "")}
            if ranks.moved():
                return {"variant": "moved", "place": str(ranks.made or "")}
        return {}

    def _advice(self, updates: int) -> Iterator[Finding]:
        seen = self.seen
        yield from advise_speed(seen.watch, seen.ranges, updates)
        partly = bool(seen.ranks.wrapped) or len(seen.made.optimizers) > _MOST_OPTIMIZERS
        yield from advise_saving(seen.saved.states, seen.made)
        yield from advise_16_bits(seen.twins.lost())
        yield from advise_ratio(self.rules.ratios, seen.precisions.values())
        drift = self._drift() if updates else {}
        if drift.get("variant") == "wrapper" and not seen.ranks.called:
            yield finding("wrapper-not-called", place=drift["place"])
        skipped = {number for number, one in enumerate(seen.script.summaries) if one.skipped}
        if skipped and skipped <= seen.averaged:
            yield finding("average-ran-on", moves_in_a_skipped_update=1)
        yield from advise_modules(seen.modules, seen.watch._paths, wrapped=partly)
        with seen.watch.aside():
            waiting = [one for one in seen.averages if int(one.n_averaged) == 0]
        if updates >= _LONG and waiting:
            yield finding("average-never-updated", updates_of_the_model=updates)
        took, waited = self.ended - seen.began, seen.calls.waited
        if updates > 2 and took > 1.0 and waited > _OFTEN * took:
            yield finding("waiting-for-data", share_of_the_time=f"{waited / took:.0%}")

    def _observed(self, summaries: Sequence[Summary]) -> Iterator[str]:
        seen, observer = self.seen, self.seen.observer
        if observer is not None:
            followed = observer.training.optimizers
            if len(seen.made.optimizers) > _MOST_OPTIMIZERS:
                yield f"Of {len(seen.made.optimizers)} optimizers, {len(followed)} were followed."
            stepped = frozenset().union(*(one.stepped for one in summaries))
            idle = [type(followed[number]).__name__ for number in sorted(seen.script.idle - stepped)]
            if idle:
                yield f"{len(idle)} of {len(followed)} optimizers took no step while it was watched: {', '.join(idle)}."
            if observer.trouble is not None:
                yield f"Its calls could not be followed to the end: {type(observer.trouble).__name__}: {observer.trouble}."
        kinds = [type(one).__name__ for one in seen.made.optimizers]
        yield from observe_reads(seen.watch, len(summaries), kinds)
        if any(not one.is_enabled() for one in seen.made.scalers):
            yield "A `GradScaler` is switched off, by `enabled=False` or because its device is missing: it scales nothing."
        if seen.watch.compiled():
            yield "Compiled parts ran uncompiled while they were watched."
        if torch.is_anomaly_enabled():
            yield "Anomaly mode is on: it makes backward passes several times as slow."


def _precision(module: nn.Module) -> torch.dtype:
    """Return the dtype in which autocast runs a layer, float32 where it is off."""
    kind = next(p.device.type for p in module._parameters.values() if p is not None)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")
