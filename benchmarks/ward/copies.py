"""The ward's cases, and copies of their repositories to run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.ward import data

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
STEPS = 40
Case = dict[str, Any]


def cases() -> dict[str, Case]:
    """Return name → entry of the lists in `cases`; as_written.toml explains the fields."""
    lists = [
        tomllib.loads(path.read_text("utf-8")) for path in sorted((HERE / "cases").glob("*.toml"))
    ]
    return {name: case for entries in lists for name, case in entries.items()}


def clone_of(case: Case, folder: Path) -> Path | None:
    """Return the git directory of a case's repository, if it is there and has the commit;
    ours need none.
    """
    if "own" in case:
        return HERE
    here = folder / case["repository"].replace("/", "+")
    for place in (here, here / ".git", here / "repo"):
        found = subprocess.run(
            ["git", f"--git-dir={place}", "cat-file", "-e", case["commit"]], capture_output=True
        )
        if found.returncode == 0:
            return place
    return None


def prepare(case: Case, clone: Path, folder: Path) -> Path:
    """Copy a repository as it was at the commit, make the case's edits and its data; return the
    script's folder.

    Raises ValueError if the text that an edit replaces is not there just once.
    """
    if "own" in case:
        shutil.copy(HERE / case["own"], folder)
        return folder
    git = ["git", f"--git-dir={clone}"]
    listing = [*git, "ls-tree", "-r", "-z", "--name-only", case["commit"]]
    if "in" not in case and "/" in case["script"]:  # one of many programs
        listing.append(case["script"].partition("/")[0])
    names = subprocess.run(listing, capture_output=True, text=True, check=True)
    for name in filter(None, names.stdout.split("\0")):
        shown = subprocess.run([*git, "show", f"{case['commit']}:{name}"], capture_output=True)
        if shown.returncode == 0:  # a clone may leave large files out
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(shown.stdout)
    for *file, old, new in case.get("edits", ()):
        path = folder / (file[0] if file else case["script"])
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(
                f"{path.name} has {text.count(old)} times what one edit replaces: {old!r}"
            )
        path.write_text(text.replace(old, new), "utf-8")
    for maker, place in case.get("data", {}).items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        getattr(data, maker)(folder / place)
    return folder / case.get("in", os.path.dirname(case["script"]))


def path_of(case: Case) -> str:
    """Return the script's path from the folder in which it is started."""
    if "own" in case:
        return os.path.basename(case["own"])
    return os.path.relpath(case["script"], case.get("in", os.path.dirname(case["script"])) or ".")
