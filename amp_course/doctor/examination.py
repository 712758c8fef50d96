"""What runs inside the process that trains: install it before the script, and it writes what it found to a file.

Models, optimizers, scalers and autocast regions are found as they are used. After some updates, or when its time is up, one
update is given an inf; then the process ends. Nothing that the script computes is changed before that.
"""

from __future__ import annotations

import contextlib
import functools
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
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import dataloader

from amp_course.diagnosis.faults import finding
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
from amp_course.watching.buried import Buried
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.modules import ModulesSeen
from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.records import Meddling, Training, Update
from amp_course.watching.script import Script, ScriptObserver
from amp_course.watching.twins import Twins

_OFTEN = 0.5  # of the time
_MOST_OPTIMIZERS = 16  # that are followed: after each backward pass, all of them are looked at
_FEWEST, _PATIENCE = 20, 30.0  # updates that are looked at even if it takes more than these seconds


class Examination:
    """One process's training, from `install` to `finish`.

    steps:   updates to look at, at most, before the one that is given an inf
    seconds: after which it ends wherever it is
    folder:  where the result goes, as `result-PID.json`
    """

    def __init__(self, steps: int, seconds: float, folder: Path) -> None:
        self.steps, self.seconds, self.folder = steps, seconds, folder
        self.began = time.monotonic()
        self.process = os.getpid()
        self.script = Script()
        self.rules = PairRules()
        self.watch = DoctorsWatch()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.schedulers: list[Any] = []
        self.observer: ScriptObserver | None = None
        self.twins = Twins(self._out_of_sight)
        self.ranges: RangeWatch | None = None
        self.found: list[Finding] = []
        self.stress: list[Update] = []  # the plain one, the poisoned one
        self.buried = Buried()
        self.digests: list[str] = []
        self.regions: set[str] = set()
        self.raised: list[BaseException] = []  # by backward passes and scalers, and perhaps caught by the script
        self.escaped: list[str] = []  # errors that left an autocast region or a backward pass, and were perhaps caught
        self._latest: BaseException | None = None  # of them: one that leaves several is one
        self.modules = ModulesSeen()
        self.waited = 0.0  # seconds, for batches
        self.training_began = self.training_ended = 0.0
        self.sharded = False  # weights are DTensors, which only a collective can look at
        self.by_hand = 0  # calls of `torch.autograd.grad`
        self.programs: list[str] = []  # of Python's, that were started
        self._shown = 0.0
        self.passes = 0  # calls of `torch.autograd.backward`, whether or not there is an optimizer
        # Kept until the process ends: where a script drops them while gloo's thread is at work, torch 2.13 may wait for ever,
        # for the destructor waits for that thread and holds the lock that the thread needs to let go of a tensor.
        self.wrapped: list[nn.parallel.DistributedDataParallel] = []
        self.rank = os.environ.get("RANK", "")
        self.joined: list[int] = []  # updates so far, at the end of each `with model.join()`
        self.before: tuple[list[Any], dict[Any, None], dict[str, None]] | None = (
            None  # what the watch had seen before the inf
        )
        self.looked_at = 0  # updates until then, if it has come to that
        self.child = False  # of a fork
        self.done = False
        self._stack = contextlib.ExitStack()

    # ---- installing ----

    def install(self) -> None:
        """Begin to look. Call it before the script's first line."""
        self._patch(torch.optim.Optimizer, "__init__", self.optimizers, self._new_optimizer)
        self._patch(torch.amp.GradScaler, "__init__", self.scalers, self._new_object)
        self._patch(torch.optim.lr_scheduler.LRScheduler, "__init__", self.schedulers, self._new_object)
        self._patch(nn.parallel.DistributedDataParallel, "__init__", self.wrapped, self._new_object)
        self._keep(register_module_forward_pre_hook(self._module).remove)
        self._stack.enter_context(self.twins.hooks())
        self._watch_calls()
        next_batch = dataloader._BaseDataLoaderIter.__next__

        @functools.wraps(next_batch)
        def timed(iterator: Any) -> Any:
            began = time.perf_counter()
            with self.watch.aside():
                try:
                    return next_batch(iterator)
                finally:
                    self.waited += time.perf_counter() - began

        self._set(dataloader._BaseDataLoaderIter, "__next__", timed)
        self._watch_joins()
        leave = os._exit

        def leave_early(code: int) -> NoReturn:
            if os.getpid() == self.process:
                self.finish("exit", code)
            leave(code)

        self._set(os, "_exit", leave_early)
        self._leave = leave
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._wait, daemon=True).start()
        self._stack.enter_context(warnings.catch_warnings())
        self._stack.enter_context(self.watch)

    def _watch_joins(self) -> None:
        """Count the updates of a rank when it leaves `with model.join()`, which lets ranks have unequal numbers of batches."""
        try:
            from torch.distributed.algorithms.join import Join
        except ImportError:
            return
        leave = Join.__exit__

        @functools.wraps(leave)
        def left(join: Any, *error: Any) -> Any:
            current = self.observer is not None and self.observer._is_complete()
            self.joined.append(len(self.script.summaries) + current)
            return leave(join, *error)

        self._set(Join, "__exit__", left)

    def _set(self, owner: Any, name: str, new: Any) -> None:
        old = getattr(owner, name)
        setattr(owner, name, new)
        self._keep(functools.partial(setattr, owner, name, old))

    def _keep(self, undo: Callable[[], Any]) -> None:
        self._stack.callback(undo)

    def _patch(self, kind: type, name: str, known: list[Any], told: Callable[[Any], None]) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            if not any(one is this for one in known) and not self.watch._aside:
                known.append(this)
                told(this)

        self._set(kind, name, made)

    def _watch_calls(self) -> None:
        """Begin to observe with the first region or backward pass, and note what those and the scalers raise."""
        enter, backward = torch.autocast.__enter__, torch.autograd.backward

        @functools.wraps(enter)
        def entered(region: Any) -> Any:
            if region._enabled:
                self.regions.add(str(region.fast_dtype)[6:])
                self._observe()
            return torch.autocast.__enter__(region) if self._observer_is_new() else enter(region)

        @functools.wraps(backward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            self._observe()
            try:
                return (
                    torch.autograd.backward(*args, **kwargs) if self._observer_is_new() else backward(*args, **kwargs)
                )
            except Exception as error:
                self.raised.append(error)
                self._escapes(error)
                raise

        leave = torch.autocast.__exit__

        @functools.wraps(leave)
        def left(region: Any, kind: Any = None, error: Any = None, trace: Any = None) -> Any:
            if (
                isinstance(error, Exception) and torch._C._current_graph_task_id() == -1
            ):  # a checkpoint stops its second run so
                self._escapes(error)
            return leave(region, kind, error, trace)

        gradient = torch.autograd.grad

        @functools.wraps(gradient)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            self.by_hand += 1
            return gradient(*args, **kwargs)

        self._set(torch.autograd, "grad", differentiated)
        self._set(torch.autocast, "__enter__", entered)
        self._set(torch.autocast, "__exit__", left)
        self._set(torch.autograd, "backward", run)
        for name in ("unscale_", "step", "update"):
            self._set(torch.amp.GradScaler, name, self._noting(getattr(torch.amp.GradScaler, name)))

    def _escapes(self, error: Exception) -> None:
        if error is not self._latest:
            self._latest = error
            self.escaped.append(errors.described(error))

    def _observer_is_new(self) -> bool:
        """Tell, once, that an observer has put itself around what is being called now."""
        new, self._fresh = self._fresh, False
        return new

    _fresh = False

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception as error:
                self.raised.append(error)
                self._escapes(error)
                raise

        return noted

    # ---- what the script does ----

    def _new_object(self, _: Any) -> None:
        """A scaler or a schedule: one that is made in a step is the step's own affair."""

    def _new_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self.observer is not None:  # a new phase
            self.observer.__exit__()
            self.observer = None
            self.script.recent.clear()
            self.script.idle.clear()
            self.modules.reset()

    def _observe(self) -> None:
        """Begin to observe, if there is something to observe."""
        alive = [one for one in self.optimizers if any(p.requires_grad for g in one.param_groups for p in g["params"])]
        if self.observer is not None or not alive or self.done or not torch.is_grad_enabled():
            return
        if any(_is_sharded(p) for one in alive for group in one.param_groups for p in group["params"]):
            self.sharded = True
            return
        scalers = [one for one in self.scalers if one.is_enabled()]
        training = Training(lambda: None, [], alive[:_MOST_OPTIMIZERS], scalers, list(self.schedulers))
        self.observer = ScriptObserver(training, self.watch.aside, self._complete, self.script)
        self.observer.__enter__()
        self.watch.counting, self._fresh = True, True
        self.training_began = self.training_began or time.monotonic()
        self.waited = 0.0

    def _module(self, module: nn.Module, *_: Any) -> None:
        if self.watch._aside or not torch.is_grad_enabled():
            return
        self.modules.called(module)
        if self.watch._open:
            return
        inner = module
        if isinstance(module, nn.parallel.DistributedDataParallel):
            inner = module.module
        if (
            self.ranges is None
            and self.optimizers
            and any(p.requires_grad and not _is_sharded(p) for p in inner.parameters())
        ):
            self.ranges = watch_ranges(inner, torch.float16, every=3, bell=-float("inf"), say=lambda text: None)
            read = self.ranges._read

            def aside(*args: Any, **kwargs: Any) -> None:
                with self.watch.aside():
                    read(*args, **kwargs)

            self.ranges._read = aside  # type: ignore[method-assign]
            self.ranges.start()

    @contextlib.contextmanager
    def _out_of_sight(self) -> Iterator[None]:
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

    def _complete(self, update: Update) -> Meddling | None:
        """After each update: judge it, and say what is done to the next one."""
        number, training = len(self.script.summaries), self.observer.training  # type: ignore[union-attr]
        self.watch.step = number + 1
        if time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            (self.folder / "progress").write_text(str(number))
        self.buried.look_for(self.watch)
        self.training_ended = time.monotonic()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            total = sum(float(p.detach().double().sum()) for slot in training.slots for p in slot.parameters)
            self.digests.append(f"{total:.17g}")
            self.rank = str(torch.distributed.get_rank())
        if len(self.stress) == 2:
            self._judge_stress(update, training)
            self.leave("steps")
        if self.stress:
            self.stress.append(update)
            return None
        self.rules.look_at(self.script.recent, training, self.script.summaries[-1])
        self.modules.end_update(update, training)
        if number >= self.steps or (number >= _FEWEST and time.monotonic() - self.began > _PATIENCE):
            self.watch.look_at_weights()
            self.looked_at = number
            self.before = list(self.watch.births), dict(self.watch.arrived), dict(self.watch.given)
            passes = [poisoned_pass(update, n, training) for n in range(len(training.optimizers))]
            asked = [p for p in passes if p is not None]
            if not asked or not update.called("scale") or not update.finite or not update.steps():
                if number < 2 * self.steps and update.called("scale") and not update.finite:
                    return None  # one more: the scaler still looks for its scale
                self.leave("steps")
            self.stress.append(update)
            return Meddling(poison=frozenset(asked))
        return None

    def _judge_stress(self, clean: Update, training: Training) -> None:
        plain, poisoned = self.stress
        moves = len(plain.called("scheduler"))
        self.found += check_stress(plain, poisoned, clean, training, moves)

    # ---- the end ----

    def _forked(self) -> None:
        """In a child made by fork: it is a process of its own, whose training has not begun."""
        self.__dict__.update(Examination(self.steps, self.seconds, self.folder)._plain())
        self.child = True
        threading.Thread(target=self._wait, daemon=True).start()

    def _plain(self) -> dict[str, Any]:
        kept = ("_stack", "_leave", "watch", "optimizers", "scalers", "schedulers")
        return {name: value for name, value in vars(self).items() if name not in kept}

    def _wait(self) -> None:
        """End the process when its time is up."""
        time.sleep(max(0.0, self.began + self.seconds - time.monotonic()))
        if not self.done and os.getpid() == self.process:
            self.leave("time")

    def leave(self, why: str) -> NoReturn:
        """Write what was found, and end the process at once: no cleanup of the script runs, and nothing more of it is written."""
        self.finish(why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._leave(0)

    def finish(self, why: str, code: Any = 0, error: BaseException | None = None) -> None:
        """Write what was found, once. why: "steps", "time", "end", "exit" or "error"."""
        if self.done or (self.child and self.observer is None):  # a worker of a DataLoader, say
            return
        self.done = True
        result: dict[str, Any]
        try:
            result = self._result(why, code, error)
        except Exception:
            result = {"ended": "broken", "text": traceback.format_exc()}
        path = self.folder / f"result-{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    def _result(self, why: str, code: Any, error: BaseException | None) -> dict[str, Any]:
        if self.observer is not None and why != "steps" and self.observer.update.events:
            with contextlib.suppress(Exception):
                if why != "error" and self.observer._is_complete():
                    self.observer._completed = lambda update: None
                    self.observer.end_update()
                    self.rules.look_at(self.script.recent, self.observer.training, self.script.summaries[-1])
                elif why != "error":
                    self.rules.look_at_rest(self.observer.update, self.observer.training)
        with contextlib.suppress(Exception):
            if not self.stress:
                self.watch.look_at_weights()
        births, arrived, given = self.before or (self.watch.births, self.watch.arrived, self.watch.given)
        summaries = self.script.summaries[: self.looked_at or None]
        advice: list[Finding] = []
        observed: list[str] = []
        found = list(self.found)
        if error is not None:
            updates, training = [], None
            if self.observer is not None:
                updates, training = [*self.script.recent[-1:], self.observer.update], self.observer.training
                self.observer.update.error = error
            found += errors.name_error(error, updates, training, self.scalers, births)
        elif (raised := [*self.raised, *self.watch.raised]) and not any(one.stepped for one in summaries):
            found.append(errors.swallowed(raised))
        elif error is None:
            found += errors.often_swallowed(self.escaped, len(summaries))
        values = Nonfinite(tuple(births), tuple(arrived), tuple(given), len(summaries), error, self.watch.compiled())
        losses = [loss for one in summaries for loss in one.losses]
        found += [*self.rules.findings(), *check_summaries(summaries), *check_modules(self.modules)]
        taken = any(one.name == "overflow-not-skipped" for one in found)
        skipped = sum(one.skipped for one in summaries)
        faults, told = check_values(values, losses, len(summaries), skipped, taken=taken)
        found += faults
        observed += told
        if not any(one.name == "beyond-fp16" for one in found):
            found += check_buried(self.buried)
        found += check_lost(self.twins.lost())
        advice += self._advice(len(summaries))
        observed += self._observed(summaries)
        return {
            "ended": why, "code": code if isinstance(code, int) else 1, "error": errors.described(error) if error else "",
            "updates": len(summaries), "passes": self.passes, "asked": self.steps,
            "steps": sum(len(one.stepped) for one in summaries), "skipped": sum(one.skipped for one in summaries),
            "by_hand": self.by_hand, "programs": self.programs[:3], "sharded": self.sharded, "device": self._device(),
            "optimizers": [type(one).__name__ for one in self.optimizers], "scalers": len(self.scalers),
            "regions": sorted(self.regions), "matmuls": dict(self.watch.matmuls),
            "scales": [list(one.scales_after) for one in summaries], "digests": self.digests[: len(summaries)],
            "rank": self.rank, "joined": self.joined, "wrapped": bool(self.wrapped),
            "losses": [loss for loss in losses[:1] + losses[-1:]],
            "stressed": len(self.stress) == 2, "seconds": time.monotonic() - self.began,
            "findings": [asdict(one) for one in found], "advice": [asdict(one) for one in advice], "observed": observed,
        }  # fmt: skip

    def _device(self) -> str:
        weights = (p for one in self.optimizers for group in one.param_groups for p in group["params"])
        return str(next((p.device for p in weights), "cpu"))

    def _advice(self, updates: int) -> Iterator[Finding]:
        yield from advise_speed(self.watch, self.ranges, updates)
        yield from advise_modules(self.modules, wrapped=bool(self.wrapped) or len(self.optimizers) > _MOST_OPTIMIZERS)
        took = self.training_ended - self.training_began
        if updates > 2 and took > 1.0 and self.waited > _OFTEN * took:
            yield finding("waiting-for-data", share_of_the_time=f"{self.waited / took:.0%}")

    def _observed(self, summaries: Any) -> Iterator[str]:
        if self.observer is not None:
            stepped = frozenset().union(*(one.stepped for one in summaries))
            optimizers = self.observer.training.optimizers
            if len(self.optimizers) > _MOST_OPTIMIZERS:
                yield f"Of {len(self.optimizers)} optimizers, {len(optimizers)} were followed."
            idle = [type(optimizers[number]).__name__ for number in sorted(self.script.idle - stepped)]
            if idle:
                yield f"{len(idle)} of {len(optimizers)} optimizers took no step while it was watched: {', '.join(idle)}."
        yield from observe_reads(self.watch, len(summaries))
        if self.observer is not None and self.observer.trouble is not None:
            trouble = self.observer.trouble
            yield f"Its calls could not be followed to the end: {type(trouble).__name__}: {trouble}."
        off = [one for one in self.scalers if not one.is_enabled()]
        if off:
            yield "A `GradScaler` is switched off, as it is where its device is missing: nothing is scaled."
        if self.watch.compiled():
            yield "Compiled parts ran uncompiled while they were watched."
        if torch.is_anomaly_enabled():
            yield "Anomaly mode is on: it makes backward passes several times as slow."


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")
