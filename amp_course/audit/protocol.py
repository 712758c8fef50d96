"""What an audit has found, judged, observed and not judged, and learnt of the step so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from amp_course.diagnosis.findings import Finding
from amp_course.watching.records import Update

if TYPE_CHECKING:
    from amp_course.audit.runner import Runner

# After one of these nothing else is judged: it would be the same fault under another name.
STEPS_WRONG = {"stepped-twice", "stepped-every-micro-batch", "cleared-before-step"}
UPDATES_WRONG = {
    "update-every-micro-batch", "update-before-step", "updated-twice",
    "unscaled-every-micro-batch", "unscaled-before-backward", "unscaled-twice",
}  # fmt: skip
MENDED_FIRST = {
    "never-cleared", "still-scaled", "optimizer-not-stepped", "update-missing",
    *STEPS_WRONG, *UPDATES_WRONG,
}  # fmt: skip


class StopAudit(Exception):
    """The audit ends here: what follows cannot be judged, for the reason given."""


@dataclass
class Protocol:
    """Findings, behaviours that were judged, why others were not, and remarks."""

    as_list: bool  # optimizers: findings then tell which
    found: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=lambda: ["objects"])
    not_checked: dict[str, str] = field(default_factory=dict)
    observations: list[str] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.found}

    def judge(
        self, behaviour: str, found: Iterable[Finding | str] = (), optimizer: int | None = None
    ) -> None:
        """Note that a behaviour was judged, and what was found; a string is an observation.

        behaviour: "" for none as a whole
        optimizer: the number of the one that it was found of
        """
        if behaviour and behaviour not in self.checked:
            self.checked.append(behaviour)
        for one in found:
            if isinstance(one, Finding):
                number: dict[str, Any] = {}
                if self.as_list and optimizer is not None:
                    number = {"optimizer": optimizer}
                self.found.append(replace(one, evidence={**number, **one.evidence}))
            elif one not in self.observations:
                self.observations.append(one)

    def leave_out(self, behaviour: str, why: str) -> None:
        """Note why a behaviour was not judged; the first reason stays."""
        self.not_checked.setdefault(behaviour, why)


@dataclass
class State:
    """What the experiments share.

    max_norm, tolerance: as `audit` was given them
    ragged:  an epoch may end in a shorter group
    updates: the first one, and the one after it
    rates:   the learning rate of each optimizer between them
    noise:   how far two runs of the same update are apart; `unsteady`: why they differ
    known:   how many faults there were before the gradients were judged
    large:   the first update with its gradients multiplied by `factor`, if that could be
    unscaled: optimizers whose losses are not scaled: nothing of theirs is skipped
    """

    run: Runner
    protocol: Protocol
    max_norm: float | None
    tolerance: float | None
    ragged: bool
    updates: list[Update] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
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
