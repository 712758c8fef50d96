"""Put back the files that an examined script changed, from what `Journal` copied and noted."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
from pathlib import Path


def put_back(folder: Path) -> tuple[list[str], list[str]]:
    """Undo what a script did to files; return those that it had changed, and those it had made."""
    notes: dict[str, dict[str, str]] = {}
    for path in sorted((folder / "files").glob("*.notes"), key=lambda one: one.stat().st_mtime):
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):
                note = json.loads(line)
                notes.setdefault(note["path"], note)
    changed, made = [], []
    for name, note in sorted(notes.items(), reverse=True):  # the files before their folder
        with contextlib.suppress(OSError):
            if note["kind"] == "file":
                copy = folder / "files" / note["copy"]
                if not os.path.exists(name) or not filecmp.cmp(name, copy, shallow=False):
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
