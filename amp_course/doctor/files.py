"""Keep a script's hands off the reader's files: what it overwrites, removes or creates while it is examined is put back.

Python reports each file that is opened for writing, renamed or removed; `torch.save` is watched too. Before the first change of
a file, it is copied. What a program writes by other means, or outside of the folders that are watched, is not noticed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = {"__pycache__", ".cache", ".git"}


class Journal:
    """Copies files before they change. folder: where copies and notes go; within: the folders whose files are kept."""

    def __init__(self, folder: Path, within: Iterable[Path]) -> None:
        self.folder = folder / "files"
        self.within = [os.path.realpath(one) for one in within]
        self._known: set[str] = set()
        self._busy = False

    def install(self) -> None:
        """Begin; this lasts until the process ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save = torch.save

        @functools.wraps(save)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                self.keep(f)
            return save(obj, f, *args, **kwargs)

        torch.save = saved
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy:
            return
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
                isinstance(flags, int) and flags & _WRITING
            )
            if writes:
                self.keep(path)
        elif event in ("os.remove", "os.truncate", "os.mkdir", "os.rmdir"):
            self.keep(args[0])
        elif event in ("os.rename", "os.link", "os.symlink"):
            self.keep(args[0])
            self.keep(args[1])
        elif event == "sqlite3.connect":
            self.keep(args[0])
        elif event == "shutil.rmtree":  # which removes what is inside by names that are relative to a folder
            for folder, _, files in os.walk(os.fsdecode(args[0])):
                self.keep(folder)
                for name in files:
                    self.keep(os.path.join(folder, name))

    def keep(self, path: Any) -> None:
        """Copy a file before it changes, or note that it was not there."""
        if self._busy or not isinstance(path, (str, bytes, os.PathLike)):
            return
        self._busy = True
        try:
            name = os.path.realpath(os.fsdecode(path))
            inside = any(name.startswith(one + os.sep) for one in self.within)
            if not inside or name in self._known or _CACHES & set(name.split(os.sep)):
                return
            self._known.add(name)
            note = {"path": name, "kind": "none", "copy": uuid.uuid4().hex}
            if os.path.isdir(name):
                note["kind"] = "folder"
            elif os.path.exists(name):
                note["kind"] = "file"
                shutil.copy2(name, self.folder / note["copy"])
            else:  # folders that are made for it go again, too
                parent = os.path.dirname(name)
                if not os.path.isdir(parent):
                    self._busy = False
                    self.keep(parent)
                    self._busy = True
            with open(self.folder / f"{os.getpid()}.notes", "a", encoding="utf-8") as notes:
                notes.write(json.dumps(note) + "\n")
        except (OSError, ValueError):
            pass
        finally:
            self._busy = False


def put_back(folder: Path) -> tuple[list[str], list[str]]:
    """Undo what a script did to files; return those that it had changed, and those that it had made."""
    notes: dict[str, dict[str, str]] = {}
    for path in sorted((folder / "files").glob("*.notes"), key=lambda one: one.stat().st_mtime):
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):
                note = json.loads(line)
                notes.setdefault(note["path"], note)
    changed, made = [], []
    for name, note in sorted(notes.items(), reverse=True):  # what is in a folder before the folder
        with contextlib.suppress(OSError):
            if note["kind"] == "file":
                copy = folder / "files" / note["copy"]
                if not os.path.exists(name) or not _same(Path(name), copy):
                    os.makedirs(os.path.dirname(name), exist_ok=True)
                    shutil.copy2(copy, name)
                    changed.append(name)
            elif note["kind"] == "folder":
                if not os.path.isdir(name):
                    os.makedirs(name)
            elif os.path.isdir(name) and not os.path.islink(name):
                os.rmdir(name)
            elif os.path.lexists(name):
                os.remove(name)
                made.append(name)
    return sorted(changed), sorted(made)


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
