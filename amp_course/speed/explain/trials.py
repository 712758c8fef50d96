"""Try on copies what advice would gain: matmuls in other dtypes or sizes, and fused optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from amp_course.kit.measure import clock
from amp_course.speed.counting import MATMUL, Layout, Replay, aten_ops
from amp_course.speed.explain.evidence import Evidence
from amp_course.speed.machine import free_memory

_MOST_SHAPES, _COVER = 12, 0.95  # of the matmuls' FLOPs
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PADDED = aten_ops("mm addmm bmm baddbmm")


@dataclass(frozen=True)
class MatmulTrial:
    """A matmul of the step, and its time in other ways.

    number:  of the call in the evidence
    count:   how often the step runs it
    seconds: as the step runs it
    other:   dtype → seconds
    padded:  seconds with sizes rounded up; None if they are multiples of 8
    """

    number: int
    count: int
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
    seconds: float
    other: dict[torch.dtype, float]
    padded: float | None

    def gain(self, dtype: torch.dtype) -> float:
        """Return the seconds a step that another dtype would save; negative if it is slower."""
        return self.count * (self.seconds - self.other[dtype]) if dtype in self.other else 0.0


def try_matmuls(
    evidence: Evidence, device: torch.device, dtypes: Sequence[torch.dtype], seconds: float
) -> tuple[MatmulTrial, ...]:
    """Time the step's largest matmuls as they are, in other dtypes and with rounded sizes."""
    found: dict[str, list[int]] = {}
    for number, (call, replay) in enumerate(zip(evidence.calls, evidence.replays, strict=True)):
        if call.kind == MATMUL and call.dtype in _FLOATS:
            found.setdefault(f"{replay.func}{replay.args}{replay.kwargs}", []).append(number)
    whole = sum(evidence.calls[number].flops for group in found.values() for number in group)
    groups = sorted(
        found.values(), key=lambda group: len(group) * evidence.calls[group[0]].flops, reverse=True
    )
    trials, covered, ends = [], 0, time.perf_counter() + seconds
    for group in groups[:_MOST_SHAPES]:
        if covered > _COVER * whole or time.perf_counter() > ends:
            break
        call = evidence.calls[group[0]]
        covered += len(group) * call.flops
        trial = _try_matmul(evidence, group, device, dtypes, seconds / _MOST_SHAPES)
        if trial:
            trials.append(trial)
    return tuple(trials)


def _try_matmul(
    evidence: Evidence,
    group: list[int],
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    budget: float,
) -> MatmulTrial | None:
    replay, call = evidence.replays[group[0]], evidence.calls[group[0]]
    assert call.dtype is not None
    ways: dict[Any, Replay] = {"as it is": replay}
    ways |= {dtype: _in_dtype(replay, dtype) for dtype in dtypes if dtype != call.dtype}
    if padded := _padded(replay):
        ways["padded"] = padded
    best = _interleaved({name: way.on_new_tensors() for name, way in ways.items()}, device, budget)
    if "as it is" not in best:
        return None
    others = {dtype: best[dtype] for dtype in dtypes if dtype in best}
    times = (best["as it is"], others, best.get("padded"))
    return MatmulTrial(group[0], len(group), call.dtype, call.shapes, *times)


def _interleaved(
    ways: dict[Any, Callable[[], Any]], device: torch.device, budget: float
) -> dict[Any, float]:
    """Return the fastest seconds of each way; one that raises is left out."""
    best: dict[Any, float] = {}
    left, rounds, ends = dict(ways), 0, time.perf_counter() + budget
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        while rounds < 2 or (rounds < 100 and time.perf_counter() < ends):
            for name in [*left]:
                try:
                    taken = clock(left[name], device)
                except (RuntimeError, TypeError, ValueError):
                    del left[name]
                    continue
                # the first call warms up, unless it is too slow to be called again
                if rounds or taken > budget:
                    best[name] = min(best.get(name, taken), taken)
                if taken > budget:
                    del left[name]
            rounds += 1
    return best


def _in_dtype(replay: Replay, dtype: torch.dtype) -> Replay:
    def swap(layout: Layout) -> Layout:
        return replace(layout, dtype=dtype) if layout.dtype in _FLOATS else layout

    return _with_layouts(replay, swap)


def _with_layouts(replay: Replay, change: Callable[[Layout], Layout]) -> Replay:
    return Replay(replay.func, *tree_map_only(Layout, change, (replay.args, replay.kwargs)))


def _padded(replay: Replay) -> Replay | None:
    """Return a matmul with sizes rounded up to multiples of 8, or of 64 above 64, or None."""
    if getattr(replay.func, "overloadpacket", None) not in _PADDED:
        return None
    padded = _with_layouts(replay, _pad)
    return None if padded.layouts() == replay.layouts() else padded


def _pad(layout: Layout) -> Layout:
    def round_up(size: int) -> int:
        unit = 64 if size > 64 else 8
        return size if size % 8 == 0 or size < 8 else -(-size // unit) * unit

    shape = tuple(map(round_up, layout.shape))
    if shape == layout.shape:
        return layout
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: layout.strides[axis]):
        if layout.strides[axis]:
            strides[axis], step = step, step * shape[axis]
    return replace(layout, shape=shape, strides=tuple(strides))


def try_fused(optimizer: torch.optim.Optimizer, device: torch.device) -> float | None:
    """Return the fused optimizer's time over the current one's, on copies; None if there is none,
    or no memory for copies.
    """
    groups = optimizer.param_groups
    if any(group.get("fused") for group in groups) or "fused" not in optimizer.defaults:
        return None
    parameters = [one for group in groups for one in group["params"] if one.requires_grad]
    needed, free = sum(8 * one.nbytes for one in parameters), free_memory(device)
    if not parameters or (free is not None and needed > free / 2):
        return None
    try:
        ways = {name: _stepper(optimizer, name == "fused") for name in ("current", "fused")}
        best = _interleaved(ways, device, 0.3)
    except (RuntimeError, TypeError, ValueError):
        return None
    return best["fused"] / best["current"] if len(best) == 2 else None


def _stepper(optimizer: torch.optim.Optimizer, fused: bool) -> Callable[[], Any]:
    groups = []
    for group in optimizer.param_groups:
        trained = [one for one in group["params"] if one.requires_grad]
        copies = [one.detach().clone().requires_grad_() for one in trained]
        for one in copies:
            one.grad = torch.ones_like(one)
        settings = {name: value for name, value in group.items() if name in optimizer.defaults}
        if fused:
            settings |= {"fused": True, "foreach": None}
        if copies:
            groups.append({**settings, "params": copies})
    defaults = {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}
    twin: Any = type(optimizer)(groups, **defaults)
    return twin.step
