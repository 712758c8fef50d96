"""The tools that the cases call, imported only here, so that cases outlive a change of modules.

Each call writes its result as a line of JSON to the file $CASE_RESULTS, for the runner.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

from amp_course.audit import audit as _audit
from amp_course.debugging.nonfinite import first_nonfinite as _first_nonfinite
from amp_course.debugging.precisions import compare_precisions
from amp_course.debugging.ranges import watch_ranges
from amp_course.debugging.replaying import replay
from amp_course.diagnosis.catalogue import catalogue
from amp_course.doctor import doctor as _doctor

__all__ = ["audit", "compare_precisions", "doctor", "first_nonfinite", "replay", "watch_ranges"]

FAULT_NAMES = {*catalogue()}


def _recorded(
    tool: Callable[..., Any], names: Callable[[Any], Any], **more: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return the tool, which then also writes what it found."""

    @functools.wraps(tool)
    def called(*args: Any, **kwargs: Any) -> Any:
        found = tool(*args, **kwargs)
        if path := os.environ.get("CASE_RESULTS"):
            line = {"names": names(found), **{name: read(found) for name, read in more.items()}}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return found

    return called


def _ops(found: Any) -> list[str]:
    return [found.first.op] if found.first else ["given"] if found.preexisting else []


audit = _recorded(_audit, lambda found: found.names, right=lambda found: found.right)
doctor = _recorded(_doctor, lambda found: found.names, advised=lambda found: found.advised)
first_nonfinite = _recorded(_first_nonfinite, _ops)
