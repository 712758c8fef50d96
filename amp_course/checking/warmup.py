"""Load what torch would load in the middle of a check:
its compiler's modules, at the first step of any optimizer (2 s).
"""

from __future__ import annotations

import importlib
import threading

_starting = threading.Lock()
_started, _done = threading.Event(), threading.Event()


def load_lazy_modules() -> None:
    """Return when everything is loaded; at once from the second call on.

    The work is done in a thread of its own, so that Ctrl-C ends the waiting and not an import half
    way: torch cannot be loaded again after that. The next call waits for the rest.
    """
    with _starting:
        if not _started.is_set():
            threading.Thread(target=_load, daemon=True, name="amp_course loads torch").start()
            _started.set()
    # not `Thread.join`: in Python 3.11, once interrupted, that takes the thread for dead
    _done.wait()


def _load() -> None:
    try:
        importlib.import_module("torch._dynamo")
    except Exception:  # what is broken here will show in the answer that needs it
        pass
    finally:
        _done.set()
