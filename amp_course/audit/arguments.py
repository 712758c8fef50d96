"""Check what `audit` was given, and make a `Training` of it: each wrong argument gets an error that says what to pass instead."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amp_course.watching.calling import takes
from amp_course.watching.records import Training


def check_numbers(accumulate: Any, **numbers: Any) -> None:
    """Check that `accumulate` is a whole number, and that each other number that was passed is above 0."""
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


def as_training(train_step: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any, loss: Any) -> Training:
    """Return the training that the arguments describe; raise TypeError or ValueError if they cannot be one."""
    if not callable(train_step) or isinstance(train_step, type):
        what = f"the class {train_step.__name__}" if isinstance(train_step, type) else f"a {type(train_step).__name__}"
        raise TypeError(f"train_step is {what}: pass the function that you call for each batch.")
    if inspect.iscoroutinefunction(train_step) or inspect.isgeneratorfunction(train_step):
        kind = "a coroutine" if inspect.iscoroutinefunction(train_step) else "a generator"
        raise TypeError(
            f"train_step is {kind} function: calling it runs nothing. Pass a plain function that trains on one batch."
        )
    models, optimizers = several(model), [_inner(one, "optimizer") for one in several(optimizer)]
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
    scalers = several(scaler)
    for one in scalers:
        if isinstance(one, type) or (
            not isinstance(one, torch.amp.GradScaler)
            and not all(hasattr(one, name) for name in ("scale", "step", "update"))
        ):
            raise TypeError(f"scaler is {_kind(one)}: pass the step's torch.amp.GradScaler, or None.")
    schedulers = [_inner(one, "scheduler") for one in several(scheduler)]
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


def several(one: Any) -> list[Any]:
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
