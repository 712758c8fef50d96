"""Run a program that can see only the course, Python and its own scratch folder: no network, no
class.

bubblewrap (the command `bwrap`) does this on Linux, where ordinary users may make namespaces.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from amp_course.kit.paths import course_root

HOME = "/home/student"  # where the program runs, and can write
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
_SETTINGS = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "passwd",
    "group",
    "hosts",
    "ssl/certs",
)
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")  # Ubuntu 23.10 and later
_COURSE = ("amp_course", "notebooks", "exercises", "solutions", "pyproject.toml")


@functools.cache
def missing() -> str | None:
    """Return why bubblewrap cannot be used here, or None if it can."""
    if sys.platform != "linux":
        return "bubblewrap runs on Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian and Ubuntu: `sudo apt install bubblewrap`)"
    try:
        tried = subprocess.run(
            [*_namespaces(), *_folders(1 << 20), "--", sys.executable, "-c", "import amp_course"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run here ({error})"
    if tried.returncode == 0:
        return None
    reason = tried.stderr.strip().split("\n")[-1]
    if _APPARMOR.exists() and _APPARMOR.read_text().strip() == "1":
        return f"AppArmor forbids bubblewrap here ({reason}); docs/teaching.md says how to allow it"
    return f"bubblewrap does not run here ({reason})"


def command(
    program: Sequence[str],
    *,
    shared: Path,
    readable: Path,
    hidden: Sequence[Path],
    environment: Mapping[str, str],
    disk_bytes: int,
) -> list[str]:
    """Return the command that runs a program under bubblewrap.

    shared:     a folder that both sides can write to, for messages
    readable:   a folder that it may read
    hidden:     folders that it must not see, even inside one that it may read
    disk_bytes: the size of its home, of /tmp and of /dev/shm, each
    """
    made = [*_namespaces(), *_folders(disk_bytes)]
    if _any_visible(hidden):
        made += [part for folder in hidden for part in ("--tmpfs", str(folder))]
    made += ["--ro-bind", str(readable), str(readable), "--bind", str(shared), str(shared)]
    made += ["--remount-ro", "/", "--remount-ro", "/dev", "--clearenv"]
    made += [part for name, value in environment.items() for part in ("--setenv", name, value)]
    return [*made, "--chdir", HOME, "--", *program]


def _namespaces() -> list[str]:
    return ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--hostname", "grading"]


def _folders(disk_bytes: int) -> list[str]:
    size, made = str(disk_bytes), ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", HOME, "/dev/shm"):
        made += ["--size", size, "--tmpfs", folder]
    for name in _SYSTEM:
        if os.path.islink(name):
            made += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            made += ["--ro-bind", name, name]
    course = [str(course_root() / name) for name in _COURSE]
    for place in dict.fromkeys([*(f"/etc/{name}" for name in _SETTINGS), *_python(), *course]):
        made += ["--ro-bind-try", place, place]
    return made


def _python() -> list[str]:
    """Return the folders of this Python, of its packages and of the Python that it is based on."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    paths = [sys.prefix, sys.base_prefix, *packages]
    return [path for path in paths if not path.startswith("/usr")]


def _any_visible(hidden: Sequence[Path]) -> bool:
    visible = [*_SYSTEM, *_python(), *(str(course_root() / name) for name in _COURSE)]
    return any(str(folder).startswith(f"{place}/") for folder in hidden for place in visible)
