"""Copy a file before a script overwrites or removes it; `files.put_back` puts it back.

Python's audit hooks report each file that is opened for writing, renamed or removed; `torch.save`,
which they do not report, is tapped. What a program writes by other means, or outside of the watched
folders, is not noticed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from amp_course.watching import taps

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events → how many of their arguments are paths of what changes
_ONE = ("os.remove", "os.truncate", "os.mkdir", "os.rmdir", "sqlite3.connect")
_CHANGING = dict.fromkeys(_ONE, 1) | dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2)
_CACHES = {"__pycache__", ".cache", ".git"}


class _Busy(threading.local):
    """Whether this thread is copying a file; another one may write at the same moment."""

    now = False


class Journal:
    """Copies files before they change.

    folder: where the copies and notes go
    within: the folders to watch
    """

    def __init__(self, folder: Path, within: Iterable[Path]) -> None:
        self.own, self.folder = os.path.realpath(folder) + os.sep, folder / "files"
        self.within = [os.path.realpath(one) for one in within]
        self._known: set[str] = set()
        self._busy = _Busy()

    def install(self) -> None:
        """Begin; this lasts until the process ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # An attribute, so that it is not garbage collected, which would end it
        self._listening = taps.listening(self)
        self._listening.__enter__()
        sys.addaudithook(self._hook)

    def save(
        self, original: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Keep what `torch.save` is about to overwrite."""
        if isinstance(f, (str, os.PathLike)):
            self.keep(f)
        return original(obj, f, *args, **kwargs)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy.now:
            return
        if event == "open":
            path, mode, flags = args
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            if writes or (isinstance(flags, int) and flags & _WRITING):
                self.keep(path)
        elif event in _CHANGING:
            for path in args[: _CHANGING[event]]:
                self.keep(path)
        elif event == "shutil.rmtree":
            # It removes the files inside by names relative to their folder, so list them here.
            for folder, _, files in os.walk(os.fsdecode(args[0])):
                self.keep(folder)
                for name in files:
                    self.keep(os.path.join(folder, name))

    def keep(self, path: Any) -> None:
        """Copy a file before it changes, or note that it was not there."""
        if self._busy.now or not isinstance(path, (str, bytes, os.PathLike)):
            return
        self._busy.now = True
        try:
            name = os.path.realpath(os.fsdecode(path))
            inside = any(name.startswith(one + os.sep) for one in self.within)
            inside = inside and not name.startswith(self.own)  # both may be in /tmp
            if not inside or name in self._known or _CACHES & set(name.split(os.sep)):
                return
            self._known.add(name)
            note = {"path": name, "kind": "none", "copy": uuid.uuid4().hex}
            if os.path.isdir(name):
                note["kind"] = "folder"
            elif os.path.exists(name):
                note["kind"] = "file"
                shutil.copy2(name, self.folder / note["copy"])
            else:  # the folders that are made for it are removed again, too
                parent = os.path.dirname(name)
                if not os.path.isdir(parent):
                    self._busy.now = False
                    self.keep(parent)
                    self._busy.now = True
            with open(self.folder / f"{os.getpid()}.notes", "a", encoding="utf-8") as notes:
                notes.write(json.dumps(note) + "\n")
        except (OSError, ValueError):
            pass
        finally:
            self._busy.now = False
