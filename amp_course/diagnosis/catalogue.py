"""The catalogue of faults, faults.toml: every name that a tool of the course gives to one.

A rule makes a finding by its name: `finding("never-cleared", norm=3.5)`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from amp_course.diagnosis.findings import Finding, Grade, ordinal

# What is judged of a step, in order → what holds if nothing is found.
BEHAVIOURS: dict[str, str] = {
    "objects": "the model, optimizer and scaler are those of the step",
    "backward": "runs, outside autocast",
    "autocast": "covers the forward pass and the loss, and ends with the step",
    "steps": "one for each set of gradients",
    "updates": "`scaler.update()` once per update, after the steps",
    "scheduler": "moves with the optimizer",
    "clearing": "each update begins with empty gradients",
    "clipping": "of the true gradients, once per update",
    "loss scale": "another scale, the same gradient",
    "accumulation": "every micro-batch counts",
    "gradient": "that of the fp32 loss, but for rounding",
    "shorter last group": "has its own mean",
    "unequal micro-batches": "count by their examples",
    "overflow": "the step is skipped, the scale falls",
}
# What is judged of a whole training, or of a part other than a step.
TRAINING: dict[str, str] = {
    "values": "no inf or NaN reaches the weights",
    "weights": "the optimizers hold those in use, and updates do not vanish",
    "run": "no exception is raised or hidden",
    "ranks": "all have the same weights and loss scale",
    "checkpoint": "a resumed run goes on as if it had never stopped",
    "recomputation": "gives what the first forward pass gave",
    "speed": "nothing waits without need",
}


@dataclass(frozen=True)
class Fault:
    """An entry of faults.toml, which explains the fields.

    variants: name → the fields that differ: {"optimizer": {"fix": …}}
    """

    name: str
    of: str
    sentence: str
    fix: str
    section: str
    cause: str = ""
    code: str = ""
    hides: Sequence[str] = ()
    consequence_of: Sequence[str] = ()
    aliases: Sequence[str] = ()
    grade: Grade = "fault"
    in_scripts: Grade = "fault"
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Sentence and cause: "a step with inf was taken. The weights are NaN from then on"."""
        cause = f". {self.cause[0].upper()}{self.cause[1:]}" if self.cause else ""
        return self.sentence + cause

    @property
    def is_advice(self) -> bool:
        """Is it not counted as a fault of a script?"""
        return "advice" in (self.grade, self.in_scripts)


@cache
def catalogue() -> dict[str, Fault]:
    """Return all faults by name, the most harmful first."""
    entries = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
    return {name: _fault(name, entry) for name, entry in entries.items()}


def _fault(name: str, entry: dict[str, Any]) -> Fault:
    variants = {key: entry.pop(key) for key in [*entry] if isinstance(entry[key], dict)}
    return Fault(name, **entry, variants=variants)


def current_name(name: str) -> str:
    """Return what a fault is called now: "rate-too-high" → "diverges", "diverges" → "diverges"."""
    return _aliases().get(name, name)


@cache
def _aliases() -> dict[str, str]:
    return {alias: one.name for one in catalogue().values() for alias in one.aliases}


def finding(name: str, cause: str = "", /, **evidence: float | int | str) -> Finding:
    """Make the finding of a fault, by its name or an alias.

    cause:    says what is wrong more exactly than the catalogue
    evidence: the numbers that show it; also place="line 31 of train.py", and variant=, one of the
              fault's variants in faults.toml
    Raises KeyError for an unknown name or variant.
    """
    fault = catalogue()[current_name(name)]
    place, variant = (str(evidence.pop(key, "")) for key in ("place", "variant"))
    if variant:
        fault = replace(fault, **fault.variants[variant])  # type: ignore[arg-type]
    return Finding(
        name=fault.name,
        cause=cause or fault.text,
        fix=fault.fix,
        evidence={
            key.replace("micro_batch", "micro-batch").replace("_", " "): value
            for key, value in evidence.items()
        },
        code=fault.code,
        section=fault.section,
        behaviour=fault.of,
        hides=tuple(fault.hides),
        place=place,
        grade=fault.grade,
    )


def by_grade(found: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Split the findings of a script into faults and advice."""
    parts: tuple[list[Finding], list[Finding]] = ([], [])
    for one in found:
        parts[catalogue()[one.name].is_advice].append(one)
    return parts


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first finding of each name, the most harmful first; unknown names come last."""
    rank = {name: place for place, name in enumerate(catalogue())}
    first: dict[str, Finding] = {}
    for one in found:
        first.setdefault(one.name, one)
    return tuple(sorted(first.values(), key=lambda one: rank.get(one.name, len(rank))))


def ordered(found: Iterable[Finding], optimizers: int = 2) -> tuple[Finding, ...]:
    """Do as `in_order`; a finding for several of the optimizers names all of them."""
    found = tuple(found)
    merged = []
    for one in in_order(found):
        evidence = dict(one.evidence)
        if optimizers < 2:
            evidence.pop("optimizer", None)
        elif "optimizer" in evidence:
            same = (other.evidence for other in found if other.name == one.name)
            numbers = dict.fromkeys(int(each["optimizer"]) for each in same if "optimizer" in each)
            if len(numbers) > 1:
                evidence["optimizer"] = " and ".join(map(ordinal, numbers))
        merged.append(replace(one, evidence=evidence))
    return tuple(merged)


@cache
def _causes(name: str) -> frozenset[str]:
    direct = catalogue()[name].consequence_of if name in catalogue() else ()
    return frozenset(direct).union(*map(_causes, direct))


def causes_of(one: Finding, found: Iterable[Finding]) -> list[str]:
    """Return the names of the findings that this one follows from, directly or through others."""
    return [other.name for other in found if other.name in _causes(one.name)]


def without_consequences(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Leave out what follows from another finding."""
    found = tuple(found)
    return tuple(one for one in found if not causes_of(one, found))
