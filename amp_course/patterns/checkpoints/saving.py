"""Save a training in one file and go on from it: AMP or fp32, between two updates or in the middle
of an accumulation.

A file is whole or it is the one before: it is written next to its place and moved there in one
step. It is read with `weights_only=True`, which builds tensors and plain values and runs no code:
`plain_values` turns what is saved into those. Where something does not fit, everything stays as it
was.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

from amp_course.kit.plain_values import as_plain
from amp_course.kit.random_state import random_state as current_random_state
from amp_course.kit.random_state import set_random_state
from amp_course.patterns.checkpoints import checks
from amp_course.patterns.checkpoints.file import CheckpointError, read_checked, write_atomically

KIND = "amp_course.patterns checkpoint 1"


@dataclass(frozen=True)
class Position:
    """Where a run goes on: `step` updates are done, `micro_step` micro-batches of the next;
    `data` is what you saved.
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
    """Write everything that a run needs to go on as if it had never stopped, and return the path.

    Pass lists where there are several. Gradients are saved as well where `micro_step` is above 0,
    scaled as they are. `data` is for your own values: the epoch, the losses so far, the order of
    the examples. NumPy's numbers and subclasses of plain types are saved as their plain equals
    (`plain_values.as_plain`).

    Raises, before anything is written, ValueError between `unscale_` and `update`, a state that no
    file holds, and TypeError for what would need code to load, naming the entry. Raises
    CheckpointError if the file cannot be written; the old one stays.
    Example: save_checkpoint("run.pt", model=model, optimizer=optimizer, scaler=scaler, step=100) →
             Path("run.pt")
    """
    models, optimizers = as_list(model), as_list(optimizer)
    amp = scaler is not None and scaler.is_enabled()
    if scaler is not None and amp and _in_between(scaler):
        raise ValueError(
            "this is a moment between `scaler.unscale_` and `scaler.update`, which no state_dict "
            "holds: save before `unscale_`, or after `update`."
        )
    content: dict[str, Any] = {
        "kind": KIND,
        "step": _count(step, "step"),
        "micro_step": _count(micro_step, "micro_step"),
        "model": [one.state_dict() for one in models],
        "optimizer": [one.state_dict() for one in optimizers],
        "scaler": scaler.state_dict() if scaler is not None and amp else None,
        "scheduler": [one.state_dict() for one in as_list(scheduler)],
        "gradients": [_gradients(one) for one in models] if micro_step else None,
        "random": current_random_state(),
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
    random_state: bool = True,
) -> Position:
    """Put a saved training into these objects and return where it goes on.

    A run that saved with a scaler may go on without (AMP → fp32), and one without may go on with a
    new one (fp32 → AMP, with `fresh_scaler=True`); gradients of the middle of an accumulation are
    rescaled then.

    Raises CheckpointError, and leaves everything as it was, for a file that is missing, truncated,
    no checkpoint, with code in it, from another model, optimizer or scheduler, or without a
    scaler's state where one is wanted.
    """
    models, optimizers, schedulers = as_list(model), as_list(optimizer), as_list(scheduler)
    content = read_checked(Path(path))
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CheckpointError(
            f"{path} holds {_describe(content)}, not a checkpoint of `save_checkpoint`: if these "
            f"are weights alone, load "
            "them with `model.load_state_dict(torch.load(path, weights_only=True))`."
        )
    scaler = scaler if scaler is not None and scaler.is_enabled() else None
    with _rolled_back(*optimizers, *schedulers, *as_list(scaler)):
        checks.check_numbers(content, model=models, optimizer=optimizers, scheduler=schedulers)
        for one, state in zip(models, content["model"], strict=True):
            checks.check_model(one, state)
        for one, state in zip(optimizers, content["optimizer"], strict=False):
            checks.check_optimizer(one, state)
            one.load_state_dict(checks.completed(one, state))
        for one, state in zip(schedulers, content["scheduler"], strict=False):
            checks.check_scheduler(one, state)
            one.load_state_dict(state)
        checks.check_scaler(content["scaler"], scaler is not None, fresh_scaler)
        factor = _rescaling(content, scaler)
        if scaler is not None and content["scaler"] is not None:
            scaler.load_state_dict(content["scaler"])
        for one, state in zip(models, content["model"], strict=True):
            one.load_state_dict(state)
    _put_gradients(models, content["gradients"], factor)
    if random_state:
        set_random_state(content["random"])
    return Position(content["step"], content["micro_step"], content["data"])


@contextmanager
def _rolled_back(*objects: Any) -> Iterator[None]:
    """Give objects their attributes back if one refuses its state:
    loading makes new ones and leaves the old as they were.
    """
    before = [(one, dict(vars(one))) for one in objects]
    try:
        yield
    except Exception as error:
        for one, attributes in before:
            vars(one).clear()
            vars(one).update(attributes)
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


def as_list(value: Any) -> tuple[Any, ...]:
    """Return a tuple of one or of several objects: None → ()."""
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _count(value: Any, name: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: pass a whole number.") from None
    if count < 0:
        raise ValueError(f"{name} is {count}: pass 0 or more.")
    return count


def _in_between(scaler: torch.amp.GradScaler) -> bool:
    return any(
        state["stage"] is not OptState.READY for state in scaler._per_optimizer_states.values()
    )


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _rescaling(content: dict[str, Any], scaler: torch.amp.GradScaler | None) -> float:
    """Return the factor from the loss scale that gradients were saved with to the one that the run
    goes on with.
    """
    saved = content["scaler"]
    if not any(content["gradients"] or ()) or (scaler is not None) == (saved is not None):
        return 1.0
    if saved is None:
        return scaler.get_scale() if scaler is not None else 1.0
    if saved["scale"] == 0:
        raise CheckpointError(
            "the checkpoint's gradients were scaled by 0, so nothing is left of them: go back to "
            "the checkpoint before."
        )
    return 1.0 / float(saved["scale"])


def _put_gradients(
    models: Sequence[nn.Module], saved: list[dict[str, Tensor]] | None, factor: float
) -> None:
    for model, gradients in zip(models, saved or [{}] * len(models), strict=True):
        for name, p in model.named_parameters():
            gradient = gradients.get(name)
            # Scales are powers of two as a rule: the product is exact then, and by 1 it always is.
            p.grad = None if gradient is None else gradient.to(p.device) * factor
