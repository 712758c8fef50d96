"""Audit a training step: run it on the live objects, put everything back, say what is wrong.

The step runs for a dozen updates: twice on the same batch, at two loss scales, with gradients made
large, with an inf in them. No source text is read. The experiments are in `experiments`,
`gradient_experiments`, `fp32` and `overflow`, the judgements and faults in `diagnosis`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import torch
from torch import nn

from amp_course.audit.arguments import as_list, as_training, check_numbers
from amp_course.audit.experiments import run_all
from amp_course.audit.results import FIX_FIRST, Results, State
from amp_course.audit.runner import Runner
from amp_course.audit.snapshot import restored
from amp_course.checking.interrupts import handled
from amp_course.diagnosis.catalogue import BEHAVIOURS, finding, ordered
from amp_course.diagnosis.report import Report
from amp_course.diagnosis.rules.given import check_given
from amp_course.watching.calling import BatchError, read_batches, size_of

_MOST_OF_A_GROUP = 256  # micro-batches, if batches have to be used again
_GROUPS = 4  # groups of micro-batches that are read, at most


def audit(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    batches: Iterable[Any],
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] | None = None,
    scheduler: Any = None,
    loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    accumulate: int = 1,
    max_norm: float | None = None,
    tolerance: float | None = None,
    seconds: float = 30.0,
) -> Report:
    """Run `train_step(*batch)` on its live objects and say what is wrong with it.

    train_step: whatever you call for a batch: a function, a method, a closure. It gets one
                (micro-)batch a call; `accumulate` calls make one update. If it takes an argument
                `last`, it is told which micro-batch is the last of a group, and a shorter last
                group is judged as well, unless `batches` is a loader of whole groups.
    model:      one or a list: all whose weights the step changes. `optimizer`, `scheduler` and
                `scaler` likewise.
    batches:    tuples, dicts or single objects, at least one update's worth (fewer are used again).
                Each call gets a copy; an iterator is read no further than needed.
    scheduler:  only one that moves once per update
    loss:       your plain fp32 loss `loss(model, *batch)`, a mean over the examples, penalties
                included; it may return a tuple of losses, or be a list with one for each optimizer.
                Without it the gradient is not compared with fp32, nor a sum told from a mean.
    max_norm:   what the step clips to, if it clips
    tolerance:  relative distance from the fp32 gradient that counts as rounding; None takes one
                that fits the dtypes of the step
    seconds:    how long one call of the step may take

    Put back are what you pass (weights, buffers, gradients, state, modes, hooks, attributes),
    random states, torch's settings, and the plain data that the step can reach: numbers, strings,
    lists, dicts, sets, tensors and arrays in its closure, its globals and its object's attributes,
    and iterators that can be copied. Nothing else is: what the step prints, writes or takes from a
    generator it does a dozen times. If two runs differ by that, the report says so, and judges what
    it can.

    Raises TypeError for objects of the wrong kind, ValueError for a max_norm, tolerance or time
    that is not above 0.
    Example: audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches).names
             → ("clipped-while-scaled",)
    """
    check_numbers(accumulate, max_norm=max_norm, tolerance=tolerance, seconds=seconds)
    training = as_training(train_step, model, optimizer, scaler, scheduler, loss)
    roots: dict[str, Any] = {"the step": train_step, "the loss": loss}
    if not isinstance(batches, (list, tuple)):  # reading a DataLoader draws random numbers
        roots["batches"] = batches
    own = [*training.models, *training.optimizers, *training.scalers, *training.schedulers]
    results = Results(many_optimizers=len(training.optimizers) > 1)
    with handled(), restored(own, roots) as snapshot:
        read = _read(batches, accumulate, seconds, results)
        if not results.found:
            groups = _groups(read, max(accumulate, 1))
            results.add(check_given(training, groups, accumulate))
            if results.found:
                results.leave_out("everything else", FIX_FIRST)
            else:
                run = Runner(training, snapshot, groups, accumulate, seconds)
                limit = None if max_norm == math.inf else max_norm
                ragged = _may_end_short(batches, accumulate)
                run_all(State(run, results, limit, tolerance, ragged))
    for one in as_list(scaler):
        if not isinstance(one, torch.amp.GradScaler):
            results.observe(
                f"The scaler is of the class {type(one).__name__}, not a `torch.amp.GradScaler`: "
                "its calls were not watched."
            )
    if "batches" in snapshot.lost:
        snapshot.lost["batches"] = f"is an iterator, and {len(read)} batches were taken from it"
    return Report(
        ordered(results.found, len(training.optimizers)),
        tuple(behaviour for behaviour in BEHAVIOURS if behaviour in results.checked),
        tuple(results.not_checked.items()),
        tuple(results.observations),
        tuple(snapshot.lost.items()),
        device=next((p.device.type for p in training.model_parameters.values()), "cpu"),
    )


def _read(batches: Iterable[Any], accumulate: int, seconds: float, results: Results) -> list[Any]:
    """Read the batches of a few groups; if they cannot be read, that is a finding."""
    size = max(accumulate, 1)
    try:
        read = read_batches(batches, _GROUPS * size, seconds)
    except BatchError as error:
        results.add([finding("no-batches", str(error))])
        return []
    if size > max(len(read), _MOST_OF_A_GROUP):
        there = f"accumulate is {accumulate}, and there are {len(read)} batches"
        raise ValueError(f"{there}: pass batches for at least one update.")
    return read


def _may_end_short(batches: Iterable[Any], accumulate: int) -> bool:
    """Return False for a loader of whole groups; a list is a sample of an epoch."""
    try:
        if isinstance(batches, (list, tuple)) or not isinstance(batches, Sized):
            return True
        return len(batches) % accumulate > 0
    except Exception:  # a loader's `len` may raise
        return True


def _groups(batches: list[Any], k: int) -> list[list[Any]]:
    """Cut batches into groups of k, at least two, those of unequal micro-batches first."""
    if not batches:
        return []
    whole = max(len(batches) // k, 1)
    groups = [[batches[(g * k + i) % len(batches)] for i in range(k)] for g in range(whole)]
    groups.sort(key=lambda group: len({size_of(batch) for batch in group}) == 1)
    return groups if len(groups) > 1 else groups * 2
