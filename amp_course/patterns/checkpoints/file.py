"""Write a checkpoint's file completely or not at all, and read it without running code."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from amp_course.kit.errors import describe_os_error
from amp_course.kit.files import replacing


class CheckpointError(RuntimeError):
    """A file is no checkpoint for this training, or cannot be written; says why, and what to do."""


def write_atomically(content: Any, path: str | os.PathLike[str]) -> Path:
    """Save next to `path`, then rename: a kill at any moment leaves the old file or the new one.

    Raises CheckpointError with the cause if the file cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder: pass the name of a file in it, such as {path / 'run.pt'}."
        )
    if not path.parent.is_dir():
        raise CheckpointError(
            f"there is no folder {path.parent}: make it first, `path.parent.mkdir(parents=True)`."
        )
    try:
        with replacing(path) as part, open(part, "wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # torch's writer turns some of the system's errors into RuntimeError
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        if not isinstance(cause, OSError):
            raise
        what = f"{path} could not be written, and whatever was there before is unchanged"
        raise CheckpointError(describe_os_error(cause, what)) from error
    return path


def read_checked(path: Path) -> Any:
    """Read a file of `torch.save` with `weights_only=True`; CheckpointError says what is wrong."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: pass the name of the checkpoint's file in it.")
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: look at the folder that the run wrote to.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        if name or "Unsupported" in str(error):
            raise CheckpointError(
                f"{path} asks to call {name[1] if name else 'code'}, and was refused; nothing of "
                "it ran. A checkpoint holds only tensors and plain values. If you wrote the file "
                "yourself, save states instead of whole objects."
            ) from None
        raise CheckpointError(_not_a_checkpoint(path)) from None
    except OSError as error:
        raise CheckpointError(describe_os_error(error, f"{path} could not be read")) from error
    except MemoryError:
        raise
    except Exception:
        raise CheckpointError(_not_a_checkpoint(path)) from None


def _not_a_checkpoint(path: Path) -> str:
    with open(path, "rb") as file:
        begins_as_zip = file.read(2) == b"PK"
    if begins_as_zip and not zipfile.is_zipfile(path):
        what = (
            "truncated: its end is missing. Go back to the one before; `save_checkpoint` leaves "
            "none like it."
        )
    elif path.stat().st_size == 0:
        what = "empty: the run was stopped before it wrote. Go back to the checkpoint before."
    else:
        what = "not a file of `torch.save`, or it is damaged: check that this is the right file."
    return f"{path} is {what}"
