"""Save a training in one file and resume it: AMP or fp32, even in the middle of an accumulation.

It is read with `weights_only=True`, which runs no code and makes only tensors and plain values, so
`plain_values` turns what is saved into those. If something does not fit, nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

from amp_course.audit.arguments import as_list
from amp_course.kit.plain_values import as_plain
from amp_course.kit.random_state import random_state, set_random_state
from amp_course.patterns.checkpoints import checks
from amp_course.patterns.checkpoints.file import CheckpointError, read_checked, write_atomically

KIND = "amp_course.patterns checkpoint 1"


@dataclass(frozen=True)
class Position:
    """Where a run continues: after `step` updates and `micro_step` micro-batches of the next one.

    data: what you saved with it
    """

    step: int
    micro_step: int = 0
    data: Any = None


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None = None,
    scheduler: Any = None,
    step: int,
    micro_step: int = 0,
    data: Any = None,
) -> Path:
    """Write everything that a run needs to continue as if it had never stopped; return the path.

    Pass lists if there are several. If `micro_step` is above 0, gradients are saved too, scaled as
    they are. `data` is for your own values: the epoch, the losses so far, the order of the
    examples. NumPy's numbers and subclasses of plain types are saved as plain values
    (`plain_values.as_plain`).

    Raises ValueError between `unscale_` and `update`, which no file can represent, and TypeError,
    naming the entry, for what would need code to load: both before anything is written. Raises
    CheckpointError if the file cannot be written; the old one stays.
    """
    models = as_list(model)
    scaler = _enabled(scaler)
    if scaler is not None and _in_between(scaler):
        raise ValueError(
            "this is a moment between `scaler.unscale_` and `scaler.update`, which no state_dict "
            "holds: save before `unscale_`, or after `update`."
        )
    content: dict[str, Any] = {
        "kind": KIND,
        "step": step,
        "micro_step": micro_step,
        "model": [model.state_dict() for model in models],
        "optimizer": [optimizer.state_dict() for optimizer in as_list(optimizer)],
        "scaler": scaler.state_dict() if scaler is not None else None,
        "scheduler": [scheduler.state_dict() for scheduler in as_list(scheduler)],
        "gradients": [_gradients(model) for model in models] if micro_step else None,
        "random": random_state(),
        "data": data,
    }
    return write_atomically({name: as_plain(value, name) for name, value in content.items()}, path)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    scaler: torch.amp.GradScaler | None = None,
    scheduler: Any = None,
    fresh_scaler: bool = False,
) -> Position:
    """Load a training into these objects, and the random states of torch, NumPy and Python.

    Returns where the run continues. A run that was saved with a scaler may continue without (AMP →
    fp32), and one without may continue with a new one (fp32 → AMP, with `fresh_scaler=True`); the
    gradients of an unfinished accumulation are then rescaled.

    Raises CheckpointError, and leaves everything as it was, for a file that is missing, truncated,
    not a checkpoint, contains code, or comes from another model, optimizer or scheduler, and for
    one that lacks the scaler's state.
    """
    models, optimizers, schedulers = as_list(model), as_list(optimizer), as_list(scheduler)
    content = read_checked(Path(path))
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CheckpointError(
            f"{path} holds {_describe(content)}, not a checkpoint of `save_checkpoint`: if these "
            "are weights alone, load them with "
            "`model.load_state_dict(torch.load(path, weights_only=True))`."
        )
    scaler = _enabled(scaler)
    with _rolled_back(*optimizers, *schedulers, *as_list(scaler)):
        checks.check_numbers(content, model=models, optimizer=optimizers, scheduler=schedulers)
        for module, state in zip(models, content["model"], strict=True):
            checks.check_model(module, state)
        for stepped, state in zip(optimizers, content["optimizer"], strict=False):
            checks.check_optimizer(stepped, state)
            stepped.load_state_dict(checks.completed(stepped, state))
        for schedule, state in zip(schedulers, content["scheduler"], strict=False):
            checks.check_scheduler(schedule, state)
            schedule.load_state_dict(state)
        if scaler is not None and content["scaler"] is None and not fresh_scaler:
            raise CheckpointError(
                "the checkpoint has no scaler's state: it was saved by an fp32 run, or by a loop "
                "that left it out. Pass `fresh_scaler=True` to start with your scaler's current "
                "scale, and expect some skipped steps."
            )
        factor = _rescaling(content, scaler)
        if scaler is not None and content["scaler"] is not None:
            scaler.load_state_dict(content["scaler"])
        for module, state in zip(models, content["model"], strict=True):
            module.load_state_dict(state)
    _put_gradients(models, content["gradients"], factor)
    set_random_state(content["random"])
    return Position(content["step"], content["micro_step"], content["data"])


@contextmanager
def _rolled_back(*objects: Any) -> Iterator[None]:
    """Restore the attributes of objects, which loading replaces, if one refuses its state."""
    before = [(owner, dict(vars(owner))) for owner in objects]
    try:
        yield
    except Exception as error:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the checkpoint's state was refused: {error}. Make the objects of the saved run, or "
            "go back to the checkpoint before."
        ) from error


def _describe(content: Any) -> str:
    if isinstance(content, dict):
        return f"a dict with the keys {', '.join(map(repr, list(content)[:4]))}"
    return f"a {type(content).__name__}"


def _enabled(scaler: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
    return scaler if scaler is not None and scaler.is_enabled() else None


def _in_between(scaler: torch.amp.GradScaler) -> bool:
    return any(
        state["stage"] is not OptState.READY for state in scaler._per_optimizer_states.values()
    )


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _rescaling(content: dict[str, Any], scaler: torch.amp.GradScaler | None) -> float:
    """Return the factor from the saved gradients' loss scale to that of this run.

    If both runs have a scaler, or neither has, the saved scale is used: the factor is 1.
    """
    saved = content["scaler"]
    if not any(content["gradients"] or ()) or (scaler is None) == (saved is None):
        return 1.0
    return scaler.get_scale() if scaler is not None else 1.0 / saved["scale"]


def _put_gradients(
    models: Sequence[nn.Module], saved: list[dict[str, Tensor]] | None, factor: float
) -> None:
    for model, gradients in zip(models, saved or [{}] * len(models), strict=True):
        for name, p in model.named_parameters():
            gradient = gradients.get(name)
            # exact if the scales are powers of two, as is usual
            p.grad = None if gradient is None else gradient.to(p.device) * factor
