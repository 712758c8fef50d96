"""Audit a training step by what it does: run it on the live objects, look, put everything back, say what is wrong.

The step runs for a few updates, at two loss scales, with gradients made large, and with an inf in them. No source text is
read. The experiments are in `experiments`, the judgements in `order`, `values`, `forced` and `raised`, the faults in `faults`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from amp_course.checking.sandbox import sandbox
from amp_course.patterns.checkpoint import several
from amp_course.patterns.experiments import Experiments, size_of
from amp_course.patterns.findings import Audit, Finding, finding, unique
from amp_course.patterns.seen import Batch, Training
from amp_course.patterns.snapshot import Snapshot


def audit(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    batches: Iterable[Batch],
    scaler: torch.amp.GradScaler | None = None,
    scheduler: Any = None,
    loss: Callable[..., Any] | None = None,
    accumulate: int = 1,
    max_norm: float | None = None,
    tolerance: float | None = None,
) -> Audit:
    """Run `train_step(*batch)` on its live objects and say what is wrong with it.

    train_step: your closure over model, optimizer, scaler and scheduler. It gets one (micro-)batch a call; `accumulate` calls
                make one update. If it takes an argument `last`, it is told which micro-batch is the last of a group, and
                a shorter last group is judged as well.
    model:      one or a list: all whose weights the step changes. `optimizer` and `scheduler` likewise.
    batches:    tuples of tensors, at least one update's worth (fewer are used again)
    scheduler:  only one that moves once an update
    loss:       your plain fp32 loss `loss(model, *batch)`, a mean over the examples, penalties included; it may return a tuple
                of losses. Without it the gradient is not compared with fp32, nor a sum told from a mean.
    max_norm:   what the step clips to, if it clips, over all parameters or over each optimizer's
    tolerance:  relative distance from the fp32 gradient that is put down to rounding; None takes one for the dtype seen

    Weights, buffers, gradients, optimizer, scaler and scheduler, random states, training mode and autocast are put back,
    and no hook stays, whatever the step does. A counter of your own in the closure is not: it sees whole groups only.

    Raises TypeError for objects of the wrong kind, ValueError for a max_norm or tolerance that is not above 0.
    Example: audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches).names → ("clipped-while-scaled",)
    """
    training, chunks = _prepare(train_step, model, optimizer, scaler, scheduler, loss, batches, accumulate)
    for name, value in (("max_norm", max_norm), ("tolerance", tolerance)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}: pass a number above 0, or leave it out.")
    wrong = tuple(_about_what_was_given(training, chunks, accumulate))
    if wrong:
        return Audit(unique(wrong), ("objects",), (("everything else", "the objects have to be mended first"),))
    snapshot = Snapshot(training.models, training.optimizers, training.scaler, training.schedulers)
    run = Experiments(training, snapshot, chunks, accumulate, max_norm, tolerance)
    with sandbox():
        try:
            run.everything()
        finally:
            snapshot.restore()
    return Audit(unique(run.found), tuple(run.checked), tuple(run.not_checked))


def _prepare(
    train_step: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any, loss: Any, batches: Any, accumulate: int
) -> tuple[Training, list[list[Batch]]]:
    models, optimizers = several(model), several(optimizer)
    if not callable(train_step):
        raise TypeError(f"train_step is a {type(train_step).__name__}: pass the function that you call for each batch.")
    if not models or not all(isinstance(one, nn.Module) for one in models):
        raise TypeError("model is an nn.Module, or a list of them: pass the one that the step trains.")
    if not optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
        raise TypeError("optimizer is a torch.optim.Optimizer, or a list of them: pass the one that the step steps.")
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler is a {type(scaler).__name__}: pass the step's torch.amp.GradScaler, or None.")
    enabled = scaler is not None and scaler.is_enabled()  # a disabled one does nothing
    try:
        hint = "last" in inspect.signature(train_step).parameters
    except (TypeError, ValueError):
        hint = False
    training = Training(train_step, models, optimizers, scaler if enabled else None, several(scheduler), loss, hint)
    all_batches: list[Batch] = [tuple(batch) if isinstance(batch, (list, tuple)) else (batch,) for batch in batches]
    return training, _chunks(all_batches, max(accumulate, 1)) if all_batches else []


def _chunks(batches: list[Batch], k: int) -> list[list[Batch]]:
    """Cut batches into groups of k, those with micro-batches of unequal sizes first; at least two groups."""
    whole = max(len(batches) // k, 1)
    groups = [[batches[(g * k + i) % len(batches)] for i in range(k)] for g in range(whole)]
    groups.sort(key=lambda group: len({size_of(batch) for batch in group}) == 1)
    return groups if len(groups) > 1 else groups * 2


def _about_what_was_given(training: Training, chunks: list[list[Batch]], accumulate: int) -> Iterable[Finding]:
    if accumulate < 1:
        yield finding("accumulate-below-one", accumulate=accumulate)
    if not chunks:
        yield finding("no-batches")
    held = [p for one in training.parameters for p in one]
    owned = [p for model in training.models for p in model.parameters()]
    kinds = sorted({p.device.type for p in [*held, *owned]})
    if len(kinds) > 1:
        yield finding("two-devices", devices=" and ".join(kinds))
        return
    half = sum(p.dtype == torch.float16 for p in held)
    if half:
        yield finding("fp16-parameters", parameters_in_fp16=half)
    if not all(bool(p.detach().isfinite().all()) for p in owned):
        yield finding("weights-not-finite")
    for number, one in enumerate(training.parameters):
        if not any(p.requires_grad for p in one):
            yield finding("frozen-optimizer", optimizer=number)
        if not {id(p) for p in one} & {id(p) for p in owned}:
            yield finding("foreign-parameters", optimizer=number)
