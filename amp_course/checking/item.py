"""One piece of the state that all cells of a notebook share: `Item`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

UNCHANGED = object()


@dataclass(frozen=True)
class Item:
    """How to read and restore one piece of state, and what to say of an answer that changed it.

    get:     returns the state as plain values, or as objects that are compared by identity
    put:     restores what `get` returned; does nothing where that is impossible
    message: says what changed, with {was} and {now} in braces, or as a function of these two
    fault:   whether a change fails the check, as it affects later cells; if not, it is a remark
    find:    for what == cannot compare: takes the state before, returns what is wrong now, if
             anything; that is then `now`
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    message: str | Callable[[Any, Any], str]
    fault: bool = True
    find: Callable[[Any], Any] | None = None

    def change(self, was: Any) -> Any:
        """Return the state if it has changed, else `UNCHANGED`."""
        if self.find is not None:
            return self.find(was) or UNCHANGED
        now = self.get()
        return UNCHANGED if now == was else now

    def describe(self, was: Any, now: Any) -> str:
        """Say what changed."""
        if isinstance(self.message, str):
            return self.message.format(was=was, now=now)
        return self.message(was, now)


def listed(names: Iterable[str]) -> str:
    """Write names as code. Example: ["b", "a"] → "`a` and `b`" """
    return " and ".join(f"`{name}`" for name in sorted(names))


def changed(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ."""
    return [name for name in {**was, **now} if was.get(name) != now.get(name)]
