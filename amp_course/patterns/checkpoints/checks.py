"""Check that a checkpoint fits the objects it is to be loaded into: all of it, before anything is changed.

Each check raises `CheckpointError`, which says what does not fit and what to do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from amp_course.patterns.checkpoints.file import CheckpointError

_FIELDS: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "micro_step": (int,),
    "model": (list,),
    "optimizer": (list,),
    "scaler": (dict, type(None)),
    "scheduler": (list,),
    "gradients": (list, type(None)),
    "random": (dict,),
    "data": (object,),
}
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# What the state of torch's own optimizers must hold for a parameter that was stepped, in the shape of the parameter.
_STATE: tuple[tuple[type[torch.optim.Optimizer], tuple[str, ...]], ...] = (
    (torch.optim.Adam, ("exp_avg", "exp_avg_sq")),
    (torch.optim.AdamW, ("exp_avg", "exp_avg_sq")),
    (torch.optim.NAdam, ("exp_avg", "exp_avg_sq")),
    (torch.optim.RAdam, ("exp_avg", "exp_avg_sq")),
    (torch.optim.Adamax, ("exp_avg", "exp_inf")),
    (torch.optim.RMSprop, ("square_avg",)),
    (torch.optim.Adagrad, ("sum",)),
    (torch.optim.Adadelta, ("square_avg", "acc_delta")),
    (torch.optim.Rprop, ("prev", "step_size")),
)
_SHAPED = {"max_exp_avg_sq", "momentum_buffer", "grad_avg", "ax", *(name for _, names in _STATE for name in names)}
# What a sound checkpoint may lack: `initial_lr` before there was a scheduler, the others where torch's versions differ.
_MAY_LACK = {"initial_lr", "_is_initial", "_get_lr_called_within_step", "verbose"}
# Options that torch has added to its optimizers over time. A group without them takes them from the optimizer it is loaded into.
_ADDED = ("maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay")
_CHOICES = {"foreach", "fused"}  # None leaves the choice to torch: it fits any value
_NOT_NEGATIVE = {"lr", "initial_lr", "eps"}
# Numbers of a scheduler that go into a learning rate. Others may be inf, as the best loss before the first one.
_FINITE = {"base_lrs", "_last_lr", "last_epoch", "_step_count"}
_DAMAGED = "The file is damaged, or something else has written it: go back to the checkpoint before."


def check_fields(content: dict[str, Any]) -> None:
    """Check that all fields are there, each of its kind."""
    missing = [name for name in _FIELDS if name not in content]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_names(missing)}. {_DAMAGED}")
    for name, kinds in _FIELDS.items():
        if not isinstance(content[name], kinds) or (isinstance(content[name], bool) and name != "data"):
            raise CheckpointError(f"the checkpoint's {name} is {_short(content[name])}. {_DAMAGED}")
    for name in ("step", "micro_step"):
        if content[name] < 0:
            raise CheckpointError(f"the checkpoint's {name} is {content[name]}, below 0. {_DAMAGED}")
    for name in ("model", "optimizer", "scheduler", "gradients"):
        for number, state in enumerate(content[name] or ()):
            if not isinstance(state, dict):
                raise CheckpointError(f"the checkpoint's {name}[{number}] is {_short(state)}, not a dict. {_DAMAGED}")


def check_numbers(content: dict[str, Any], models: Sequence[Any], optimizers: Any, schedulers: Any) -> None:
    """Check that as many objects were passed as were saved; optimizers and schedulers may be left out."""
    for name, objects in (("model", models), ("optimizer", optimizers), ("scheduler", schedulers)):
        if len(content[name]) != len(objects) and (name == "model" or objects):
            raise CheckpointError(
                f"the number of {name}s differs: the checkpoint holds {len(content[name])}, and {len(objects)} were passed. "
                "Pass as many, in the same order."
            )


def check_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Check the names, shapes and dtypes of a model's parameters and buffers."""
    now = model.state_dict()
    missing, left = [k for k in now if k not in saved], [k for k in saved if k not in now]
    tensors = {k: value for k, value in now.items() if isinstance(value, Tensor) and k in saved and not is_lazy(value)}
    wrong = [f"{k} is {_short(saved[k])} there" for k in tensors if not isinstance(saved[k], Tensor)]
    pairs = [(k, saved[k], value) for k, value in tensors.items() if isinstance(saved[k], Tensor)]
    wrong += [
        f"{k} is {tuple(there.shape)} there and {tuple(here.shape)} here"
        for k, there, here in pairs
        if there.shape != here.shape
    ]
    if missing or left or wrong:
        parts = [f"it lacks {_names(missing)}"] if missing else []
        parts += [f"it has {_names(left)} as well"] if left else []
        parts += [_names(wrong)] if wrong else []
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(parts)}. Build the model with the sizes of the saved run."
        )
    other = [
        f"{k} is {there.dtype} there and {here.dtype} here" for k, there, here in pairs if there.dtype != here.dtype
    ]
    if other:
        raise CheckpointError(
            f"the checkpoint's numbers are of another dtype: {_names(other)}. Build the model in the dtype of the saved run, "
            "load, and convert it afterwards."
        )


def check_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Check an optimizer's groups and their options, and the state of each parameter."""
    groups, states = saved.get("param_groups"), saved.get("state")
    if not isinstance(groups, list) or not isinstance(states, dict):
        raise CheckpointError(f"the checkpoint's optimizer has no state_dict's `state` and `param_groups`. {_DAMAGED}")
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
        raise CheckpointError(f"the checkpoint's optimizer has a group without `params`. {_DAMAGED}")
    ids = [index for group in groups for index in group["params"]]
    if not all(isinstance(index, int) for index in ids) or len(set(ids)) < len(ids):
        raise CheckpointError(f"the checkpoint's optimizer does not number its parameters. {_DAMAGED}")
    here, there = ([len(group["params"]) for group in of] for of in (optimizer.param_groups, groups))
    if here != there:
        raise CheckpointError(
            f"the optimizer's groups hold {here} parameters, and the checkpoint's {there}: make the groups as the saved run did."
        )
    # Options that newer versions of torch added are filled in by the optimizer itself: so ask one of its kind, without state.
    probe = object.__new__(type(optimizer))
    probe.__dict__.update(vars(optimizer))
    try:
        probe.load_state_dict({"state": {}, "param_groups": completed(optimizer, saved)["param_groups"]})
    except Exception as error:
        raise CheckpointError(f"the optimizer refuses the checkpoint's groups: {error}. {_DAMAGED}") from None
    for number, (group, wanted) in enumerate(zip(probe.param_groups, optimizer.param_groups, strict=True)):
        _check_values(wanted, group, f"the optimizer's group {number}")
        for name, value in group.items():
            if name != "params":
                _check_number(name, value, wanted.get(name), f"the optimizer's group {number}")
    parameters = dict(zip(ids, (p for group in optimizer.param_groups for p in group["params"]), strict=True))
    for index, state in states.items():
        if index not in parameters or not isinstance(state, dict):
            raise CheckpointError(f"the checkpoint's optimizer state {index!r} belongs to no parameter. {_DAMAGED}")
        _check_state(optimizer, index, state, parameters[index])


def completed(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's saved state with the options in its groups that an older torch did not have."""
    pairs = zip(optimizer.param_groups, saved["param_groups"], strict=True)
    groups = [{**{name: here[name] for name in _ADDED if name in here}, **there} for here, there in pairs]
    return {**saved, "param_groups": groups}


def _check_number(name: str, value: Any, now: Any, what: str) -> None:
    """Check that the numbers in a value are finite, as far as the live ones are, and not below 0 where that makes no sense."""
    if isinstance(value, (list, tuple)):
        others = now if isinstance(now, (list, tuple)) and len(now) == len(value) else [None] * len(value)
        for one, other in zip(value, others, strict=True):
            _check_number(name, one, other, what)
    elif _is_number(value):
        number = _float(value)
        free = _is_number(now) and not math.isfinite(_float(now))
        if (not math.isfinite(number) and not free) or (name in _NOT_NEGATIVE and number < 0):
            raise CheckpointError(f"the checkpoint has {number} for {name} of {what}. {_DAMAGED}")


def _check_state(optimizer: torch.optim.Optimizer, index: int, state: dict[str, Any], parameter: Tensor) -> None:
    needed = next((("step", *names) for kind, names in _STATE if isinstance(optimizer, kind)), ())
    missing = [name for name in needed if name not in state]
    if state and missing:
        raise CheckpointError(
            f"the checkpoint's optimizer state {index} lacks {_names(missing)}: it was saved with another kind of optimizer than "
            f"{type(optimizer).__name__}, or is damaged. Make the optimizer of the saved run."
        )
    for name, value in state.items():
        if name in _SHAPED and (value is not None or name in needed):
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                raise CheckpointError(
                    f"the checkpoint's optimizer state {index} has {_short(value)} for {name}, and the parameter is "
                    f"{tuple(parameter.shape)}. Pass the parameters in the order of the saved run."
                )
        elif name == "step" and not (_is_number(value) and 0 <= _float(value) < math.inf):
            told = _float(value) if _is_number(value) else _short(value)
            raise CheckpointError(f"the checkpoint's optimizer state {index} has {told} for step. {_DAMAGED}")


def check_scheduler(scheduler: Any, saved: Mapping[str, Any], what: str = "the scheduler") -> None:
    """Check the names and kinds of a scheduler's values, and of those inside it."""
    now = scheduler.state_dict()
    if not isinstance(saved, dict):
        raise CheckpointError(f"the checkpoint has {_short(saved)} for {what}, not a dict. {_DAMAGED}")
    if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        left = [name for name in saved if name not in now and name not in _MAY_LACK]
        if left:
            raise CheckpointError(
                f"{what} is a {type(scheduler).__name__}, which has no {_names(left)}: make the one of the saved run."
            )
    _check_values(now, saved, what)
    for name in _FINITE & now.keys() & saved.keys():
        _check_number(name, saved[name], now[name], what)
    for name in ("base_lrs", "_last_lr", "lr_lambdas", "_schedulers"):
        if name in now and len(saved[name]) != len(now[name]):
            raise CheckpointError(
                f"{what} has {len(now[name])} values for {name}, and the checkpoint {len(saved[name])}: "
                "make the one of the saved run."
            )
    for number, one in enumerate(getattr(scheduler, "_schedulers", ())):
        check_scheduler(one, saved["_schedulers"][number], f"{what}'s part {number}")


def _check_values(now: Mapping[str, Any], saved: Mapping[str, Any], what: str) -> None:
    missing = [name for name in now if name not in saved and name not in _MAY_LACK]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {_names(missing)} of {what}: it was saved with one of another kind, or is damaged. Make the "
            "one of the saved run."
        )
    for name, value in now.items():
        free = name == "params" or (name in _CHOICES and saved.get(name) is None)
        free |= name == "_schedulers" and isinstance(saved.get(name), (list, tuple))  # each is checked on its own
        if name in saved and not free and not _alike(value, saved[name]):
            raise CheckpointError(
                f"the checkpoint has {_short(saved[name])} for {name} of {what}, which here is {_short(value)}. {_DAMAGED}"
            )


def check_scaler(saved: dict[str, Any] | None, wanted: bool, fresh_scaler: bool) -> None:
    """Check a scaler's state: five numbers; or that none is wanted."""
    if saved is None:
        if wanted and not fresh_scaler:
            raise CheckpointError(
                "the checkpoint has no scaler's state: it was saved by an fp32 run, or by a loop that left it out. Pass "
                "`fresh_scaler=True` to start with your scaler's current scale, and expect some skipped steps."
            )
        return
    missing = [name for name in _SCALER if name not in saved]
    if missing:
        raise CheckpointError(f"the checkpoint's scaler lacks {_names(missing)}. {_DAMAGED}")
    for name in _SCALER:
        value = saved[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise CheckpointError(f"the checkpoint's scaler has {_short(value)} for {name}. {_DAMAGED}")


def check_gradients(content: dict[str, Any], models: Sequence[nn.Module]) -> None:
    """Check the names, shapes and dtypes of gradients that were saved in the middle of an accumulation."""
    if content["gradients"] is None:
        if content["micro_step"]:
            raise CheckpointError(
                f"the checkpoint is from the middle of an accumulation, after micro-batch {content['micro_step']}, and lacks "
                f"the gradients. {_DAMAGED}"
            )
        return
    if len(content["gradients"]) != len(models):
        raise CheckpointError(f"the checkpoint has gradients of {len(content['gradients'])} models. {_DAMAGED}")
    for model, gradients in zip(models, content["gradients"], strict=True):
        parameters = dict(model.named_parameters())
        for name, gradient in gradients.items():
            p = parameters.get(name)
            fits = (
                p is not None
                and isinstance(gradient, Tensor)
                and (gradient.shape, gradient.dtype) == (p.shape, p.dtype)
            )
            if not fits:
                raise CheckpointError(
                    f"the checkpoint has {_short(gradient)} as the gradient of {name!r}, which "
                    f"{'the model does not have' if p is None else 'here is ' + _short(p)}. {_DAMAGED}"
                )


def check_random(state: dict[str, Any]) -> None:
    """Check random states by putting them into generators of their own."""
    try:
        torch.Generator().set_state(state["torch"])
        for one in state["cuda"]:
            if not isinstance(one, Tensor) or one.dtype != torch.uint8:
                raise TypeError("cuda")
        name, key, *rest = state["numpy"]
        np.random.RandomState().set_state((name, key.numpy().astype(np.uint32), *rest))
        version, internal, next_gauss = state["python"]
        random.Random().setstate((version, internal, None if next_gauss is None else float(next_gauss)))
    except Exception:
        raise CheckpointError(
            f"the checkpoint's random state cannot be used. {_DAMAGED} Or pass `random_state=False` to go on without it: then "
            "dropout and shuffling differ from the run that was stopped."
        ) from None


def _is_number(value: Any) -> bool:
    return (isinstance(value, Tensor) and value.numel() == 1) or isinstance(value, (int, float))


def _float(value: Any) -> float:
    """Return a number as a float; NaN for what is none after all, such as a complex one."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _alike(now: Any, saved: Any) -> bool:
    """Tell whether two values are of one kind: numbers, texts, dicts, lists of such; an unset option takes a number or a dict."""
    if now is None:
        return saved is None or _is_number(saved) or isinstance(saved, dict)
    if isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)):
        return (isinstance(now, list) or len(now) == len(saved)) and all(map(_alike, now, saved))
    if _is_number(now) and _is_number(saved):
        return True
    return type(now) is type(saved) or any(isinstance(now, kind) and isinstance(saved, kind) for kind in (str, dict))


def _names(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {tuple(value.shape)}, {value.dtype}"
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, tuple, bytes)) else repr(value)[:60]
