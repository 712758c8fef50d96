"""What NumPy, matplotlib and parts of Python's library keep for a whole process: put back, and remarked on."""

from __future__ import annotations

import decimal
import locale
import logging
import sys
from typing import Any

import numpy as np

from amp_course.checking.state.item import Item, changed_keys, listed, restored

_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal() -> tuple[Any, ...]:
    context = decimal.getcontext()
    return (*(getattr(context, name) for name in _DECIMAL), dict(context.traps))


def _set_decimal(was: tuple[Any, ...]) -> None:
    context = decimal.getcontext()
    for name, value in zip(_DECIMAL, was[:-1], strict=True):
        setattr(context, name, value)
    context.traps.update(was[-1])


def _set_numpy(was: tuple[Any, ...]) -> None:
    np.seterr(**was[0])
    np.seterrcall(was[1])
    np.set_printoptions(**was[2])


def _plot_settings() -> dict[str, Any]:
    """Return matplotlib's settings, if it is loaded. Reading the backend would choose one, so that is left out."""
    matplotlib = sys.modules.get("matplotlib")
    settings = dict.copy(matplotlib.rcParams) if matplotlib and hasattr(matplotlib, "rcParams") else {}
    return {name: value for name, value in settings.items() if not name.startswith("backend")}


def _set_plot_settings(was: dict[str, Any]) -> None:
    dict.update(sys.modules["matplotlib"].rcParams, was)


def _logging() -> tuple[Any, ...]:
    root = logging.root
    return root.level, root.disabled, root.manager.disable, tuple(root.handlers), tuple(root.filters)


def _set_logging(was: tuple[Any, ...]) -> None:
    root = logging.root
    level, root.disabled, root.manager.disable, handlers, filters = was
    root.setLevel(level)
    root.handlers[:], root.filters[:] = handlers, filters


LIBRARIES = (
    Item(
        lambda: (np.geterr(), np.geterrcall(), np.get_printoptions()),
        _set_numpy,
        restored("NumPy's settings for errors or printing (`np.seterr`, `np.set_printoptions`)"),
        fault=False,
    ),
    Item(
        _plot_settings,
        _set_plot_settings,
        lambda was, found: (
            f"your code changed matplotlib's settings ({listed(found)}); they are put back. `with plt.rc_context():` ends on its "
            "own."
        ),
        fault=False,
        find=lambda was: changed_keys(was, _plot_settings()) if was else [],  # else it was loaded meanwhile
    ),
    Item(_decimal, _set_decimal, restored("the context of `decimal`"), fault=False),
    Item(
        lambda: locale.setlocale(locale.LC_ALL),
        lambda was: locale.setlocale(locale.LC_ALL, was),
        restored("the locale"),
        fault=False,
    ),
    Item(_logging, _set_logging, restored("the settings of `logging`"), fault=False, libraries=True),
)
