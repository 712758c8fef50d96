"""Check that a checkpoint fits the objects that load it, before anything is changed.

Each check raises `CheckpointError`, which says what does not fit and what to do. torch's own
`load_state_dict` checks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from amp_course.patterns.checkpoints.file import CheckpointError

# what a sound checkpoint may have or lack: `initial_lr` comes with a scheduler, the others with
# another version of torch; a group without them takes those of the optimizer
_ADDED = {"maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
_ADDED |= {"amsgrad", "initial_lr", "_is_initial", "_get_lr_called_within_step", "verbose"}


def check_numbers(content: dict[str, Any], **objects: Sequence[Any]) -> None:
    """Check that as many objects were passed as were saved; all but models may be left out."""
    for name, passed in objects.items():
        if len(content[name]) != len(passed) and (name == "model" or passed):
            raise CheckpointError(
                f"the number of {name}s differs: the checkpoint holds {len(content[name])}, and "
                f"{len(passed)} were passed. Pass as many, in the same order."
            )


def check_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Check the names, shapes and dtypes of a model's parameters and buffers."""
    now = {name: value for name, value in model.state_dict().items() if not is_lazy(value)}
    missing, extra = [k for k in now if k not in saved], [k for k in saved if k not in now]
    shapes, dtypes = [], []
    for name, here in now.items():
        there = saved.get(name)
        if not isinstance(here, Tensor) or there is None:
            continue
        if there.shape != here.shape:
            shapes.append(f"{name} is {tuple(there.shape)} there and {tuple(here.shape)} here")
        if there.dtype != here.dtype:
            dtypes.append(f"{name} is {there.dtype} there and {here.dtype} here")
    if missing or extra or shapes:
        parts = [f"it lacks {_names(missing)}"] if missing else []
        parts += [f"it has {_names(extra)} as well"] if extra else []
        parts += [_names(shapes)] if shapes else []
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(parts)}. Build the model with the "
            "sizes of the saved run."
        )
    if dtypes:
        raise CheckpointError(
            f"the checkpoint's numbers are of another dtype: {_names(dtypes)}. Build the model in "
            "the dtype of the saved run, load, and convert it afterwards."
        )


def check_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Check the sizes of an optimizer's groups, and the names of their options."""
    groups, saved_groups = optimizer.param_groups, saved["param_groups"]
    here, there = ([len(one["params"]) for one in of] for of in (groups, saved_groups))
    if here != there:
        raise CheckpointError(
            f"the optimizer's groups hold {here} parameters, and the checkpoint's {there}: make "
            "the groups as the saved run did."
        )
    for number, (wanted, group) in enumerate(zip(groups, saved_groups, strict=True)):
        _check_names(wanted, group, f"the optimizer's group {number}")


def completed(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's saved state, with the options that an older torch lacked."""
    pairs = zip(optimizer.param_groups, saved["param_groups"], strict=True)
    groups = [{**{k: here[k] for k in _ADDED if k in here}, **there} for here, there in pairs]
    return {**saved, "param_groups": groups}


def check_scheduler(scheduler: Any, saved: Mapping[str, Any]) -> None:
    """Check the names of a scheduler's values, as torch's schedulers load any state."""
    if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        now = scheduler.state_dict()
        extra = [name for name in saved if name not in now and name not in _ADDED]
        if extra:
            raise CheckpointError(
                f"the scheduler is a {type(scheduler).__name__}, which has no {_names(extra)}: "
                "make the one of the saved run."
            )
        _check_names(now, saved, "the scheduler")


def _check_names(now: Mapping[str, Any], saved: Mapping[str, Any], what: str) -> None:
    missing = [name for name in now if name not in saved and name not in _ADDED]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {_names(missing)} of {what}: it was saved with one of another "
            "kind. Make the one of the saved run."
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
