"""A verdict on one answer, sealed on its way from the process that runs a submission to the one
that gives points.

A submission can print anything, and answer any message that reaches its process. It gets points
only for a verdict on the question that was asked, sealed with a key that it does not have.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

# types of messages to and from the kernel
REQUEST, REPLY = ("amp_course_check_request", "amp_course_check_reply")


@dataclass(frozen=True)
class Verdict:
    """What a check said, and what else happened in its process until then.

    state:    "correct", "not yet" or "not attempted", as in an `Outcome`, or "no verdict"
    mistake:  the name of the known mistake in the answer, if there is one
    notes:    those of the `Outcome`
    replaced: parts of the course that the submission replaced
    opened:   files of the class that it tried to open
    """

    exercise: str
    state: str
    message: str
    mistake: str | None = None
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()


class Seal:
    """Seals verdicts and opens them, without an attribute that would print the key."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)

    def close(self, verdict: Verdict, question: str) -> dict[str, str]:
        """Return the content of a reply to a question, which is a string that is used only once."""
        text = json.dumps(asdict(verdict))
        return {"verdict": text, "seal": self._digest(text, question)}

    def open(self, content: dict[str, Any], question: str) -> Verdict | None:
        """Return the verdict, or None if it is not sealed for this question."""
        text, seal = content.get("verdict"), content.get("seal")
        if not isinstance(text, str) or not isinstance(seal, str):
            return None
        if not hmac.compare_digest(seal.encode(), self._digest(text, question).encode()):
            return None
        found = json.loads(text)
        return Verdict(
            **found | {name: tuple(found[name]) for name in ("notes", "replaced", "opened")}
        )

    def _digest(self, text: str, question: str) -> str:
        keyed = self._keyed.copy()
        keyed.update(f"{question}\n{text}".encode())
        return keyed.hexdigest()
