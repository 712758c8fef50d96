"""Judge inf and NaN: which fault made the first one that did harm?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Evidence, Finding
from amp_course.diagnosis.nonfinite import Nonfinite, first_root
from amp_course.watching.origins import MADE, NonfiniteOrigin
from amp_course.watching.values import INF, MINUS_INF, NAN

_SOFTMAX = ("softmax", "logsumexp", "scaled_dot_product", "cross_entropy")
_DIVISIONS = (
    "div reciprocal rsqrt true_divide _foreach_div _foreach_reciprocal addcdiv _foreach_addcdiv"
).split()
_LOGS = "log log2 log10 log1p logit xlogy special_xlog1py _foreach_log".split()
# Ops whose derivative may be infinite, as autograd's nodes spell them
_STEEP = "sqrt div log pow norm reciprocal acos asin atan2 cdist std var".split()
_EXPLODED, _RISING = 1e6, 5  # times the first loss, and it grew in as many updates in a row
_GROWN = 100.0  # times the first loss; then the training diverges


def check_values(
    found: Nonfinite, losses: Sequence[float], updates: int, skipped: int, *, taken: bool = False
) -> tuple[list[Finding], list[str]]:
    """Judge the inf and NaN of a training; return faults, and sentences on what is no fault.

    losses:  at each backward pass, as far as they were single numbers and not scaled
    skipped: updates that the scaler skipped
    taken:   steps with an overflow were taken; that is the fault, not the overflow in itself
    """
    faults: list[Finding] = []
    made = [name.removeprefix(MADE) for name in found.preexisting if name.startswith(MADE)]
    named = [name for name in found.preexisting if name != "the data" and not name.startswith(MADE)]
    if len(named) < len(found.preexisting) and any(kind != "output" for kind, _ in found.arrived):
        reached = ", ".join(name for _, name in found.arrived[:3])
        faults.append(finding("nan-in-data", it_reached=reached, place=made[0] if made else ""))
    if named:
        cause = f"{', '.join(named[:3])} held inf or NaN before the first step"
        faults.append(finding("weights-not-finite", cause))
    passing = [one for one in found.origins if one.harmful and not _lasts(one)]
    if skipped and len({one.step for one in passing}) == 1 and not any(map(_lasts, found.origins)):
        sentence = (
            f"In 1 of {updates} updates an op made inf or NaN, and the scaler skipped it: "
            f"{passing[0]}. If that goes on, such batches are never learnt from."
        )
        return faults, [sentence]
    # In a backward pass it does harm only if a step took it to the weights, or anomaly mode raised.
    stopped = "returned nan values" in str(found.error)
    harmful = (one for one in found.origins if one.harmful)
    first = first_root(one for one in harmful if one.phase != "backward" or _lasts(one) or stopped)
    if first is not None and not (taken and first.phase == "backward"):
        faults.append(name_origin(first, found, losses))
    if not faults and _explodes(losses):
        ends = {"first_loss": losses[0], "last_loss": losses[-1]}
        faults.append(finding("diverges", **ends, updates=updates))
    buffers = [name for one in found.origins for kind, name in one.reached if kind == "buffer"]
    if buffers and skipped:
        faults.append(
            finding("overflow-reached-buffer", buffer=buffers[0], skipped_updates=skipped)
        )
    return faults, []


def _lasts(origin: NonfiniteOrigin) -> bool:
    """Return True if an origin reached a weight or a buffer, which the next step begins with."""
    return any(kind in ("weight", "buffer") for kind, _ in origin.reached)


def name_origin(origin: NonfiniteOrigin, found: Nonfinite, losses: Sequence[float]) -> Finding:
    """Make the finding of the op that made the first inf or NaN."""
    name, cause = _untaken_branch(origin, found) or _kind(origin, losses)
    where = f" in `{origin.module}`" if origin.module else ""
    evidence: Evidence = {"step": origin.step, "op": f"{origin.op}{where}, {origin.phase}"}
    if origin.took:
        evidence["it took"] = origin.operands
    evidence["it made"] = " and ".join(sorted(origin.made.holds, key=lambda kind: kind == NAN))
    if origin.line is not None and name != "overflow-not-skipped":  # that is the step's fault
        evidence["place"] = str(origin.line)
    elif origin.forward is not None:
        evidence["line of the forward op"] = str(origin.forward)
    if reached := found.reached(origin)[:3]:
        kinds = ("weight", "gradient", "buffer")
        named = (f"{kind} {name}" if kind in kinds else name for kind, name in reached)
        evidence["it reached"] = ", ".join(dict.fromkeys(named))
    if name == "division-by-zero" and origin.phase == "optimizer":
        evidence["variant"] = "optimizer"
    return finding(name, cause, **evidence)


def _untaken_branch(origin: NonfiniteOrigin, found: Nonfinite) -> tuple[str, str] | None:
    """Recognise an inf that the forward pass discards, and that makes NaN in the backward pass."""
    harm = {one.phase for one in found.origins if origin in one.roots() and one.harmful}
    shown = any(kind in ("loss", "output") for kind, _ in origin.reached)
    if origin.phase != "forward" or shown or harm != {"backward"}:
        return None
    return "infinite-derivative", (
        f"{origin.op} gives inf in a branch that is not taken: the values going forward are "
        "finite, but its derivative times 0 is NaN"
    )


def _kind(origin: NonfiniteOrigin, losses: Sequence[float]) -> tuple[str, str]:
    """Return the name of an origin's fault, and its cause, or "" for the catalogue's."""
    op, made, took = origin.op.rstrip("_"), origin.made.holds, origin.took
    by_zero, in_fp16 = any(one.least == 0 for one in took), origin.made.dtype == "float16"
    finite = [abs(loss) for loss in losses if abs(loss) < math.inf]
    diverges = len(finite) > 1 and max(finite) > _GROWN * max(finite[0], 1e-3)
    if origin.phase == "optimizer":
        if op in _DIVISIONS and by_zero:
            return "division-by-zero", "the optimizer divides by 0: its eps is 0 in this format"
        return "diverges", "the optimizer's step leaves the range of the weights' format"
    if origin.phase == "backward":
        steep = any(name in origin.node.lower() for name in _STEEP)
        if steep and (by_zero or any(not one.finite for one in took)):
            name = origin.node.removesuffix("0").removesuffix("Backward") or op
            return "infinite-derivative", (
                f"the derivative of {name} is infinite there: the values going forward are finite, "
                "but a later product with 0 is NaN"
            )
        if in_fp16:
            cause = "a gradient is beyond 65,504, where fp16 ends, and the step with it was taken"
            return "overflow-not-skipped", cause
        return ("diverges", "") if diverges else ("not-finite", f"{origin}")
    masked = NAN in made and any(MINUS_INF in one.holds for one in took)
    if masked and any(part in op for part in _SOFTMAX):
        return "masked-row", ""
    if op in _LOGS:
        if made <= {MINUS_INF, INF}:
            return "log-of-zero", ""
        return "not-finite", "the log of a negative number is taken"
    if op in _DIVISIONS and by_zero:
        return "division-by-zero", ""
    if op == "pow" and by_zero and INF in made:
        return "division-by-zero", "0 is raised to a negative power"
    if in_fp16:
        return "beyond-fp16", ""
    if diverges:
        return "diverges", ""
    if op in _DIVISIONS:
        cause = "something is divided by a number so small that the result is beyond the format"
        return "division-by-zero", cause
    return "not-finite", f"{origin}"


def _explodes(losses: Sequence[float]) -> bool:
    """Return True if the loss grows by orders of magnitude: inf is a matter of time."""
    end = [abs(loss) for loss in losses[-_RISING:]]
    rising = len(losses) > _RISING and all(now > before for before, now in itertools.pairwise(end))
    return rising and _EXPLODED * max(abs(losses[0]), 1e-3) < end[-1] < math.inf
