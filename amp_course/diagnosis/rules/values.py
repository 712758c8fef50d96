"""Judge inf and NaN: what kind of fault made the first one that did harm, and what was there before the training began."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.watching.births import MADE, Birth
from amp_course.watching.values import INF, MINUS_INF, NAN

_SOFTMAX = ("softmax", "logsumexp", "scaled_dot_product", "cross_entropy")
_DIVISIONS = (
    "div",
    "reciprocal",
    "rsqrt",
    "true_divide",
    "_foreach_div",
    "_foreach_reciprocal",
    "addcdiv",
    "_foreach_addcdiv",
)
_LOGS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py", "_foreach_log")
_EXPLODED, _RISING = 1e6, 5  # times the first loss, and still growing in so many updates in a row
_GROWN = 100.0  # times the first loss, and training diverges


def check_values(
    found: Nonfinite, losses: Sequence[float], updates: int, skipped: int, *, taken: bool = False
) -> tuple[list[Finding], list[str]]:
    """Judge what a watch has seen in a training; return faults, and sentences on what is no fault.

    losses:  at each backward pass, as far as they were single numbers and not scaled
    skipped: updates that the scaler skipped
    taken:   steps with an overflow were taken, so that what overflowed is the scaler's affair and no fault in itself
    """
    faults: list[Finding] = []
    given = [name for name in found.given if name != "the data" and not name.startswith(MADE)]
    if len(given) < len(found.given) and any(kind != "output" for kind, _ in found.arrived):
        made = [name.removeprefix(MADE) for name in found.given if name.startswith(MADE)]
        reached = ", ".join(name for _, name in found.arrived[:3])
        faults.append(finding("nan-in-data", it_reached=reached, place=made[0] if made else ""))
    if given:
        faults.append(finding("weights-not-finite", f"{', '.join(given[:3])} held inf or NaN before the first step"))
    passing = [one for one in found.births if one.harmful and not _lasts(one)]
    steps = len({one.step for one in passing})
    if skipped and steps == 1 and not any(map(_lasts, found.births)):
        told = (
            f"In 1 of {updates} updates an op made inf or NaN, and the scaler skipped it: {passing[0]}. If that goes on, such "
            "batches are never learnt from."
        )
        return faults, [told]
    first = _first(found)
    if first is not None and not (taken and first.phase == "backward"):
        faults.append(name_birth(first, found, losses))
    if not faults and _explodes(losses):
        faults.append(finding("diverges", first_loss=losses[0], last_loss=losses[-1], updates=updates))
    buffers = [name for one in found.births for kind, name in one.reached if kind == "buffer"]
    if buffers and skipped:
        faults.append(finding("overflow-reached-buffer", buffer=buffers[0], skipped_updates=skipped))
    return faults, []


def _first(found: Nonfinite) -> Birth | None:
    """Return the first op that made an inf or NaN which did harm; in a backward pass, only if a step took it to the weights."""
    stopped = "returned nan values" in str(found.error)  # by anomaly mode, before any step
    harmful = [one for one in found.births if one.harmful and (one.phase != "backward" or _lasts(one) or stopped)]
    roots = {root.number: root for one in harmful for root in one.roots()}
    return roots[min(roots)] if roots else None


def _lasts(birth: Birth) -> bool:
    """Tell whether it reached what the next step begins with."""
    return any(kind in ("weight", "buffer") for kind, _ in birth.reached)


def name_birth(birth: Birth, found: Nonfinite, losses: Sequence[float]) -> Finding:
    """Make the finding of the op that made the first inf or NaN."""
    name, cause = _untaken(birth, found) or _kind(birth, losses)
    where = f" in `{birth.module}`" if birth.module else ""
    place = birth.line or birth.forward
    evidence: dict[str, float | int | str] = {"step": birth.step, "op": f"{birth.op}{where}, {birth.phase}"}
    if birth.took:
        evidence["it took"] = birth.operands
    evidence["it made"] = " and ".join(sorted(birth.made.holds, key=lambda kind: kind == NAN))
    if place is not None:
        evidence["place" if birth.line is not None else "line of the forward op"] = str(place)
    if reached := found.reached(birth):
        evidence["it reached"] = ", ".join(dict.fromkeys(f"{kind} {name}" if kind in ("weight", "gradient", "buffer") else name
                                                         for kind, name in reached[:3]))  # fmt: skip
    if name == "division-by-zero" and birth.phase == "optimizer":
        evidence["variant"] = "optimizer"
    return finding(name, cause, **evidence)


def _untaken(birth: Birth, found: Nonfinite) -> tuple[str, str] | None:
    """Recognise an inf of the forward pass that no value going forward shows, and that becomes NaN on the way back."""
    harm = [one for one in found.births if birth in one.roots() and one.harmful]
    shown = any(kind in ("loss", "output") for kind, _ in birth.reached)
    if birth.phase != "forward" or shown or not harm or any(one.phase != "backward" for one in harm):
        return None
    return "infinite-derivative", (
        f"{birth.op} gives inf in a branch that is not taken: the values going forward are finite, but its derivative times 0 is "
        "NaN"
    )


def _kind(birth: Birth, losses: Sequence[float]) -> tuple[str, str]:
    """Return the name of a birth's fault, and its cause if that can be said more exactly."""
    op, made, took = birth.op.rstrip("_"), birth.made.holds, birth.took
    entered = frozenset().union(*(one.holds for one in took)) if took else frozenset()
    backward = birth.phase == "backward"
    if any(part in op for part in _SOFTMAX) and NAN in made and MINUS_INF in entered and not backward:
        return "masked-row", ""
    if birth.phase == "optimizer":
        if op in _DIVISIONS and any(one.least == 0 for one in took):
            return "division-by-zero", "the optimizer divides by 0: its eps is 0 in this format"
        return "diverges", "the optimizer's step leaves the range of the weights' format"
    if backward and (INF in made or MINUS_INF in made or NAN in made) and _derivative(birth):
        name = birth.node.removesuffix("0").removesuffix("Backward") or op
        return "infinite-derivative", (
            f"the derivative of {name} is infinite there: the values going forward are finite, but a later product with 0 is NaN"
        )
    if op in _LOGS and not backward:
        return (
            ("log-of-zero", "") if made <= {MINUS_INF, INF} else ("not-finite", "the log of a negative number is taken")
        )
    if op in _DIVISIONS and not backward and any(one.least == 0 for one in took):
        return "division-by-zero", ""
    if op == "pow" and any(one.least == 0 for one in took) and INF in made and not backward:
        return "division-by-zero", "0 is raised to a negative power"
    if birth.made.dtype == "float16" and backward:
        return "overflow-not-skipped", "a gradient is beyond 65,504, where fp16 ends, and the step with it was taken"
    if birth.made.dtype == "float16":
        return "beyond-fp16", ""
    if _diverges(losses):
        return "diverges", ""
    if op in _DIVISIONS and not backward:
        return "division-by-zero", "something is divided by a number so small that the result is beyond the format"
    return "not-finite", f"{birth}"


def _derivative(birth: Birth) -> bool:
    """Tell whether an op of a backward pass divided by 0, or raised it to a negative power."""
    node = birth.node.lower()
    names = ("sqrt", "rsqrt", "div", "log", "pow", "norm", "reciprocal", "acos", "asin", "atan2", "cdist", "std", "var")
    return any(name in node for name in names) and any(one.least == 0 or not one.finite for one in birth.took)


def _explodes(losses: Sequence[float]) -> bool:
    """Tell whether the loss has grown by orders of magnitude, and goes on to: inf is a matter of time."""
    end = [abs(loss) for loss in losses[-_RISING:]]
    rising = len(losses) > _RISING and all(now > before for before, now in itertools.pairwise(end))
    return rising and end[-1] < math.inf and end[-1] > _EXPLODED * max(abs(losses[0]), 1e-3)


def _diverges(losses: Sequence[float]) -> bool:
    finite = [abs(loss) for loss in losses if abs(loss) < float("inf")]
    return len(finite) > 1 and max(finite) > _GROWN * max(finite[0], 1e-3)
