"""Save a training in one file and go on from it: AMP or fp32, between two updates or in the middle of an accumulation.

A file is whole or it is the one before: it is written beside its place and moved there in one step. It is read with
`weights_only=True`, which builds tensors and plain values and runs no code. Nothing is changed until all has been checked.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

KIND = "amp_course.patterns checkpoint 1"
_PLAIN = (Tensor, int, float, str, bool, bytes, type(None), torch.Size, torch.dtype)


class CheckpointError(RuntimeError):
    """A file is no checkpoint for this training: the message gives the cause and the cure."""


@dataclass(frozen=True)
class Position:
    """Where a run goes on: `step` updates are done, `micro_step` micro-batches of the next; `data` is what you saved."""

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

    Lists are taken where there are several. Gradients go in as well where `micro_step` is above 0, scaled as they are;
    `data` is for your own plain values: the epoch, the order of the examples.

    Raises ValueError between `unscale_` and `update`, a state that no file holds, and TypeError for what would need code to load.
    Example: save_checkpoint("run.pt", model=model, optimizer=optimizer, scaler=scaler, step=100) → Path("run.pt")
    """
    models, optimizers = several(model), several(optimizer)
    amp = scaler is not None and scaler.is_enabled()
    if scaler is not None and amp and _in_between(scaler):
        raise ValueError(
            "this is a moment between `scaler.unscale_` and `scaler.update`, which no state_dict holds: save before "
            "`unscale_`, or after `update`."
        )
    content: dict[str, Any] = {
        "kind": KIND,
        "step": step,
        "micro_step": micro_step,
        "model": [one.state_dict() for one in models],
        "optimizer": [one.state_dict() for one in optimizers],
        "scaler": scaler.state_dict() if scaler is not None and amp else None,
        "scheduler": [one.state_dict() for one in several(scheduler)],
        "gradients": [_gradients(one) for one in models] if micro_step else None,
        "random": _random_states(),
        "data": data,
    }
    _check_plain(content, "")
    return write_atomically(content, Path(path))


def write_atomically(content: Any, path: Path) -> Path:
    """Save beside `path`, then move there in one step: a kill at any moment leaves the old file or the new one, whole.

    What a kill leaves beside it is called like the file with ".part" at the end, and the next save writes over it.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may keep the new name and lose the bytes
    os.replace(part, path)
    return path


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

    A run that saved with a scaler may go on without (AMP → fp32), and one without may go on with a new one (fp32 → AMP, with
    `fresh_scaler=True`); gradients of the middle of an accumulation are rescaled then.

    Raises CheckpointError, before anything is changed, for a file that is missing, truncated, no checkpoint, with code in it,
    from another model, or without a scaler's state where one is wanted.
    """
    models, optimizers, schedulers = several(model), several(optimizer), several(scheduler)
    content = read_checked(Path(path))
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CheckpointError(
            f"{path} holds {_described(content)}, not a checkpoint of `save_checkpoint`: if these are weights alone, load "
            "them with `model.load_state_dict(torch.load(path, weights_only=True))`."
        )
    scaler = scaler if scaler is not None and scaler.is_enabled() else None
    _check_fits(content, models, optimizers, schedulers, scaler, fresh_scaler)
    for one, state in zip(models, content["model"], strict=True):
        one.load_state_dict(state)
    for one, state in zip(optimizers, content["optimizer"], strict=False):
        one.load_state_dict(state)
    for one, state in zip(schedulers, content["scheduler"], strict=False):
        one.load_state_dict(state)
    if scaler is not None and content["scaler"] is not None:
        scaler.load_state_dict(content["scaler"])
    _put_gradients(models, content, 1.0 if scaler is None else scaler.get_scale())
    if random_state:
        _set_random_states(content["random"])
    return Position(content["step"], content["micro_step"], content["data"])


def read_checked(path: Path) -> Any:
    """Read a file of `torch.save` with `weights_only=True`; CheckpointError says what is wrong with it."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: look at the folder that the run wrote to.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        if name or "Unsupported" in str(error):
            raise CheckpointError(
                f"{path} asks to call {name[1] if name else 'code'}, and was refused; nothing of it ran. A checkpoint holds "
                "tensors and plain values: load only files you trust with less, and save states, not whole objects."
            ) from None
        raise CheckpointError(_not_a_checkpoint(path)) from None
    except Exception:
        raise CheckpointError(_not_a_checkpoint(path)) from None


def _not_a_checkpoint(path: Path) -> str:
    with open(path, "rb") as file:
        begins_as_zip = file.read(2) == b"PK"
    if begins_as_zip and not zipfile.is_zipfile(path):
        return f"{path} is truncated: its end is missing. Go back to the one before; `save_checkpoint` leaves none like it."
    if path.stat().st_size == 0:
        return f"{path} is empty: the run was stopped before it wrote. Go back to the checkpoint before."
    return f"{path} is not a file of `torch.save`, or it is damaged: check that this is the right file."


def _described(content: Any) -> str:
    if isinstance(content, dict):
        return f"a dict with the keys {', '.join(map(repr, list(content)[:4]))}"
    return f"a {type(content).__name__}"


def several(value: Any) -> tuple[Any, ...]:
    """Return a tuple of one or of several objects: None → ()."""
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _in_between(scaler: torch.amp.GradScaler) -> bool:
    return any(state["stage"] is not OptState.READY for state in scaler._per_optimizer_states.values())


def _check_plain(value: Any, where: str) -> None:
    """Raise TypeError, with the place, for a value that `weights_only=True` would not load."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_plain(part, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for number, part in enumerate(value):
            _check_plain(part, f"{where}[{number}]")
    elif not isinstance(value, _PLAIN):
        raise TypeError(
            f"{where.lstrip('[')} is a {type(value).__name__}, which cannot be loaded without running code: save "
            "tensors and plain values (numbers, texts, lists, dicts)."
        )


def _check_fits(
    content: dict[str, Any], models: Any, optimizers: Any, schedulers: Any, scaler: Any, fresh_scaler: bool
) -> None:
    for name, objects in (("model", models), ("optimizer", optimizers), ("scheduler", schedulers)):
        if len(content[name]) != len(objects) and (name == "model" or objects):
            raise CheckpointError(
                f"the checkpoint holds {len(content[name])} of the kind {name} and {len(objects)} were passed: pass as many, in "
                "the same order."
            )
    for one, state in zip(models, content["model"], strict=True):
        _check_model(one.state_dict(), state)
    for one, state in zip(optimizers, content["optimizer"], strict=False):
        held = [len(group["params"]) for group in one.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if held != saved:
            raise CheckpointError(
                f"the optimizer's groups hold {held} parameters and the checkpoint's {saved}: make the groups as the saved run."
            )
    if scaler is not None and content["scaler"] is None and not fresh_scaler:
        raise CheckpointError(
            "the checkpoint has no scaler's state: it was saved by an fp32 run, or by a loop that left it out. Pass "
            "`fresh_scaler=True` to begin with the scale that your scaler has now, and expect some skipped steps."
        )


def _check_model(now: dict[str, Any], saved: dict[str, Any]) -> None:
    missing, left = [k for k in now if k not in saved], [k for k in saved if k not in now]
    shapes = [
        f"{k} is {tuple(saved[k].shape)} there and {tuple(now[k].shape)} here"
        for k in now
        if k in saved and isinstance(now[k], Tensor) and now[k].shape != saved[k].shape
    ]
    if missing or left or shapes:
        parts = [f"it lacks {_first(missing)}"] if missing else []
        parts += [f"it has {_first(left)} besides"] if left else []
        parts += [_first(shapes)] if shapes else []
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(parts)}. Build the model with the sizes of the saved run."
        )


def _first(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def _put_gradients(models: Sequence[nn.Module], content: dict[str, Any], scale: float) -> None:
    """Give parameters the gradients that were saved, from the loss scale they were saved with to that of now."""
    saved = 1.0 if content["scaler"] is None else content["scaler"]["scale"]
    for model, gradients in zip(models, content["gradients"] or [{}] * len(models), strict=True):
        for name, p in model.named_parameters():
            gradient = gradients.get(name)
            # Scales are powers of two as a rule: the product is exact then, and by 1 it always is.
            p.grad = None if gradient is None else gradient.to(p.device) * (scale / saved)


def _random_states() -> dict[str, Any]:
    """Return the random states as tensors and plain values."""
    numpy: Any = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": (numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]),
        "python": random.getstate(),
    }


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    name, key, *rest = states["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
