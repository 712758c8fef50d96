"""The doctor: runs a training step or a whole script, and says what is wrong with it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_course.doctor.own_step import doctor
    from amp_course.doctor.script import examine_script

__all__ = ["doctor", "examine_script"]
_MODULES = {"doctor": "own_step", "examine_script": "script"}


def __getattr__(name: str) -> Any:
    """Import each on demand: the processes of a script need none, and would wait half a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
