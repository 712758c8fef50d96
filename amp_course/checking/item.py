"""Describe one piece of the state that all cells of a notebook share: `Item`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

UNCHANGED = object()


@dataclass(frozen=True)
class Item:
    """How to read one piece of state and write it, and what to say of an answer that leaves it
    changed.

    get:   returns the state as plain values, or as objects that are compared by identity
    put:   restores what `get` returned; does nothing where `tell` says that nothing can be done
    tell:  gets the state as it was and as it is now (or what `find` found)
    fault: whether the check fails, as for what changes the results of later cells; else it is only
           remarked on
    find:  for state that is not simply equal or not: gets what it was, returns what is wrong now,
           or something empty
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    tell: Callable[[Any, Any], str]
    fault: bool = True
    find: Callable[[Any], Any] | None = None

    def change(self, was: Any) -> Any:
        """Return the state if it is not what it was, else `UNCHANGED`."""
        if self.find is not None:
            return self.find(was) or UNCHANGED
        now = self.get()
        return UNCHANGED if now == was else now


def listed(names: Iterable[str]) -> str:
    """Write names as code. Example: ["b", "a"] → "`a` and `b`" """
    return " and ".join(f"`{name}`" for name in sorted(names))


def restored(what: str) -> Callable[[Any, Any], str]:
    """Return a `tell` for what is put back."""
    return lambda was, now: f"your code changed {what}; that is put back."


def changed(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ."""
    return [name for name in {**was, **now} if was.get(name) != now.get(name)]
