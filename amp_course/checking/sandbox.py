"""Run an answer and put the process back as it was."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_course.checking.interrupts import deferred
from amp_course.checking.item import UNCHANGED, Item
from amp_course.checking.process_state import PROCESS
from amp_course.checking.torch_state import TORCH
from amp_course.kit.random_state import RandomState, random_state, set_random_state

STATE = (*TORCH, *PROCESS)
_UNKNOWN = object()  # of a state that cannot be read


@dataclass
class Sandbox:
    """What an answer left changed, in sentences: `leaks` are faults, `remarks` are not."""

    leaks: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@contextlib.contextmanager
def sandbox(items: Sequence[Item] | None = None) -> Iterator[Sandbox]:
    """Put everything, or some items, back after the body, and say what had changed, or cannot be
    put back.
    """
    found = Sandbox()
    with warnings.catch_warnings():
        with deferred():
            filters = list(warnings.filters)
            before = [(item, _read(item.get)) for item in (STATE if items is None else items)]
            random_before = _read(random_state)
            modules = frozenset(sys.modules)
        try:
            yield found
        finally:
            with deferred():
                _put_back(before, random_before, found)
                # A library may add filters when it is first imported.
                if warnings.filters != filters and modules.issuperset(sys.modules):
                    found.remarks.append(
                        "your code changed the warning filters; they are as before again."
                    )


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except Exception:  # this version of torch lacks a name, or a device is gone
        return _UNKNOWN


def _put_back(
    before: list[tuple[Item, Any]], random_before: RandomState | object, found: Sandbox
) -> None:
    for item, was in before:
        if was is _UNKNOWN:
            continue
        try:
            now = item.change(was)
        except Exception:
            now = _UNKNOWN
        if now is UNCHANGED:
            continue
        failure = ""
        try:
            item.put(was)
        except Exception as error:
            failure = f". It could not be put back ({type(error).__name__}): restart the kernel."
        message = "your code left a state that cannot be read"
        if now is not _UNKNOWN:
            message = item.describe(was, now)
        if failure:
            message = message.rstrip(".") + failure
        (found.leaks if item.fault else found.remarks).append(message)
    if random_before is not _UNKNOWN:
        set_random_state(random_before)  # type: ignore[arg-type]
    torch.clear_autocast_cache()
