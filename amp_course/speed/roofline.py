"""The roofline: how fast an op can run, given its FLOPs, its bytes and three numbers about the
machine.

An op takes the longest of three times: its FLOPs at the peak rate of its dtype, its bytes at the
memory's bandwidth, and the launch of one kernel. The model leaves out caches, and overlap between
ops. Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
CACM 52 (2009); the launch is our addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from amp_course.speed.counting import MATMUL, OpCall, totals

Bound = Literal["launch", "memory", "compute"]
FORMATS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
}


@dataclass(frozen=True)
class Roofline:
    """Three numbers about a machine.

    name:           of the machine
    peak_flops:     format → FLOPs per second of its matmuls: {"fp32": 19.5e12, "bf16": 312e12}
    bandwidth:      bytes per second between memory and the chip
    launch_seconds: what one op costs, however small it is
    """

    name: str
    peak_flops: Mapping[str, float]
    bandwidth: float
    launch_seconds: float

    def ridge(self, fmt: str) -> float:
        """Return the FLOPs per byte below which memory bounds an op."""
        return self.peak_flops[fmt] / self.bandwidth

    def attainable(self, intensity: float, fmt: str) -> float:
        """Return the roof: the most FLOPs per second at so many FLOPs per byte."""
        return min(self.peak_flops[fmt], intensity * self.bandwidth)

    def parts(self, flops: float, moved: float, fmt: str) -> dict[Bound, float]:
        """Return the three times of an op in seconds; the longest is its time.

        Raises KeyError for a format that this machine has no peak for.
        """
        compute = flops / self.peak_flops[fmt] if flops else 0.0
        return {"launch": self.launch_seconds, "memory": moved / self.bandwidth, "compute": compute}

    def seconds(self, call: OpCall) -> float:
        """Return the time of one op. Example: a tiny one → launch_seconds"""
        return max(self.parts(call.flops, call.bytes, format_of(call)).values())

    def bound(self, call: OpCall) -> Bound:
        """Say what takes the longest in an op: "launch", "memory" or "compute"."""
        parts = self.parts(call.flops, call.bytes, format_of(call))
        return max(parts, key=parts.__getitem__)

    def total(self, calls: Iterable[OpCall]) -> float:
        """Return the seconds of ops that run one after the other."""
        return sum(self.seconds(call) for call in calls)

    def by_bound(self, calls: Iterable[OpCall]) -> dict[Bound, float]:
        """Return the seconds of ops that run one after the other, by what bounds each."""
        seconds: dict[Bound, float] = {"launch": 0.0, "memory": 0.0, "compute": 0.0}
        for call in calls:
            seconds[self.bound(call)] += self.seconds(call)
        return seconds


def format_of(call: OpCall) -> str:
    """Return the format that an op computes in; fp32 for all but matmuls."""
    if call.kind != MATMUL or call.dtype is None:
        return "fp32"
    return FORMATS.get(call.dtype, "fp32")


@dataclass(frozen=True)
class PlacedOps:
    """Similar ops, as one mark on a roofline.

    op, kind: as in `OpCall`
    calls:    their number
    seconds:  of all together
    share:    of the time of all ops on the roofline
    bound:    what takes the longest: "launch", "memory" or "compute"
    """

    op: str
    kind: str
    calls: int
    flops: int
    bytes: int
    seconds: float
    share: float
    bound: Bound

    @property
    def intensity(self) -> float:
        """FLOPs per byte; 0 for ops whose FLOPs are not counted."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_per_second(self) -> float:
        """How high the mark is."""
        return self.flops / self.seconds


def place(roofline: Roofline, calls: Iterable[OpCall]) -> tuple[PlacedOps, ...]:
    """Place ops on a roofline, the longest first: matmuls by size and format, the others by name.

    Raises KeyError for a matmul in a format that the roofline has no peak for.
    """
    groups: dict[tuple[object, ...], list[OpCall]] = {}
    for call in calls:
        alike = (call.flops, call.bytes) if call.flops else (roofline.bound(call),)
        groups.setdefault((call.op, call.kind, format_of(call), *alike), []).append(call)
    whole = sum(map(roofline.total, groups.values()))
    placed = [
        PlacedOps(
            op=same[0].op,
            kind=same[0].kind,
            calls=len(same),
            flops=totals(same).flops,
            bytes=totals(same).bytes,
            seconds=roofline.total(same),
            share=roofline.total(same) / whole,
            bound=roofline.bound(same[0]),
        )
        for same in groups.values()
    ]
    return tuple(sorted(placed, key=lambda one: -one.seconds))
