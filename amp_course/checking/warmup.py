"""Load the modules of torch's compiler, which the first step of any optimizer would load (2 s)
in the middle of a check.
"""

from __future__ import annotations

import importlib
import threading

_starting = threading.Lock()
_started, _done = threading.Event(), threading.Event()


def load_lazy_modules() -> None:
    """Return when everything is loaded; at once from the second call on.

    A thread of its own does it, so that Ctrl-C ends the waiting, not an import half way, after
    which torch could not be loaded again. The next call waits for the rest.
    """
    with _starting:
        if not _started.is_set():
            threading.Thread(target=_load, daemon=True, name="amp_course loads torch").start()
            _started.set()
    _done.wait()  # not `Thread.join`: in Python 3.11, once interrupted, it believes it has ended


def _load() -> None:
    try:
        importlib.import_module("torch._dynamo")
    except Exception:  # the answer that needs it will show what is broken
        pass
    finally:
        _done.set()
