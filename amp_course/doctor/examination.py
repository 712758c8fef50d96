"""What runs inside the process that trains: install it before the script, and it writes what it found to a file.

Models, optimizers, scalers and autocast regions are found as they are used. After some updates, or when its time is up, one
update is given an inf; then the process ends. Nothing that the script computes is changed before that.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules.stress import poisoned_pass
from amp_course.diagnosis.rules.training import (
    advise_modules,
    advise_speed,
    check_buried,
    check_lost,
    check_modules,
    observe_reads,
)
from amp_course.diagnosis.rules.updates import PairRules, check_stress, check_summaries
from amp_course.diagnosis.rules.values import check_values
from amp_course.watching import taps
from amp_course.watching.buried import Buried
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.modules import ModulesSeen
from amp_course.watching.process import Calls, Made, Raised, Ranks
from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.records import Meddling, Training, Update
from amp_course.watching.script import Script, ScriptObserver
from amp_course.watching.twins import Twins

Values = tuple[list[Any], dict[Any, None], dict[str, None]]  # births, arrived, given
_OFTEN = 0.5  # of the time
_MOST_OPTIMIZERS = 16  # that are followed: after each backward pass, all of them are looked at
_FEWEST, _PATIENCE = 20, 30.0  # updates that are looked at even if it takes more than these seconds


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
        self.ranks = Ranks(self._updates)
        self.modules = ModulesSeen()
        self.buried = Buried(self.watch)
        self.twins = Twins(self.out_of_sight)
        self.ranges: RangeWatch | None = None
        self.script = Script()
        self.observer: ScriptObserver | None = None
        self.began = 0.0  # the training
        self.sharded = False  # weights are DTensors, which only a collective can look at
        self._stack = contextlib.ExitStack()
        for one in (self, self.made, self.raised, self.calls, self.ranks, self.buried):
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
        return original(region)

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Begin to observe."""
        self._observe()
        return original(*args, **kwargs)

    def module_begins(self, module: nn.Module, *_: Any) -> None:
        """Note which modules run, and measure the ranges of the first that is trained."""
        if self.watch._aside or not torch.is_grad_enabled():
            return
        self.modules.called(module)
        if self.watch._open or self.ranges is not None or not self.made.optimizers:
            return
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        if any(p.requires_grad and not _is_sharded(p) for p in inner.parameters()):
            self.ranges = watch_ranges(inner, torch.float16, every=3, bell=-float("inf"), say=lambda text: None)
            self.ranges.aside = self.watch.aside
            self.ranges.start()

    def _observe(self) -> None:
        alive = [one for one in self.made.optimizers if any(p.requires_grad for p in _weights(one))]
        if self.observer is not None or not alive or not torch.is_grad_enabled():
            return
        if any(_is_sharded(p) for one in alive for p in _weights(one)):
            self.sharded = True
            return
        scalers = [one for one in self.made.scalers if one.is_enabled()]
        training = Training(lambda: None, [], alive[:_MOST_OPTIMIZERS], scalers, list(self.made.schedulers))
        self.observer = ScriptObserver(training, self.watch.aside, self._complete, self.script)
        self.observer.__enter__()
        self.watch.counting = True
        self.began = self.began or time.monotonic()
        self.calls.waited = 0.0

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


class Examination:
    """One process's training, from `install` to `finish`.

    steps:   updates to look at, at most, before the one that is given an inf
    seconds: after which it ends wherever it is
    folder:  where the result goes, as `result-PID.json`
    """

    def __init__(self, steps: int, seconds: float, folder: Path) -> None:
        self.steps, self.seconds, self.folder = steps, seconds, folder
        self.child = self.done = False  # a child was made by fork
        self.programs: list[str] = []  # of Python's, that were started
        self.seen: Watchers
        self._stack = contextlib.ExitStack()

    def install(self) -> None:
        """Begin to look. Call it before the script's first line."""
        self._leave = os._exit
        self._stack.enter_context(warnings.catch_warnings())  # the watch ignores one
        self.seen = Watchers(self._complete)
        self._begin()
        self._stack.enter_context(taps.listening({"exit": self._exits}))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self._stack.enter_context(self.seen.watch)

    def _begin(self) -> None:
        self.process, self.began = os.getpid(), time.monotonic()
        self.rules = PairRules()
        self.stress: list[Update] = []  # the plain one, the poisoned one
        self.found: list[Finding] = []
        self.ended = self._shown = 0.0  # the last update, and the last whose number was written down
        self.before: tuple[int, Values] | None = None  # updates, and values seen, before the inf
        threading.Thread(target=self._wait, daemon=True).start()

    def _forked(self) -> None:
        """In a child made by fork: it is a process of its own, whose training has not begun."""
        self.child, self.done = True, False
        self.seen.end()
        self.seen.begin()
        self._begin()

    # ---- the run ----

    def _complete(self, update: Update) -> Meddling | None:
        """After each update: judge it, and say what is done to the next one."""
        seen = self.seen
        number, training = len(seen.script.summaries), seen.training
        seen.watch.step = number + 1
        seen.buried.look_for()
        self.ended = time.monotonic()
        if self.ended - self._shown > 0.2:
            self._shown = self.ended
            (self.folder / "progress").write_text(str(number))
        seen.ranks.end_update([p for slot in training.slots for p in slot.parameters])
        if len(self.stress) == 2:
            plain, poisoned = self.stress
            self.found += check_stress(plain, poisoned, update, training, len(plain.called("scheduler")))
            self.leave("steps")
        if self.stress:
            self.stress.append(update)
            return None
        self.rules.look_at(seen.script.recent, training, seen.script.summaries[-1])
        seen.modules.end_update(update, training)
        if number >= self.steps or (number >= _FEWEST and self.ended - self.began > _PATIENCE):
            return self._poison(update, number)
        return None

    def _poison(self, update: Update, number: int) -> Meddling | None:
        """Give the next update an inf, or end where there is nothing to learn from it."""
        watch, training = self.seen.watch, self.seen.training
        watch.look_at_weights()
        self.before = number, (list(watch.births), dict(watch.arrived), dict(watch.given))
        passes = [poisoned_pass(update, n, training) for n in range(len(training.optimizers))]
        asked = [one for one in passes if one is not None]
        if not asked or not update.called("scale") or not update.finite or not update.steps():
            if number < 2 * self.steps and update.called("scale") and not update.finite:
                return None  # one more: the scaler still looks for its scale
            self.leave("steps")
        self.stress.append(update)
        return Meddling(poison=frozenset(asked))

    # ---- the end ----

    def _wait(self) -> None:
        """End the process when its time is up."""
        time.sleep(max(0.0, self.began + self.seconds - time.monotonic()))
        if not self.done and os.getpid() == self.process:
            self.leave("time")

    def _exits(self, original: Callable[..., Any], code: int) -> None:
        if os.getpid() == self.process:
            self.finish("exit", code)
        original(code)

    def leave(self, why: str) -> NoReturn:
        """Write what was found, and end the process at once: no cleanup of the script runs, and nothing more of it is written."""
        self.finish(why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._leave(0)

    def finish(self, why: str, code: Any = 0, error: BaseException | None = None) -> None:
        """Write what was found, once. why: "steps", "time", "end", "exit" or "error"."""
        if self.done or (self.child and self.seen.observer is None):  # a worker of a DataLoader, say
            return
        self.done = True
        result: dict[str, Any]
        try:
            if why != "steps":
                self._close(error)
            result = self._result(why, code, error)
        except Exception:
            result = {"ended": "broken", "text": traceback.format_exc()}
        path = self.folder / f"result-{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    def _close(self, error: BaseException | None) -> None:
        """Judge the update that was going on."""
        observer, script = self.seen.observer, self.seen.script
        if observer is not None and observer.update.events and error is None:
            with contextlib.suppress(Exception):
                if observer._is_complete():
                    observer._completed = lambda update: None
                    observer.end_update()
                    self.rules.look_at(script.recent, observer.training, script.summaries[-1])
                else:
                    self.rules.look_at_rest(observer.update, observer.training)

    def _result(self, why: str, code: Any, error: BaseException | None) -> dict[str, Any]:
        seen, script = self.seen, self.seen.script
        with contextlib.suppress(Exception):
            if not self.stress:
                seen.watch.look_at_weights()
        now = seen.watch.births, seen.watch.arrived, seen.watch.given
        updates, (births, arrived, given) = self.before or (len(script.summaries), now)
        summaries = script.summaries[:updates]
        losses = [loss for one in summaries for loss in one.losses]
        found = [*self.found, *self._errors(error, summaries, births), *self.rules.findings()]
        found += [*check_summaries(summaries), *check_modules(seen.modules)]
        values = Nonfinite(tuple(births), tuple(arrived), tuple(given), updates, error, seen.watch.compiled())
        taken = any(one.name == "overflow-not-skipped" for one in found)
        faults, observed = check_values(values, losses, updates, sum(one.skipped for one in summaries), taken=taken)
        found += faults
        if not any(one.name == "beyond-fp16" for one in found):
            found += check_buried(seen.buried)
        found += check_lost(seen.twins.lost())
        weights = [p for one in seen.made.optimizers for p in _weights(one)]
        return {
            "ended": why, "code": code if isinstance(code, int) else 1, "error": errors.described(error) if error else "",
            "updates": updates, "asked": self.steps, "passes": seen.calls.passes, "by_hand": seen.calls.by_hand,
            "programs": self.programs[:3],
            "steps": sum(len(one.stepped) for one in summaries), "skipped": sum(one.skipped for one in summaries),
            "sharded": seen.sharded, "device": str(next((p.device for p in weights), "cpu")),
            "optimizers": [type(one).__name__ for one in seen.made.optimizers], "scalers": len(seen.made.scalers),
            "regions": sorted(seen.calls.regions), "matmuls": dict(seen.watch.matmuls),
            "scales": [list(one.scales_after) for one in summaries], "digests": seen.ranks.sums[:updates],
            "rank": seen.ranks.rank, "joined": seen.ranks.joined, "wrapped": bool(seen.ranks.wrapped),
            "losses": losses[:1] + losses[-1:], "lines": script.most_common_lines(),
            "stressed": len(self.stress) == 2, "seconds": time.monotonic() - self.began,
            "findings": [asdict(one) for one in found], "advice": [asdict(one) for one in self._advice(updates)],
            "observed": [*observed, *self._observed(summaries)],
        }  # fmt: skip

    def _errors(self, error: BaseException | None, summaries: Any, births: Any) -> Iterator[Finding]:
        seen = self.seen
        if error is not None:
            updates, training = [], None
            if seen.observer is not None:
                seen.observer.update.error = error
                updates, training = [*seen.script.recent[-1:], seen.observer.update], seen.observer.training
            yield from errors.name_error(error, updates, training, seen.made.scalers, births)
        elif (raised := [*seen.raised.errors, *seen.watch.raised]) and not any(one.stepped for one in summaries):
            yield errors.swallowed(raised)
        else:
            yield from errors.often_swallowed(seen.raised.escaped, len(summaries))

    def _advice(self, updates: int) -> Iterator[Finding]:
        seen = self.seen
        yield from advise_speed(seen.watch, seen.ranges, updates)
        many = len(seen.made.optimizers) > _MOST_OPTIMIZERS
        yield from advise_modules(seen.modules, wrapped=bool(seen.ranks.wrapped) or many)
        took, waited = self.ended - seen.began, seen.calls.waited
        if updates > 2 and took > 1.0 and waited > _OFTEN * took:
            yield finding("waiting-for-data", share_of_the_time=f"{waited / took:.0%}")

    def _observed(self, summaries: Any) -> Iterator[str]:
        seen, observer, made = self.seen, self.seen.observer, self.seen.made.optimizers
        if observer is not None:
            stepped = frozenset().union(*(one.stepped for one in summaries))
            optimizers = observer.training.optimizers
            if len(made) > _MOST_OPTIMIZERS:
                yield f"Of {len(made)} optimizers, {len(optimizers)} were followed."
            idle = [type(optimizers[number]).__name__ for number in sorted(seen.script.idle - stepped)]
            if idle:
                yield f"{len(idle)} of {len(optimizers)} optimizers took no step while it was watched: {', '.join(idle)}."
        yield from observe_reads(seen.watch, len(summaries))
        if observer is not None and observer.trouble is not None:
            yield f"Its calls could not be followed to the end: {type(observer.trouble).__name__}: {observer.trouble}."
        if any(not one.is_enabled() for one in seen.made.scalers):
            yield "A `GradScaler` is switched off, as it is where its device is missing: nothing is scaled."
        if seen.watch.compiled():
            yield "Compiled parts ran uncompiled while they were watched."
        if torch.is_anomaly_enabled():
            yield "Anomaly mode is on: it makes backward passes several times as slow."


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")
