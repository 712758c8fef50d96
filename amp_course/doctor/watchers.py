"""Everything that watches the training of one process: a script's, or a single step's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from amp_course.diagnosis.rules import errors
from amp_course.watching import taps
from amp_course.watching.counting import CountingWatch
from amp_course.watching.fp32_shadow import Fp32Shadow
from amp_course.watching.hidden_overflow import HiddenOverflow
from amp_course.watching.modules import CalledModules
from amp_course.watching.process import Calls, CreatedObjects, RaisedErrors, Ranks, SavedStates
from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.records import Intervention, Region, Training, Update
from amp_course.watching.script import Script, ScriptObserver
from amp_course.watching.taps import Original
from amp_course.watching.weights import weights_of

MOST_OPTIMIZERS = 16  # that are followed: each costs time after every backward pass


class Watchers:
    """All watchers of a process. They start to observe at the first region or backward pass, and
    again after each new optimizer.

    complete: called after each update, as `ScriptObserver` calls it
    """

    def __init__(self, complete: Callable[[Update], Intervention | None]) -> None:
        self._complete = complete
        self.watch = CountingWatch()
        self.made = CreatedObjects(self.watch, self._new_phase)
        self.begin()

    def begin(self) -> None:
        """Forget everything but the objects that were made."""
        self.raised = RaisedErrors(errors.describe_with_line)
        self.calls = Calls(self.watch)
        self.saved = SavedStates()
        self.ranks = Ranks(self._updates)
        self.modules = CalledModules()
        self.hidden = HiddenOverflow(self.watch)
        self.shadow = Fp32Shadow(self.out_of_sight)
        self.ranges: RangeWatch | None = None
        self.script = Script()
        self.observer: ScriptObserver | None = None
        self.began = 0.0  # when the training did
        self.averages: set[AveragedModel] = set()  # that were called
        self.averaged: set[int] = set()  # numbers of the updates, from 0, in which an average moved
        # Layer → with gradients? → dtypes of autocast. Weak, so that no layer is kept alive.
        self.precisions = WeakKeyDictionary[nn.Module, dict[bool, set[torch.dtype]]]()
        self.sharded = False  # weights are DTensors, which only a collective can read
        # For each open region: its event, and how many 16-bit matmuls had run before it
        self._regions: list[tuple[Region | None, int]] = []
        self.watch.regions.clear()
        self._stepping: torch.optim.Optimizer | None = None  # whose closure may run a backward pass
        self._stack = contextlib.ExitStack()
        records = self.made, self.raised, self.calls, self.saved, self.ranks
        for listener in (self, *records, self.hidden, self.shadow):
            self._stack.enter_context(taps.listening(listener))

    def end(self) -> None:
        """Remove all but the watch over ops."""
        self._stack.close()
        if self.observer is not None:
            self.observer.__exit__()
        if self.ranges is not None:
            self.ranges.stop()

    @property
    def training(self) -> Training:
        """The training that is observed."""
        assert self.observer is not None
        return self.observer.training

    @contextlib.contextmanager
    def out_of_sight(self) -> Iterator[None]:
        """Hide what runs inside from the watch and the observer."""
        observer, paused = self.observer, self.observer is not None and self.observer.paused
        if observer is not None:
            observer.paused = True
        try:
            with self.watch.aside():
                yield
        finally:
            if observer is not None:
                observer.paused = paused

    def drift(self) -> dict[str, str]:
        """Return what makes ranks drift apart: a variant of that finding, and its place."""
        ranks, weights = self.ranks, [p for one in self.made.optimizers for p in weights_of(one)]
        with contextlib.suppress(Exception), self.watch.aside():
            if ranks.not_called(weights) or ranks.inner is not None:
                return {"variant": "wrapper", "place": str(ranks.inner or "")}
            if ranks.moved():
                return {"variant": "moved", "place": str(ranks.made or "")}
        return {}

    # ---- where observing begins and ends ----

    def _observe(self) -> bool:
        """Start to observe, if not started yet; return True if this call did it."""
        if self.observer is not None or not self.made.optimizers or not torch.is_grad_enabled():
            return False
        made = self.made.optimizers
        if any(_is_sharded(p) for one in made for p in weights_of(one)):
            self.sharded = True
            return False
        scalers = [one for one in self.made.scalers if one.is_enabled()]
        parts = made[:MOST_OPTIMIZERS], scalers, list(self.made.schedulers)
        training = Training(lambda: None, [], *parts)
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

    def _updates(self) -> int:
        complete = self.observer is not None and self.observer.is_complete()
        return len(self.script.summaries) + complete

    # ---- what the watchers listen to ----

    def enter_region(self, original: Original, region: Any) -> Any:
        if region._enabled:
            self._observe()
        result = original(region)
        events = self.observer.update.events[-1:] if self.observer is not None else []
        event = next((one for one in events if isinstance(one, Region)), None)
        self._regions.append((event, self._low_matmuls()))
        self.watch.regions.append(region)
        return result

    def leave_region(self, original: Original, region: Any, *args: Any) -> Any:
        """Note whether autocast ran matmuls in 16 bits inside."""
        event, before = self._regions.pop() if self._regions else (None, 0)
        del self.watch.regions[-1:]
        if event is not None:
            event.casts = self._low_matmuls() > before
        return original(region, *args)

    def _low_matmuls(self) -> int:
        return self.watch.matmuls["float16"] + self.watch.matmuls["bfloat16"]

    def backward(self, original: Original, *args: Any, **kwargs: Any) -> Any:
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

    def step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping = optimizer

    def step_ends(self, *_: Any) -> None:
        self._stepping = None

    def average(self, original: Original, *args: Any) -> Any:
        if self.observer is not None:
            self.averaged.add(len(self.script.summaries))
        return original(*args)

    def clip_norm(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    clip_value = clip_norm  # patched before the script imports them by name

    def module_begins(self, module: nn.Module, *_: Any) -> None:
        """Note which modules run, and in which precision; measure the ranges of the first model."""
        if self.watch.paused:
            return
        if isinstance(module, AveragedModel):
            self.averages.add(module)
        own = [p for p in module._parameters.values() if p is not None]
        if any(p.requires_grad for p in own):
            dtypes = self.precisions.setdefault(module, {True: set(), False: set()})
            kind = own[0].device.type
            on = torch.is_autocast_enabled(kind)
            dtype = torch.get_autocast_dtype(kind) if on else torch.float32
            dtypes[torch.is_grad_enabled()].add(dtype)
        if not torch.is_grad_enabled():
            return
        self.ranks.forward(module)
        self.modules.called(module)
        if self.watch.modules.running or self.ranges is not None or not self.made.optimizers:
            return
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        if any(p.requires_grad and not _is_sharded(p) for p in inner.parameters()):
            self.ranges = watch_ranges(inner, every=3, alert=-float("inf"))
            self.ranges.aside = self.watch.aside
            self.ranges.start()


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")
