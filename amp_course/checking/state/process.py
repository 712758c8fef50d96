"""What Python keeps for a whole process: put back, and remarked on. What cannot be put back is named."""

from __future__ import annotations

import gc
import multiprocessing
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from amp_course.checking.state.item import Item, changed_keys, listed, restored

_ALARM = getattr(signal, "SIGALRM", None)
_LIBRARIES = (
    "CUDA_MODULE_LOADING",
    "TORCHINDUCTOR_",
    "TRITON_",
    "MPLCONFIGDIR",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
)  # variables that libraries set themselves
_SETTLING = 0.05  # seconds that threads have for ending before they count as left running


# --- Python's own hooks -----------------------------------------------------------------------------------------------
_SYS_HOOKS = ("displayhook", "excepthook", "unraisablehook", "breakpointhook")


def _set_tracing(was: tuple[Any, ...]) -> None:
    sys.setprofile(was[0])
    sys.settrace(was[1])
    threading.setprofile(was[2])
    threading.settrace(was[3])


def _set_sys_hooks(was: tuple[Any, ...]) -> None:
    for name, hook in zip(_SYS_HOOKS, was[:-1], strict=True):
        setattr(sys, name, hook)
    threading.excepthook = was[-1]


def _signals() -> dict[signal.Signals | int, Any]:
    # Not SIGALRM: that is the time limit's.
    return {number: signal.getsignal(number) for number in signal.valid_signals() if number != _ALARM}


def _set_signals(was: dict[signal.Signals | int, Any]) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread can
        for number in changed_keys(was, _signals()):
            signal.signal(number, was[number] or signal.SIG_DFL)


def _set_collector(was: tuple[Any, ...]) -> None:
    enabled, threshold, debug, gc.callbacks[:] = was
    gc.set_threshold(*threshold)
    gc.set_debug(debug)
    (gc.enable if enabled else gc.disable)()


def _lost_modules(was: dict[str, Any]) -> list[str]:
    now = sys.modules
    same_row = all(map(operator.is_, was, now)) and all(map(operator.is_, was.values(), now.values()))
    if same_row and len(now) >= len(was):  # what is imported meanwhile comes last
        return []
    return [name for name, module in was.items() if sys.modules.get(name) is not module]


def _set_modules(was: dict[str, Any]) -> None:
    for name in _lost_modules(was):
        sys.modules[name] = was[name]


def _set_import_paths(was: tuple[list[Any], ...]) -> None:
    sys.path[:], sys.meta_path[:], sys.path_hooks[:] = was


# --- streams, folder, environment -------------------------------------------------------------------------------------
def _set_streams(was: tuple[Any, ...]) -> None:
    sys.stdout, sys.stderr, sys.stdin = was


def _closed() -> tuple[str, ...]:
    streams = ("stdout", "stderr")
    return tuple(name for name in streams if getattr(getattr(sys, name), "closed", False) is True)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _set_folder(was: str | None) -> None:
    if was is not None:
        os.chdir(was)


def _changed_variables(was: dict[str, str]) -> list[str]:
    return [name for name in changed_keys(was, dict(os.environ)) if not name.startswith(_LIBRARIES)]


def _set_environment(was: dict[str, str]) -> None:
    changed = _changed_variables(was)
    for name in changed:
        if name in was:
            os.environ[name] = was[name]
        else:
            del os.environ[name]
    if "TZ" in changed and hasattr(time, "tzset"):  # Windows has none
        time.tzset()


# --- threads and processes --------------------------------------------------------------------------------------------
def _threads() -> frozenset[threading.Thread]:
    return frozenset(thread for thread in threading.enumerate() if not _is_nobodys(thread))


def _is_nobodys(thread: threading.Thread) -> bool:
    # Threads that Python did not start (autograd's) come and go, tqdm's monitor is everybody's, and some are the check's own.
    library = type(thread).__module__.startswith("tqdm.") or thread.name.startswith("amp_course ")
    return library or isinstance(thread, threading._DummyThread)


def _still_running(workers: Iterable[Any]) -> list[str]:
    workers = list(workers)
    for worker in workers:
        worker.join(_SETTLING)
    return [worker.name for worker in workers if worker.is_alive()]


# Those that would run in the midst of what puts the others back come first.
TRACING = Item(
    lambda: (sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace()),
    _set_tracing,
    lambda was, now: (
        "your code leaves a function in `sys.settrace` or `sys.setprofile`, which would run at every call of every later cell. "
        "End with `sys.settrace(None)` or `sys.setprofile(None)`"
    ),
)

PROCESS = (
    Item(
        lambda: (sys.stdout, sys.stderr, sys.stdin),
        _set_streams,
        lambda was, now: (
            "your code left `sys.stdout`, `sys.stderr` or `sys.stdin` replaced; that is put back. `with "
            "contextlib.redirect_stdout(...):` ends on its own."
        ),
        fault=False,
    ),
    Item(
        _closed,
        lambda was: None,
        lambda was, now: (
            f"your code closed {listed([f'sys.{name}' for name in now])}: restart the kernel to see output again."
        ),
        fault=False,
    ),
    Item(
        lambda: (*(getattr(sys, name) for name in _SYS_HOOKS), threading.excepthook),
        _set_sys_hooks,
        restored("how Python reports errors or shows results (`sys.excepthook` or a hook like it)"),
        fault=False,
        libraries="`sys.excepthook` or a hook like it",
    ),
    Item(
        _signals,
        _set_signals,
        restored("what a signal such as Ctrl-C does"),
        fault=False,
        libraries="what a signal such as Ctrl-C does",
    ),
    Item(
        sys.getrecursionlimit,
        sys.setrecursionlimit,
        lambda was, now: f"your code set the recursion limit to {now}; it is {was} again.",
        fault=False,
    ),
    Item(
        lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug(), tuple(gc.callbacks)),
        _set_collector,
        restored("Python's garbage collector (`gc`)"),
        fault=False,
    ),
    Item(
        sys.modules.copy,
        _set_modules,
        lambda was, lost: f"your code removed or replaced {listed(lost)} in `sys.modules`; that is put back.",
        fault=False,
        find=_lost_modules,
    ),
    Item(
        lambda: (list(sys.path), list(sys.meta_path), list(sys.path_hooks)),
        _set_import_paths,
        restored("where Python looks for modules (`sys.path`)"),
        fault=False,
        libraries="`sys.path`",
    ),
    Item(
        _folder,
        _set_folder,
        restored("the working directory"),
        fault=False,
    ),
    Item(
        lambda: dict(os.environ),
        _set_environment,
        lambda was, found: f"your code changed the environment variable {listed(found)}; that is put back.",
        fault=False,
        find=_changed_variables,
    ),
    Item(
        _threads,
        lambda was: None,
        lambda was, left: (
            f"your code left the thread {listed(left)} running, and a check cannot stop it: it may change things while later "
            "cells run. Wait for it with `join()`; to get rid of it now, restart the kernel."
        ),
        fault=False,
        find=lambda was: _still_running(_threads() - was),
    ),
    Item(
        lambda: frozenset(multiprocessing.active_children()),
        lambda was: None,
        lambda was, left: (
            f"your code left the process {listed(left)} running, and the check does not stop it. Call `terminate()` on it, or "
            "wait for it with `join()`."
        ),
        fault=False,
        find=lambda was: _still_running(frozenset(multiprocessing.active_children()) - was),
    ),
)
