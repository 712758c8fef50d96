"""Run an answer and give the process back as it was found: the shared state and the warning filters."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from amp_course.checking.state import RANDOM, STATE


@dataclass
class Sandbox:
    """What an answer left changed, as sentences: `leaks` are faults, `remarks` are worth knowing."""

    leaks: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@contextlib.contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Put everything back after the body, and tell what had changed."""
    found = Sandbox()
    before = [item.get() for item in STATE]
    random_before = [get() for get, _ in RANDOM]
    modules = len(sys.modules)
    with warnings.catch_warnings():
        filters = list(warnings.filters)
        try:
            yield found
        finally:
            for item, was in zip(STATE, before, strict=True):
                now = item.get()
                if now != was:
                    (found.leaks if item.fault else found.remarks).append(item.tell(was, now))
                    item.put(was)
            for (_, put), state in zip(RANDOM, random_before, strict=True):
                put(state)
            torch.clear_autocast_cache()
            # A library that is imported for the first time may add filters: that is not the reader's doing.
            if warnings.filters != filters and len(sys.modules) == modules:
                found.remarks.append("your code changed the warning filters; they are as before again.")
