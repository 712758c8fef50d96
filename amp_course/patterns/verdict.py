"""Lay out what the workbench shows: the loop's lines against the right loop's, and an audit behaviour by behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from amp_course.patterns.findings import Audit

State = Literal["right", "wrong", "not judged"]
SIGNS: dict[State, str] = {"right": "✓", "wrong": "✗", "not judged": "–"}

BEHAVIOURS: dict[str, str] = {  # in the order in which they are judged → what holds if nothing is found
    "objects": "fp32 parameters, on one device",
    "backward": "runs, outside autocast",
    "autocast": "ends with the step",
    "steps": "one for each optimizer and update",
    "updates": "scaler.update() once an update",
    "scheduler": "moves with the optimizer",
    "clearing": "each update begins with empty gradients",
    "clipping": "of the true gradients, once an update",
    "loss scale": "another scale, the same gradient",
    "accumulation": "the mean over the micro-batches",
    "gradient": "that of the fp32 loss, but for rounding",
    "shorter last group": "has its own mean",
    "unequal micro-batches": "count by their examples",
    "overflow": "the step is skipped, the scale falls",
}
_FAULTS_OF: dict[str, list[str]] = {
    "objects": [
        "no-batches",
        "accumulate-below-one",
        "two-devices",
        "fp16-parameters",
        "weights-not-finite",
        "foreign-parameters",
        "frozen-optimizer",
    ],
    "backward": ["no-backward", "backward-in-autocast", "step-raises", "not-finite"],
    "autocast": ["autocast-left-open"],
    "steps": [
        "never-stepped",
        "optimizer-not-stepped",
        "stepped-twice",
        "stepped-every-micro-batch",
        "weights-unchanged",
    ],
    "updates": [
        "update-missing",
        "no-update-after-skip",
        "update-per-optimizer",
        "update-every-micro-batch",
        "updated-twice",
        "unscaled-every-micro-batch",
        "unscaled-twice",
    ],
    "scheduler": [
        "scheduler-never-moved",
        "scheduler-before-optimizer",
        "scheduler-every-micro-batch",
        "scheduler-moved-twice",
        "scheduler-ran-on",
    ],
    "clearing": ["cleared-before-step", "cleared-every-micro-batch", "never-cleared"],
    "clipping": ["clipped-while-scaled", "not-clipped", "clipped-wrong", "clipped-every-micro-batch"],
    "loss scale": ["still-scaled", "loss-not-scaled", "scaled-twice", "depends-on-scale"],
    "accumulation": ["sum-not-mean", "wrong-factor"],
    "gradient": ["gradient-differs"],
    "shorter last group": ["last-group-mean"],
    "unequal micro-batches": ["mean-of-means"],
    "overflow": ["overflow-not-skipped", "kept-after-skip"],
}

# A fault in what makes the gradient leaves nothing to praise in the gradient itself.
_MAKES_THE_GRADIENT = ("clearing", "clipping", "loss scale", "accumulation")
_IS_THE_GRADIENT = ("accumulation", "gradient", "shorter last group", "unequal micro-batches")


class Line(NamedTuple):
    """A line of two compared loops: `mark` is "+" for one of this loop only, "−" for one of the right loop only, else ""."""

    mark: Literal["", "+", "−"]
    text: str


class Judgement(NamedTuple):
    """What an audit says of one behaviour; `word` says what holds, names the faults, or why nothing is said."""

    state: State
    behaviour: str
    word: str


def marked_lines(source: str, right: str) -> list[Line]:
    """Compare a loop with the right one, line by line; without the "−" lines the result is `source`.

    Example: ("a\\nc", "a\\nb\\nc") → [("", "a"), ("−", "b"), ("", "c")]
    """
    return list(_compared(source.splitlines(), right.splitlines()))


def _compared(here: list[str], there: list[str]) -> Iterator[Line]:
    for tag, there_from, there_to, from_, to in SequenceMatcher(None, there, here, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (Line("", text) for text in here[from_:to])
        else:
            yield from (Line("−", text) for text in there[there_from:there_to])
            yield from (Line("+", text) for text in here[from_:to])


def judgements(audit: Audit) -> list[Judgement]:
    """Return what an audit says of each behaviour, in the order in which they are judged."""
    reasons = dict(audit.not_checked)
    # A fault may hide what comes after it: those behaviours wait for its cure.
    otherwise = "mend the faults first" if audit.findings else "was not asked for"
    found: list[Judgement] = []
    spoilt = False  # is a fault found in what makes the gradient?
    for behaviour, holds in BEHAVIOURS.items():
        faults = [name for name in audit.names if name in _FAULTS_OF[behaviour]]
        if faults:
            found.append(Judgement("wrong", behaviour, ", ".join(faults)))
            spoilt |= behaviour in _MAKES_THE_GRADIENT
        elif behaviour in audit.checked and not (spoilt and behaviour in _IS_THE_GRADIENT):
            found.append(Judgement("right", behaviour, holds))
        else:
            found.append(Judgement("not judged", behaviour, reasons.get(behaviour, otherwise)))
    return found
