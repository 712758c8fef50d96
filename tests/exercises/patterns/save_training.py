"""Answers to `save_training`, written without a look at its table of mistakes."""

import os
import tempfile

import torch

from amp_course.checking import edited


def synced(path, *training):
    keys = ("model", "optimizer", "scaler", "scheduler")
    state = {key: part.state_dict() for key, part in zip(keys, training, strict=False)}
    state |= {"rng": torch.random.get_rng_state(), "step": training[-1]}
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(file.name, path)


def folder_in_its_folder(path, *training):
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        synced(path.parent / folder / "new", *training)
        os.replace(os.path.join(folder, "new"), path)


SAVE = "torch.save(state, file)"
OPEN, RENAME = (
    "with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:",
    "os.rename(file.name, path)",
)
FINALLY = f"try:\n    {SAVE}\nfinally:\n    {RENAME}"
RIGHT = {
    "a folder in its folder": folder_in_its_folder,
    "synced": synced,
    "more keys": edited(
        synced,
        {SAVE: "torch.save(state | {'version': 1, 'step': torch.tensor(state['step'])}, file)"},
    ),
}
WRONG = {
    "opens the path": (
        edited(synced, {OPEN: "with path.open('wb') as file:", RENAME: ""}),
        "in place",
    ),
    "reads, then writes": (
        edited(synced, {RENAME: "path.write_bytes((path.parent / file.name).read_bytes())"}),
        "copies over",
    ),
    "renames in finally": (edited(synced, {SAVE: FINALLY, RENAME: ""}), "half a file into place"),
}
