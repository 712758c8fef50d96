"""Judge the gradient that the optimizer sees: its loss scale, its micro-batches, its distance from fp32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.patterns.findings import Finding, finding
from amp_course.patterns.seen import Flat, Seen

CLOSE = 0.02  # relative: what rounding may do to the length of a gradient of many numbers


def tolerance_for(dtypes: set[torch.dtype]) -> float:
    """Return the relative distance from fp32 that rounding explains: fp16 → 2^-5, bf16 → 2^-3, else 2^-10.

    A gradient goes through tens of roundings: 64 units in the last place leave room for them (32 in bf16).
    """
    if torch.bfloat16 in dtypes:
        return 16 * torch.finfo(torch.bfloat16).eps
    return 32 * torch.finfo(torch.float16).eps if torch.float16 in dtypes else 2.0**-10


def along(gradient: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return (factor, distance): gradient ≈ factor · reference, and how far off, relative to the gradient."""
    gradient, reference = gradient.double(), reference.double()
    square, size = (reference @ reference).item(), gradient.norm().item()
    if square == 0 or size == 0 or not math.isfinite(size) or not math.isfinite(square):
        return (0.0 if size == 0 else math.nan), (0.0 if size == square == 0 else math.inf)
    factor = (gradient @ reference).item() / square
    return factor, ((gradient - factor * reference).norm() / size).item()


def near(factor: float, wanted: float) -> bool:
    """Tell whether two factors are the same up to rounding."""
    return math.isclose(factor, wanted, rel_tol=CLOSE)


def about_scale(
    high: Tensor, low: Tensor, scales: tuple[float, float], tolerance: float, unscaled: bool
) -> Finding | None:
    """Compare the gradients that one optimizer sees at two loss scales: they ought to be the same."""
    factor, distance = along(high, low)
    evidence = {
        "gradient_norms": f"{high.norm():.3g} and {low.norm():.3g}",
        "loss_scales": f"{scales[0]:g} and {scales[1]:g}",
    }
    if not high.any() and not low.any():
        return None
    ratio = scales[0] / scales[1]
    if distance > max(tolerance, 1e-3):
        return finding("depends-on-scale", **evidence)
    if near(factor, 1.0):
        return None
    if near(factor, ratio):
        return finding("scaled-twice" if unscaled else "still-scaled", **evidence)
    if near(factor, 1 / ratio):
        return finding("loss-not-scaled", **evidence)
    if near(factor, ratio * ratio):
        return finding("scaled-twice", **evidence)
    return finding("depends-on-scale", **evidence)


@dataclass(frozen=True)
class Group:
    """The micro-batches of an update as the judges need them: their fp32 gradients, and those with this step's rounding."""

    references: Sequence[Tensor]  # empty without a loss
    rounded: Sequence[Tensor]  # the fp32 loss computed under autocast: what rounding alone does to its gradient
    own: Sequence[Tensor]  # direction as in this step, length as in fp32 (without a loss: as it came)
    sizes: Sequence[int]

    @property
    def mean(self) -> Tensor:
        """The gradient of the big batch."""
        return weighed(self.own, self.sizes)

    def tolerance(self, least: float) -> float:
        """Return the distance from fp32 to allow: at least `least`, and thrice what rounding does, up to a quarter.

        Where a unit's input lies near ReLU's kink, rounding moves it across: no bound by units in the last place covers that.
        """
        if not self.rounded:
            return least
        _, distance = along(weighed(self.rounded, self.sizes), weighed(self.references, self.sizes))
        return max(least, min(3 * distance, 0.25)) if math.isfinite(distance) else least


def weighed(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the mean of gradients of micro-batches, each with its share of the examples as weight."""
    total = sum(sizes)
    return torch.stack([part * (n / total) for part, n in zip(parts, sizes, strict=True)]).sum(0)


def group_of(seen: Seen, number: int, sizes: Sequence[int]) -> Group:
    """Collect the micro-batches of one optimizer's update."""
    references = [flat[number] for flat in seen.references]
    raw: list[Flat] = seen.contributions
    if not references:
        return Group((), (), [flat[number] for flat in raw], sizes)
    own = []
    for reference, flat in zip(references, raw, strict=True):
        factor, _ = along(flat[number], reference)
        own.append(flat[number] / factor if factor and math.isfinite(factor) else reference)
    return Group(references, [flat[number] for flat in seen.rounded], own, sizes)


def about_accumulation(gradient: Tensor, group: Group) -> Iterator[Finding]:
    """Hold the accumulated gradient against the mean over the group, the sum, and the last micro-batch alone."""
    k = len(group.own)
    if k == 1:
        return
    stacked = torch.stack(list(group.own))
    candidates = {"": group.mean, "mean-of-means": stacked.mean(0), "cleared-every-micro-batch": stacked[-1]}
    distances = {name: along(gradient, candidate) for name, candidate in candidates.items()}
    if distances[""][1] <= min(one[1] for one in distances.values()) + 1e-3 and near(distances[""][0], 1.0):
        return
    best = min(distances, key=lambda name: distances[name][1])
    if distances[best][1] > 0.2 or (k > 1 and len(set(group.sizes)) == 1 and best == "mean-of-means"):
        best = ""
    factor = distances[best][0]
    evidence = {"micro_batches": k, "factor": factor}
    if best == "cleared-every-micro-batch":
        yield finding(best, **evidence)
    elif near(factor, k) and group.references:
        yield finding("sum-not-mean", **evidence)
    elif best == "mean-of-means" and group.references:
        yield finding(best, micro_batch_sizes=str(list(group.sizes)), **evidence)


def about_reference(gradient: Tensor, group: Group, tolerance: float) -> Finding | None:
    """Hold the gradient against that of the fp32 loss."""
    wanted = weighed(group.references, group.sizes)
    factor, distance = along(gradient, wanted)
    if not wanted.any() and not gradient.any():
        return None
    if distance > tolerance:
        return finding("gradient-differs", relative_distance=distance, tolerance=tolerance)
    if abs(factor - 1) > max(CLOSE, tolerance / 2):
        return finding("wrong-factor", factor=factor)
    return None
