"""One piece of the state that all cells of a notebook share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

UNCHANGED = object()


@dataclass(frozen=True)
class Item:
    """How to read one piece of state and write it, and what to say of an answer that leaves it changed.

    get:       returns the state as plain values, or as objects that are compared by identity; must be cheap
    put:       restores what `get` returned; does nothing where nothing can be done, and then `tell` says so
    tell:      gets the state as it was and as it is now (or what `find` found)
    fault:     whether the check fails: true for what changes the results of later cells, else it is only remarked on
    libraries: what it is, if a library may change it when it is first imported: then nothing is put back
    find:      for state that is not simply equal or not: gets what it was, returns what is wrong now, or something empty
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    tell: Callable[[Any, Any], str]
    fault: bool = True
    libraries: str = ""
    find: Callable[[Any], Any] | None = None

    def change(self, was: Any) -> Any:
        """Return the state if it is not what it was, else `UNCHANGED`."""
        if self.find is not None:
            return self.find(was) or UNCHANGED
        now = self.get()
        return UNCHANGED if now == was else now


def listed(names: Iterable[str], most: int = 3) -> str:
    """List a few names: ["b", "a"] → "`a` and `b`"; of more than `most`, the first and the number of the others."""
    quoted = [f"`{name}`" for name in sorted(names)]
    if len(quoted) > most:
        return f"{', '.join(quoted[:most])} and {len(quoted) - most} more"
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def changed_keys(was: dict[Any, Any], now: dict[Any, Any]) -> list[Any]:
    """Return the keys whose values differ, or that only one of two tables has."""
    missing = object()
    return [key for key in {**was, **now} if was.get(key, missing) != now.get(key, missing)]


def restored(what: str) -> Callable[[Any, Any], str]:
    """Return a `tell` for what needs no more words: "the locale" → "your code changed the locale; that is put back."."""
    return lambda was, now: f"your code changed {what}; that is put back."
