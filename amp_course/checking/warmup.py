"""Load what torch would load in the middle of a check: its compiler's modules, at the first step of any optimizer (2 s)."""

from __future__ import annotations

import contextlib
import importlib
import threading

_loader: threading.Thread | None = None
_starting = threading.Lock()


def load_lazy_modules() -> None:
    """Return when everything is loaded; at once from the second call on.

    The work is done in a thread of its own, so that Ctrl-C ends the waiting and not an import half way: torch cannot be
    loaded again after that. Whoever comes next waits for the rest.
    """
    global _loader
    with _starting:
        if _loader is None:
            _loader = threading.Thread(target=_load, daemon=True, name="amp_course loads torch")
            _loader.start()
    _loader.join()


def _load() -> None:
    with contextlib.suppress(Exception):  # what is broken here will show in the answer that needs it
        importlib.import_module("torch._dynamo")
