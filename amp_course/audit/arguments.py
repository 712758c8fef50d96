"""Turn the arguments of `audit` into a `Training`; an error says what to pass instead."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amp_course.watching.calling import takes
from amp_course.watching.records import Training


def check_numbers(accumulate: Any, **numbers: Any) -> None:
    """Check that `accumulate` is a whole number, and each other number above 0."""
    if isinstance(accumulate, bool) or not isinstance(accumulate, int):
        wanted = "pass the number of micro-batches of an update, a whole number."
        raise TypeError(f"accumulate is {accumulate!r}: {wanted}")
    for name, value in numbers.items():
        if value is None and name != "seconds":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            rest = ", or leave it out" if name != "seconds" else ""
            raise TypeError(f"{name} is {value!r}: pass a number above 0{rest}.")
        if not value > 0 or (name == "seconds" and math.isinf(value)):
            raise ValueError(f"{name} is {value}: pass a number above 0, or leave it out.")


def as_training(
    train_step: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any, loss: Any
) -> Training:
    """Return the training that the arguments describe. Raises TypeError, ValueError."""
    _check([train_step], "train_step", _is_function, "the function that you call for each batch")
    for is_kind, kind in (
        (inspect.iscoroutinefunction, "coroutine"),
        (inspect.isgeneratorfunction, "generator"),
    ):
        if is_kind(train_step):
            raise TypeError(
                f"train_step is a {kind} function: calling it runs nothing. Pass a plain function "
                "that trains on one batch."
            )
    models, scalers = as_list(model), as_list(scaler)
    optimizers = [_unwrapped(one, "optimizer") for one in as_list(optimizer)]
    schedulers = [_unwrapped(one, "scheduler") for one in as_list(scheduler)]
    wanted = "the nn.Module that the step trains, or a list of them"
    _check(models or [model], "model", lambda one: isinstance(one, nn.Module), wanted)
    wanted = "the torch.optim.Optimizer that the step steps, or a list of them"
    _check(optimizers or [optimizer], "optimizer", _is_optimizer, wanted)
    if {p.device.type for one in models for p in one.parameters()} == {"meta"}:
        raise ValueError(
            "the model is on the meta device, where weights have no numbers: move it by "
            "`model.to_empty(device=…)`, and load its weights."
        )
    layers = [layer for one in models for layer in one.modules()]
    if lazy := {type(one).__name__ for one in layers if any(map(is_lazy, one.parameters(False)))}:
        raise ValueError(
            f"the model has lazy layers without weights yet ({', '.join(sorted(lazy))}): run it on "
            "one batch first, then make the optimizer."
        )
    _check(scalers, "scaler", _is_scaler, "the step's torch.amp.GradScaler, or None")
    wanted = "the scheduler whose step() the step calls, or leave it out"
    _check(schedulers, "scheduler", _has_step, wanted)
    wanted = "a function `loss(model, *batch)`, or leave it out"
    if isinstance(loss, (list, tuple)):
        _check(loss, "loss", callable, wanted)
        if len(loss) != len(optimizers):
            raise ValueError(
                f"there are {len(loss)} losses and {len(optimizers)} optimizers: pass one loss, or "
                "one for each optimizer."
            )
    elif loss is not None:
        _check([loss], "loss", callable, wanted)
    watched = [one for one in scalers if isinstance(one, torch.amp.GradScaler) and one.is_enabled()]
    hint = takes(train_step, "last")
    return Training(train_step, models, optimizers, watched, schedulers, loss, hint)


def _check(objects: Sequence[Any], name: str, fits: Callable[[Any], bool], wanted: str) -> None:
    """Raise TypeError for the first of several objects that is of the wrong kind."""
    for one in objects:
        if not fits(one):
            is_class = isinstance(one, type)
            kind = f"the class {one.__name__}" if is_class else f"a {type(one).__name__}"
            raise TypeError(f"{name} is {kind}: pass {wanted}.")


def _is_function(one: Any) -> bool:
    return callable(one) and not isinstance(one, type)


def _is_optimizer(one: Any) -> bool:
    return isinstance(one, torch.optim.Optimizer)


def _has_step(one: Any) -> bool:
    return callable(getattr(one, "step", None))


def _is_scaler(one: Any) -> bool:
    """Return True for a scaler of torch, or a library's own that has its methods."""
    return not isinstance(one, type) and all(
        hasattr(one, name) for name in ("scale", "step", "update")
    )


def as_list(one: Any) -> list[Any]:
    """Return one object or several as a list: None gives an empty one, a dict its values."""
    if one is None:
        return []
    if isinstance(one, dict):
        return list(one.values())
    return list(one) if isinstance(one, (list, tuple)) else [one]


def _unwrapped(one: Any, name: str) -> Any:
    """Return what a library has wrapped: Accelerate and Fabric hand out such objects."""
    for attribute in (name, f"_{name}"):
        inside = getattr(one, attribute, None)
        if name == "scheduler":
            wrapped = _has_step(inside)
        else:
            no_hooks = _is_optimizer(inside) and not hasattr(one, "_optimizer_step_pre_hooks")
            of_library = type(one).__module__.startswith(("accelerate.", "lightning"))
            wrapped = no_hooks or (of_library and inside is not None)
        if wrapped:
            return inside
    return one
