"""Examine a reader's own training step, in this process: everything that it changes is put back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from amp_course.audit import audit
from amp_course.audit.arguments import several
from amp_course.audit.snapshot import Snapshot
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import in_order
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.report import Report, listed
from amp_course.diagnosis.rules import errors
from amp_course.diagnosis.rules.training import advise_speed, check_lost
from amp_course.diagnosis.rules.values import check_values
from amp_course.doctor.speed import machine_facts, time_facts
from amp_course.watching.calling import BatchError, arguments_for, cloned, taken
from amp_course.watching.counting import DoctorsWatch
from amp_course.watching.ranges import watch_ranges
from amp_course.watching.twins import Twins

STEPS, TIMING = 12, 3.0


def doctor(
    model: nn.Module | Sequence[nn.Module],
    train_step: Callable[..., Any],
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] | None = None,
    *,
    scheduler: Any = None,
    loss: Callable[..., Any] | None = None,
    accumulate: int = 1,
    max_norm: float | None = None,
    steps: int = STEPS,
    seconds: float = 30.0,
    timing: float = TIMING,
) -> Report:
    """Run `train_step(*batch)` for some steps, look at its values, its calls and its weights, and say what is wrong.

    model, optimizer, scaler, scheduler, loss, accumulate, max_norm: as `amp_course.audit.audit` takes them
    batches: tuples, dicts or single objects; used again if there are fewer than `steps`
    steps:   how often the step is called while its values are watched; the audit calls it some dozen times more
    seconds: that one call may take
    timing:  seconds in which the step is timed, by `amp_course.speed.explain`; 0 leaves that out

    Weights, states, buffers and random numbers are as before afterwards. Raises TypeError for objects of the wrong kind,
    ValueError for numbers that make no sense.
    Example: doctor(model, step, batches, optimizer, scaler).names → ("clipped-while-scaled",)
    """
    if not callable(train_step):
        raise TypeError(
            f"train_step has to be the function that you call for each batch, and this is a {type(train_step).__name__}: "
            "doctor(model, train_step, batches, optimizer)."
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}: at least one step has to run.")
    read: Sequence[Any]
    try:
        read = batches if isinstance(batches, (list, tuple)) else taken(batches, max(steps, 4 * accumulate), seconds)
    except BatchError as error:
        return Report(problem=f"{error}.")
    if not read:
        return Report(problem="`batches` is empty: pass at least one batch.")
    values = _Values(train_step, read, several(model), several(optimizer), several(scaler), steps)
    values.run()
    judged = audit(
        train_step, model=model, optimizer=optimizer, batches=read, scaler=scaler, scheduler=scheduler, loss=loss,
        accumulate=accumulate, max_norm=max_norm, seconds=seconds,
    )  # fmt: skip
    times, advice = values.time(seconds=timing) if timing > 0 and values.error is None else ([], [])
    return _together(values, judged, times, advice)


class _Values:
    """The first part: some steps under a watch, for values, matmuls, reads and updates that are lost."""

    def __init__(
        self, step: Callable[..., Any], batches: Sequence[Any], models: Sequence[Any], optimizers: Sequence[Any],
        scalers: Sequence[Any], steps: int,
    ) -> None:  # fmt: skip
        self.step, self.batches, self.steps = step, batches, steps
        self.models, self.optimizers, self.scalers = models, optimizers, scalers
        self.device = next((p.device for one in self.models for p in one.parameters()), torch.device("cpu"))
        self.watch = DoctorsWatch()
        self.twins = Twins(self.watch.aside)
        self.error: BaseException | None = None
        self.losses: list[float] = []
        self.scales: list[float] = []
        self.ran = self.skipped = 0

    def run(self) -> None:
        """Run the steps, and put everything back."""
        model = next(one for one in self.models if isinstance(one, nn.Module))
        with sandbox(), self._put_back():
            self.ranges = watch_ranges(model, torch.float16, every=3, bell=-float("inf"), say=lambda text: None)
            with self.ranges, self.twins.hooks(), self.watch:
                self.watch.counting = True
                for number, batch in enumerate(itertools.islice(itertools.cycle(self.batches), self.steps), 1):
                    self.watch.step = number
                    self._call(batch)
                    self.watch.look_at_weights()
                    if self.error is not None:
                        break
            self.lost = list(check_lost(self.twins.lost()))

    def time(self, seconds: float) -> tuple[list[tuple[str, str]], list[Finding]]:
        """Time the step, and put everything back: return facts and advice."""
        with sandbox(), self._put_back():
            return time_facts(self.step, self.batches, seconds)

    @contextlib.contextmanager
    def _put_back(self) -> Iterator[None]:
        models = [one for one in self.models if isinstance(one, nn.Module)]
        snapshot = Snapshot([*models, *self.optimizers, *self.scalers], {"the step": self.step})
        try:
            yield
        finally:
            snapshot.restore()

    def _scales(self) -> list[float]:
        with self.watch.aside():
            return [one.get_scale() for one in self.scalers if one.is_enabled()]

    def _call(self, batch: Any) -> None:
        before = self._scales()
        try:
            args, kwargs = arguments_for(self.step, cloned(batch))
            returned = self.step(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.error = error
            return
        self.ran += 1
        if isinstance(returned, (int, float)):
            self.losses.append(float(returned))
        elif isinstance(returned, torch.Tensor) and returned.numel() == 1:
            with self.watch.aside():
                self.losses.append(float(returned.detach()))
        now = self._scales()
        self.scales += now[:1]
        self.skipped += any(a < b for a, b in zip(now, before, strict=True))


def _together(values: _Values, judged: Report, times: list[tuple[str, str]], saving: list[Finding]) -> Report:
    watch = values.watch
    found: list[Finding] = list(judged.findings)
    seen = Nonfinite(
        tuple(watch.births), tuple(watch.arrived), tuple(watch.given), values.ran, values.error, watch.compiled()
    )
    observed = list(judged.observations)
    taken_anyway = "overflow-not-skipped" in judged.names
    faults, told = check_values(seen, values.losses, values.ran, values.skipped, taken=taken_anyway)
    found += faults
    observed += told
    found += values.lost
    if values.error is not None and not isinstance(values.error, BatchError):
        named = list(errors.name_error(values.error, [], None, values.scalers, watch.births))
        found += named
        if any(one.name in ("tf32-settings-mixed", "anomaly-mode-meets-scaler") for one in named):
            found = [one for one in found if one.name != "step-raises"]
    if any(one.name in ("beyond-fp16", "masked-row", "log-of-zero", "division-by-zero", "infinite-derivative", "diverges",
                        "nan-in-data", "weights-not-finite") for one in found):  # fmt: skip
        found = [one for one in found if one.name != "not-finite"]  # the audit's, which does not say where
    watched = list(advise_speed(watch, values.ranges, values.ran))
    problem = ""
    if not found and not judged:
        why = "; ".join(f"{name}: {reason}" for name, reason in judged.not_checked)
        problem = f"Nothing was judged ({why})."
    return Report(
        in_order(found),
        ("values", "weights", *judged.checked) if values.ran else judged.checked,
        judged.not_checked,
        tuple(observed),
        judged.not_put_back,
        advice=in_order([*watched, *saving]),
        facts=(*_facts(values, judged), *times),
        problem=problem,
        device=values.device.type,
    )


def _facts(values: _Values, judged: Report) -> Iterator[tuple[str, str]]:
    yield (
        "steps watched",
        f"{values.ran}{f', {values.skipped} of them skipped by the scaler' if values.skipped else ''}",
    )
    total = sum(values.watch.matmuls.values())
    if total:
        shares = sorted(values.watch.matmuls.items())
        yield "matmuls", listed(f"{share / total:.0%} in {dtype}" for dtype, share in shares)
    if values.scales:
        yield "loss scale", f"{values.scales[0]:,g} → {values.scales[-1]:,g}"
    if len(values.losses) > 1:
        yield "loss", f"{values.losses[0]:.4g} → {values.losses[-1]:.4g}"
    yield from machine_facts(values.device, values.watch.matmuls)
