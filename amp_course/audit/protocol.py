"""What an audit has found, judged, observed and not judged, as it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from amp_course.diagnosis.findings import Finding

# After one of these nothing else is judged: it would be the same fault under another name.
STEPS_WRONG = {"stepped-twice", "stepped-every-micro-batch", "cleared-before-step"}
UPDATES_WRONG = {
    "update-every-micro-batch",
    "update-before-step",
    "updated-twice",
    "unscaled-every-micro-batch",
    "unscaled-before-backward",
    "unscaled-twice",
}
MENDED_FIRST = {
    "never-cleared",
    "still-scaled",
    "optimizer-not-stepped",
    "update-missing",
    *STEPS_WRONG,
    *UPDATES_WRONG,
}


class Over(Exception):
    """The audit ends here: what follows cannot be judged, for the reason given."""


@dataclass
class Protocol:
    """Findings, the behaviours that were judged, pairs of a behaviour and why it was not, and sentences on what is no fault."""

    found: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=lambda: ["objects"])
    not_checked: dict[str, str] = field(default_factory=dict)
    observations: list[str] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The names of what was found."""
        return {one.name for one in self.found}

    def judge(self, behaviour: str, found: Iterable[Finding | str] = (), optimizer: int | None = None) -> None:
        """Note that a behaviour was judged, and what was found; a string is an observation.

        behaviour: "" for none as a whole
        optimizer: the number of the one that it was found of, where there are several
        """
        if behaviour and behaviour not in self.checked:
            self.checked.append(behaviour)
        for one in found:
            if isinstance(one, Finding):
                number = {} if optimizer is None else {"optimizer": optimizer}
                self.found.append(replace(one, evidence={**number, **one.evidence}))
            elif one not in self.observations:
                self.observations.append(one)

    def leave_out(self, behaviour: str, why: str) -> None:
        """Note why a behaviour was not judged; the first reason stays."""
        self.not_checked.setdefault(behaviour, why)
