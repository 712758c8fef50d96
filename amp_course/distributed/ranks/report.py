"""What a rank sends back about a piece of work: plain data, as a learner's own exceptions cannot
always be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Why the work did not finish on a rank.

    message:   continues "Not quite: …", with the line
    signature: equal for two failures with the same cause
    kind:      "raised"; "refused": the result is no answer; "time" is up; "stopped": waiting in
               vain for other ranks; "returned", while another rank failed; "exited": its process
               ended; "hangs", and could not be stopped
    case:      of the exercise, if known: "at step 2"
    """

    message: str
    signature: str
    kind: str = "raised"
    case: str = ""


@dataclass(frozen=True)
class Report:
    """The result or the failure of one rank, what the work printed, and, as sentences, what it left
    changed in its process.
    """

    value: Any = None
    failure: Failure | None = None
    printed: str = ""
    leaks: tuple[str, ...] = ()
