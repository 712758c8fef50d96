"""Audit a training step by what it does: run it on the live objects, look, put everything back, say what is wrong.

The step runs for a dozen updates: twice on the same batch, at two loss scales, with gradients made large, with an inf in them.
No source text is read. The experiments are in `experiments`, `fp32` and `overflow`, the judgements in `rules`, the faults in
`faults`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amp_course.audit.calling import BatchError, size_of, taken, takes
from amp_course.audit.experiments import Experiments
from amp_course.audit.faults import BEHAVIOURS
from amp_course.audit.findings import Audit, finding, ordered
from amp_course.audit.protocol import Protocol
from amp_course.audit.record import Training
from amp_course.audit.rules.given import about_given
from amp_course.audit.runner import Runner
from amp_course.audit.snapshot import Snapshot
from amp_course.checking.sandbox import sandbox

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
) -> Audit:
    """Run `train_step(*batch)` on its live objects and say what is wrong with it.

    train_step: whatever you call for a batch: a function, a method, a closure. It gets one (micro-)batch a call; `accumulate`
                calls make one update. If it takes an argument `last`, it is told which micro-batch is the last of a group, and
                a shorter last group is judged as well.
    model:      one or a list: all whose weights the step changes. `optimizer`, `scheduler` and `scaler` likewise.
    batches:    tuples, dicts or single objects, at least one update's worth (fewer are used again). Each call gets a copy; of an
                iterator no more are taken than are needed.
    scheduler:  only one that moves once an update
    loss:       your plain fp32 loss `loss(model, *batch)`, a mean over the examples, penalties included; it may return a tuple of
                losses, or be a list with one for each optimizer. Without it the gradient is not compared with fp32, nor a sum
                told from a mean.
    max_norm:   what the step clips to, if it clips
    tolerance:  relative distance from the fp32 gradient that is put down to rounding; None takes one for the dtype seen
    seconds:    how long one call of the step may take

    Everything that the step can reach is put back: weights, buffers, gradients, optimizer, scaler and scheduler, hooks,
    attributes, closures, random states and torch's settings. What could not be put back, such as an iterator that was moved on,
    is named in the report. What the step prints, plots or writes to files is printed, plotted and written a dozen times.

    Raises TypeError for objects of the wrong kind, ValueError for a max_norm, tolerance or time that is not above 0.
    Example: audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches).names → ("clipped-while-scaled",)
    """
    _check_numbers(accumulate, max_norm=max_norm, tolerance=tolerance, seconds=seconds)
    training = _training(train_step, model, optimizer, scaler, scheduler, loss)
    with sandbox():
        held: dict[str, Any] = {"the step": train_step, "the loss": loss}
        if not isinstance(batches, (list, tuple)):  # reading a DataLoader draws numbers
            held["batches"] = batches
        snapshot = Snapshot([*training.models, *training.optimizers, *training.scalers, *training.schedulers], held)
        try:
            protocol, read = _judged(training, snapshot, batches, accumulate, max_norm, tolerance, seconds)
        finally:
            snapshot.restore()
    for one in _several(scaler):
        if not isinstance(one, torch.amp.GradScaler):
            protocol.seen.append(
                f"The scaler is a {type(one).__name__}, not a `torch.amp.GradScaler`: its calls were not watched."
            )
    if "batches" in snapshot.lost:
        snapshot.lost["batches"] = f"is an iterator, and {read} batches were taken from it"
    return Audit(
        ordered(protocol.found),
        tuple(behaviour for behaviour in BEHAVIOURS if behaviour in protocol.checked),
        tuple(protocol.not_checked.items()),
        tuple(protocol.seen),
        tuple(snapshot.lost.items()),
    )


def _judged(
    training: Training,
    snapshot: Snapshot,
    batches: Iterable[Any],
    accumulate: int,
    max_norm: float | None,
    tolerance: float | None,
    seconds: float,
) -> tuple[Protocol, int]:
    """Read batches, do the experiments; return what they gave, and how many batches were read."""
    protocol, each = Protocol(), max(accumulate, 1)
    try:
        read = taken(batches, _GROUPS * each, seconds)
    except BatchError as error:
        protocol.judge("", [finding("no-batches", str(error))])
        return protocol, 0
    if each > max(len(read), _MOST_OF_A_GROUP):
        raise ValueError(
            f"accumulate is {accumulate}, and there are {len(read)} batches: pass batches for at least one update."
        )
    groups = _groups(read, each)
    protocol.judge("", about_given(training, groups, accumulate))
    if protocol.found:
        protocol.leave_out("everything else", "fix the faults above first")
        return protocol, len(read)
    run = Runner(training, snapshot, groups, each, seconds)
    limit = None if max_norm == math.inf else max_norm
    Experiments(run, limit, tolerance, ragged=_length(batches, len(read)) % each > 0, protocol=protocol).everything()
    return protocol, len(read)


def _length(batches: Iterable[Any], read: int) -> int:
    """Return the number of the reader's batches, as far as it is known: a loader's `len` may raise."""
    try:
        return len(batches) if isinstance(batches, Sized) else read
    except Exception:
        return read


def _check_numbers(accumulate: Any, **numbers: Any) -> None:
    if isinstance(accumulate, bool) or not isinstance(accumulate, int):
        raise TypeError(f"accumulate is {accumulate!r}: pass the number of micro-batches of an update, a whole number.")
    for name, value in numbers.items():
        if value is None and name != "seconds":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(
                f"{name} is {value!r}: pass a number above 0{', or leave it out' if name != 'seconds' else ''}."
            )
        if not value > 0 or (name == "seconds" and math.isinf(value)):
            raise ValueError(f"{name} is {value}: pass a number above 0, or leave it out.")


def _training(train_step: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any, loss: Any) -> Training:
    if not callable(train_step) or isinstance(train_step, type):
        what = f"the class {train_step.__name__}" if isinstance(train_step, type) else f"a {type(train_step).__name__}"
        raise TypeError(f"train_step is {what}: pass the function that you call for each batch.")
    if inspect.iscoroutinefunction(train_step) or inspect.isgeneratorfunction(train_step):
        kind = "a coroutine" if inspect.iscoroutinefunction(train_step) else "a generator"
        raise TypeError(
            f"train_step is {kind} function: calling it runs nothing. Pass a plain function that trains on one batch."
        )
    models, optimizers = _several(model), [_inner(one, "optimizer") for one in _several(optimizer)]
    if not models or not all(isinstance(one, nn.Module) for one in models):
        wrong = next((one for one in models if not isinstance(one, nn.Module)), model)
        raise TypeError(f"model is {_kind(wrong)}: pass the nn.Module that the step trains, or a list of them.")
    if not optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
        wrong = next((one for one in optimizers if not isinstance(one, torch.optim.Optimizer)), optimizer)
        raise TypeError(
            f"optimizer is {_kind(wrong)}: pass the torch.optim.Optimizer that the step steps, or a list of them."
        )
    lazy = sorted(
        {type(m).__name__ for one in models for m in one.modules() for p in m.parameters(False) if is_lazy(p)}
    )
    kinds = {p.device.type for one in models for p in one.parameters()}
    if kinds == {"meta"}:
        raise ValueError(
            "the model is on the meta device, where weights have no numbers: move it by `model.to_empty(device=…)`, and load its "
            "weights."
        )
    if lazy:
        raise ValueError(
            f"the model has lazy layers without weights yet ({', '.join(lazy)}): run it on one batch first, then make the "
            "optimizer."
        )
    scalers = _several(scaler)
    for one in scalers:
        if isinstance(one, type) or (
            not isinstance(one, torch.amp.GradScaler)
            and not all(hasattr(one, name) for name in ("scale", "step", "update"))
        ):
            raise TypeError(f"scaler is {_kind(one)}: pass the step's torch.amp.GradScaler, or None.")
    schedulers = [_inner(one, "scheduler") for one in _several(scheduler)]
    for one in schedulers:
        if not callable(getattr(one, "step", None)):
            raise TypeError(
                f"scheduler is {_kind(one)}: pass the scheduler whose step() the step calls, or leave it out."
            )
    losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
    if loss is not None and not all(callable(one) for one in losses):
        raise TypeError(f"loss is {_kind(loss)}: pass a function `loss(model, *batch)`, or leave it out.")
    if isinstance(loss, (list, tuple)) and len(losses) != len(optimizers):
        raise ValueError(
            f"there are {len(losses)} losses and {len(optimizers)} optimizers: pass one loss, or one for each optimizer."
        )
    watched = [one for one in scalers if isinstance(one, torch.amp.GradScaler) and one.is_enabled()]
    return Training(train_step, models, optimizers, watched, schedulers, loss, takes(train_step, "last"))


def _several(one: Any) -> list[Any]:
    """Return what was passed as a list: None is an empty one."""
    if one is None:
        return []
    if isinstance(one, dict):
        return list(one.values())
    return list(one) if isinstance(one, (list, tuple)) else [one]


def _inner(one: Any, name: str) -> Any:
    """Return what a library has wrapped: Accelerate and Fabric hand out optimizers and schedulers around the real ones."""
    for attribute in (name, f"_{name}"):
        inside = getattr(one, attribute, None)
        if (
            name == "optimizer"
            and isinstance(inside, torch.optim.Optimizer)
            and not hasattr(one, "_optimizer_step_pre_hooks")
        ):
            return inside
        if name == "optimizer" and type(one).__module__.startswith(("accelerate.", "lightning")) and inside is not None:
            return inside
        if name == "scheduler" and inside is not None and callable(getattr(inside, "step", None)):
            return inside
    return one


def _kind(one: Any) -> str:
    return f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"


def _groups(batches: list[Any], k: int) -> list[list[Any]]:
    """Cut batches into groups of k, those with micro-batches of unequal sizes first; at least two groups."""
    if not batches:
        return []
    whole = max(len(batches) // k, 1)
    groups = [[batches[(g * k + i) % len(batches)] for i in range(k)] for g in range(whole)]
    groups.sort(key=lambda group: len({size_of(batch) for batch in group}) == 1)
    return groups if len(groups) > 1 else groups * 2
