"""Run the user's step batch by batch, and say clearly what stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.profiler import record_function

from amp_course.checking.limit import TimeUp, within
from amp_course.speed.explain.recording import DATA
from amp_course.watching.calling import BatchError, arguments_for


class StepFailed(RuntimeError):
    """The step, or what feeds it, could not be run; the message names the fix."""


class Runner:
    """Take one whole step at each call: a batch from `batches`, then the step.

    batches: an iterable, restarted when it ends; None: the step fetches its own data
    seconds: how long a batch, or half a step, may take

    Raises StepFailed, from the exception of the step where there is one.
    """

    def __init__(
        self, train_step: Callable[..., Any], batches: Iterable[Any] | None, seconds: float
    ) -> None:
        if not callable(train_step):
            raise TypeError(
                f"train_step is a {type(train_step).__name__}, which cannot be called: pass the "
                f"function itself, as in "
                "explain(step), not its result, as in explain(step())."
            )
        if isinstance(batches, (str, bytes, Mapping, Tensor)) or not (
            batches is None or isinstance(batches, Iterable)
        ):
            raise TypeError(
                f"batches is a {type(batches).__name__}: pass a DataLoader, a list of batches, "
                f"[(inputs, targets), …], or "
                "leave it out if the step fetches its own data."
            )
        self.train_step, self.batches, self.seconds = train_step, batches, seconds
        self.iterator: Iterator[Any] | None = None
        self.steps, self.passes = 0, 0
        self.fetch_busy: list[float] = []  # for each fetch: CPU seconds over wall-clock seconds

    def __call__(self) -> None:
        args, kwargs = self._arguments()
        try:
            self.train_step(*args, **kwargs)
        except Exception as error:
            raise StepFailed(
                f"step {self.steps + 1} raised {type(error).__name__}: {error}. Make the step run "
                f"on its own first."
            ) from error
        self.steps += 1

    def guarded(self) -> None:
        """Take one step, and stop it if it takes too long."""
        began = self.steps
        try:
            within(2 * self.seconds, self)
        except TimeUp:
            raise StepFailed(
                f"step {began + 1} was not done within {2 * self.seconds:g} s. If that is its "
                f"usual time, pass a larger "
                "`seconds`."
            ) from None

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.batches is None:
            return (), {}
        with record_function(DATA):
            # the CPU time of this thread alone: torch's others spin while they wait
            wall, busy = time.perf_counter(), time.thread_time()
            batch = self._next()
            wall = time.perf_counter() - wall
            self.fetch_busy.append((time.thread_time() - busy) / wall if wall > 0 else 0.0)
        try:
            return arguments_for(self.train_step, batch)
        except BatchError as error:
            raise StepFailed(str(error)) from None

    def _next(self) -> Any:
        if isinstance(self.batches, (list, tuple)):
            return self._fetch()  # nothing to wait for
        try:
            return within(self.seconds, self._fetch)
        except TimeUp:
            raise StepFailed(
                f"`batches` gave no batch within {self.seconds:g} s: the loader hangs, or is far "
                f"too slow. Try "
                "`next(iter(batches))` alone, with num_workers=0."
            ) from None

    def _fetch(self) -> Any:
        for _ in range(2):
            if self.iterator is None:
                self.iterator = iter(self.batches)  # type: ignore[arg-type]
                self.passes += 1
            try:
                return next(self.iterator)
            except StopIteration:
                if self.iterator is self.batches:
                    break
                self.iterator = None
            except Exception as error:
                raise StepFailed(
                    f"reading `batches` raised {type(error).__name__}: {error}"
                ) from error
        raise StepFailed(
            f"`batches` ended after {self.steps} steps, and cannot be read again: pass a list or a "
            f"DataLoader, not an iterator."
            if self.steps
            else "`batches` is empty: it gave no batch."
        )

    def close(self) -> None:
        """Drop the iterator, and with it a DataLoader's workers."""
        self.iterator = None
