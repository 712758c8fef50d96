"""What a process shares between the cells of a notebook: streams, folder, environment, workers.

A change is put back and remarked on. Threads and processes that an answer leaves running are named.
Nothing else is checked: neither what an answer rebinds (`F.softmax = …`) nor the settings of other
libraries nor files. A check is no prison, and restarting the kernel helps.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import Any

from amp_course.checking.item import Item, changed, listed

_SETTLING = 0.05  # seconds after which a thread that has not ended counts as left running


def _set_streams(was: tuple[Any, ...]) -> None:
    sys.stdout, sys.stderr, sys.stdin = was


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _set_folder(was: str | None) -> None:
    if was is not None:
        os.chdir(was)


# Variables that libraries set themselves.
_LIBRARIES = ("CUDA_MODULE_LOADING", "TORCHINDUCTOR_", "TRITON_", "MPLCONFIGDIR", "KMP_")


def _changed_variables(was: dict[str, str]) -> list[str]:
    return [name for name in changed(was, dict(os.environ)) if not name.startswith(_LIBRARIES)]


def _set_environment(was: dict[str, str]) -> None:
    for name in _changed_variables(was):
        if name in was:
            os.environ[name] = was[name]
        else:
            del os.environ[name]


def _threads() -> frozenset[threading.Thread]:
    """Return the threads that Python started, without ours and tqdm's monitor, which all share."""
    return frozenset(
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
        and not type(thread).__module__.startswith("tqdm.")
        and not thread.name.startswith("amp_course ")
    )


def _children() -> frozenset[Any]:
    return frozenset(multiprocessing.active_children())


def _still_running(workers: frozenset[Any]) -> list[str]:
    for worker in workers:
        worker.join(_SETTLING)
    return [worker.name for worker in workers if worker.is_alive()]


PROCESS = (
    Item(
        lambda: (sys.stdout, sys.stderr, sys.stdin),
        _set_streams,
        "your code left `sys.stdout`, `sys.stderr` or `sys.stdin` replaced; that is put back. "
        "`with contextlib.redirect_stdout(...):` ends on its own.",
        fault=False,
    ),
    Item(
        _folder,
        _set_folder,
        "your code changed the working directory; that is put back.",
        fault=False,
    ),
    Item(
        lambda: dict(os.environ),
        _set_environment,
        lambda was, now: (
            f"your code changed the environment variable {listed(now)}; that is put back."
        ),
        fault=False,
        find=_changed_variables,
    ),
    Item(
        _threads,
        lambda was: None,
        lambda was, now: (
            f"your code left the thread {listed(now)} running, and a check cannot stop it: it may "
            "change things while later cells run. Wait for it with `join()`; to get rid of it now, "
            "restart the kernel."
        ),
        fault=False,
        find=lambda was: _still_running(_threads() - was),
    ),
    Item(
        _children,
        lambda was: None,
        lambda was, now: (
            f"your code left the process {listed(now)} running, and the check does not stop it. "
            "Call `terminate()` on it, or wait for it with `join()`."
        ),
        fault=False,
        find=lambda was: _still_running(_children() - was),
    ),
)
