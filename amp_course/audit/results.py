"""What an audit has found, judged, observed and left out, and what its experiments share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from amp_course.diagnosis.findings import Finding
from amp_course.watching.records import Update

if TYPE_CHECKING:
    from amp_course.audit.runner import Runner

FIX_FIRST = "fix the faults above first"
# After one of these, the gradients are not judged: that would be the same fault under another name.
STEPS_WRONG = {"stepped-twice", "stepped-every-micro-batch", "cleared-before-step"}
CALLS_WRONG = STEPS_WRONG | {
    "update-every-micro-batch",
    "update-before-step",
    "updated-twice",
    "unscaled-every-micro-batch",
    "unscaled-before-backward",
    "unscaled-twice",
}
# After one of these, an inf in the gradients shows nothing new.
HIDES_OVERFLOW = CALLS_WRONG | {
    "never-cleared",
    "still-scaled",
    "optimizer-not-stepped",
    "update-missing",
}


class StopAudit(Exception):
    """The audit ends here: nothing after this can be judged. The message says why."""


@dataclass
class Results:
    """Findings, behaviours that were judged, why others were not, and remarks."""

    many_optimizers: bool  # then a finding says which one it is about
    found: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=lambda: ["objects"])
    not_checked: dict[str, str] = field(default_factory=dict)
    observations: list[str] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.found}

    def add(
        self, found: Iterable[Finding | str] = (), optimizer: int | None = None, judged: str = ""
    ) -> None:
        """Add findings, and observations, which are strings.

        optimizer: the number of the one that they are about
        judged:    the behaviour that was judged by this, if it was judged as a whole
        """
        if judged and judged not in self.checked:
            self.checked.append(judged)
        for one in found:
            if isinstance(one, str):
                self.observe(one)
            elif self.many_optimizers and optimizer is not None:
                self.found.append(replace(one, evidence={"optimizer": optimizer, **one.evidence}))
            else:
                self.found.append(one)

    def observe(self, text: str) -> None:
        """Add an observation, unless it is there already."""
        if text not in self.observations:
            self.observations.append(text)

    def leave_out(self, behaviour: str, why: str) -> None:
        """Note why a behaviour was not judged; the first reason stays."""
        self.not_checked.setdefault(behaviour, why)


@dataclass
class State:
    """What the experiments share.

    max_norm, tolerance: as passed to `audit`
    ragged:   the last group of an epoch may be shorter
    updates:  the first one, and the one after it
    noise:    the largest relative distance between the gradients of two runs of the same update
    unsteady: why two runs differ, "" if they do not
    known:    how many faults there were before the gradients were judged
    large:    the first update with its gradients multiplied by `factor`, if that was possible
    unscaled: the numbers of optimizers whose losses are not scaled: their steps are never skipped
    """

    run: Runner
    results: Results
    max_norm: float | None
    tolerance: float | None
    ragged: bool
    updates: list[Update] = field(default_factory=list)
    noise: float = 0.0
    unsteady: str = ""
    known: int | None = None
    large: Update | None = None
    factor: float = 1.0
    scaled_by_hand: bool = False
    unscaled: set[int] = field(default_factory=set)

    @property
    def first(self) -> Update:
        return self.updates[0]
