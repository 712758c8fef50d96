"""What a rank sends back about a piece of work: plain data,
for exceptions of the reader's own cannot always travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Why the work did not get to its end on a rank.

    told:      in words that continue "Not quite: …": explained where it happened, with the
               line
    signature: the same for two failures of one cause
    kind:      "raised"; "refused", what came back is no answer; "time" is up; "stopped", waiting in
               vain for other ranks; "returned", while another rank failed; "died", its process
               ended; "hangs", and could not be stopped
    case:      in which case, if the work said so: "at step 2"
    """

    told: str
    signature: str
    kind: str = "raised"
    case: str = ""


@dataclass(frozen=True)
class Report:
    """What one rank did: its result or its failure, what the work printed, and, as sentences, what
    it left changed in its process.
    """

    value: Any = None
    failure: Failure | None = None
    printed: str = ""
    leaks: tuple[str, ...] = ()
