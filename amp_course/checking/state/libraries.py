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
    """Return matplotlib's settings, if it is loaded; all but the backend, which takes more to put back."""
    matplotlib = sys.modules.get("matplotlib")
    settings = dict.copy(matplotlib.rcParams) if matplotlib and hasattr(matplotlib, "rcParams") else {}
    return {name: value for name, value in settings.items() if name != "backend"}


def _set_plot_settings(was: dict[str, Any]) -> None:
    dict.update(sys.modules["matplotlib"].rcParams, was)


def _backend() -> str | None:
    """Return the name of matplotlib's backend, if one was chosen. Asking in the ordinary way would choose one."""
    settings = getattr(sys.modules.get("matplotlib"), "rcParams", {})
    chosen = dict.get(settings, "backend")
    return chosen if isinstance(chosen, str) else None


def _changed_backend(was: str | None) -> str | None:
    now = _backend()
    return now if was and now and now.lower() != was.lower() else None  # else it was chosen meanwhile


def _figures() -> frozenset[int]:
    """Return the numbers of pyplot's open figures; none for a notebook's own backend, which shows and closes them."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    return frozenset(helpers.Gcf.figs) if helpers and "inline" not in (_backend() or "") else frozenset()


def _logging() -> tuple[Any, ...]:
    root = logging.root
    return root.level, root.disabled, root.manager.disable, tuple(root.handlers), tuple(root.filters)


def _set_logging(was: tuple[Any, ...]) -> None:
    root = logging.root
    level, root.disabled, root.manager.disable, handlers, filters = was
    root.setLevel(level)
    root.handlers[:], root.filters[:] = handlers, filters


def _loggers() -> dict[str, tuple[Any, ...]]:
    loggers = logging.root.manager.loggerDict.copy().items()
    return {name: (one.level, one.disabled, one.propagate) for name, one in loggers if isinstance(one, logging.Logger)}


def _changed_loggers(was: dict[str, tuple[Any, ...]]) -> list[str]:
    return [name for name, state in _loggers().items() if was.get(name, state) != state]


def _set_loggers(was: dict[str, tuple[Any, ...]]) -> None:
    for name in _changed_loggers(was):
        logger = logging.getLogger(name)
        level, logger.disabled, logger.propagate = was[name]
        logger.setLevel(level)


def _sklearn() -> dict[str, Any]:
    get = getattr(sys.modules.get("sklearn"), "get_config", None)
    return get() if get else {}


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
    Item(
        _backend,
        lambda was: sys.modules["matplotlib"].use(was, force=True),
        lambda was, now: (
            f"your code switched matplotlib to the backend `{now}`; it is `{was}` again. `fig.savefig` writes a file with any "
            "backend."
        ),
        fault=False,
        find=_changed_backend,
    ),
    Item(
        _figures,
        lambda was: None,  # somebody may want to see them
        lambda was, new: (
            f"your code left {new} {'figure' if new == 1 else 'figures'} of pyplot open, and a later `plt.plot` would draw in "
            "the last one. Call `plt.close(fig)` on a figure that you no longer need."
        ),
        fault=False,
        find=lambda was: len(_figures() - was),
    ),
    Item(_decimal, _set_decimal, restored("the context of `decimal`"), fault=False),
    Item(
        lambda: locale.setlocale(locale.LC_ALL),
        lambda was: locale.setlocale(locale.LC_ALL, was),
        restored("the locale"),
        fault=False,
    ),
    Item(
        _logging,
        _set_logging,
        restored("the settings of `logging`"),
        fault=False,
        libraries="the settings of `logging`",
    ),
    Item(
        _loggers,
        _set_loggers,
        lambda was, found: (
            f"your code changed what the logger {listed(found)} reports (its level, `disabled` or `propagate`); that is put back."
        ),
        fault=False,
        libraries="the level of a logger",
        find=_changed_loggers,
    ),
    Item(
        _sklearn,
        lambda was: sys.modules["sklearn"].set_config(**was),
        lambda was, now: (
            "your code changed scikit-learn's settings (`sklearn.set_config`); that is put back. "
            "`with sklearn.config_context(...):` ends on its own."
        ),
        fault=False,
        find=lambda was: was and changed_keys(was, _sklearn()),  # if empty, it was loaded meanwhile
    ),
)
