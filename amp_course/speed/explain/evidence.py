"""Record one step op by op: which lines read values, which tensors are cast repeatedly, which
optimizers step.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_course.speed.counting import CAST, MATMUL, OpCall, OpCounter, Replay, aten_ops
from amp_course.speed.explain.kinds import LOW
from amp_course.speed.explain.sampling import Line, user_line

_READS = aten_ops("_local_scalar_dense is_nonzero equal nonzero _unique2")
_MOST_BYTES = 2**29  # of sources of casts; later casts are not recorded


@dataclass(frozen=True)
class CastRecord:
    """One cast: of which tensor, from and to what, and where in the user's code.

    source: address, version, shape and strides, which an unchanged tensor keeps
    """

    source: tuple[Any, ...]
    before: torch.dtype
    after: torch.dtype
    bytes: int
    line: Line | None
    forward: bool = True


@dataclass
class Evidence:
    """What one step did, op by op.

    lines: of each call
    reads: of values by line, without the optimizer's own
    """

    calls: list[OpCall] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    lines: list[Line | None] = field(default_factory=list)
    reads: Counter[Line | None] = field(default_factory=Counter)
    casts: list[CastRecord] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    ran_backward: bool = False

    @property
    def uses_low(self) -> bool:
        """True if a matmul ran in 16 bits or fewer."""
        return any(call.dtype in LOW for call in self.calls if call.kind == MATMUL)

    def matmul_devices(self) -> set[str]:
        """Return where matmuls ran: {"cuda:0"}."""
        pairs = zip(self.calls, self.replays, strict=True)
        return {replay.layouts()[0].device for call, replay in pairs if call.kind == MATMUL}

    def repeated_casts(self) -> list[tuple[CastRecord, int]]:
        """Return the casts of an unchanged tensor to one dtype that ran more than once, and how
        often, largest first.
        """
        groups: dict[Any, list[CastRecord]] = {}
        for cast in self.casts:
            groups.setdefault((cast.source, cast.after), []).append(cast)
        found = [(group[0], len(group)) for group in groups.values() if len(group) > 1]
        return sorted(found, key=lambda pair: pair[0].bytes * pair[1], reverse=True)


class _Watch(OpCounter):
    """Count ops, and record the lines of reads and casts."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self.calls, self.replays, self.evidence = evidence.calls, evidence.replays, evidence
        # sources of casts stay alive, so that no other tensor gets their address
        self.sources: list[Tensor] = []
        self.room = _MOST_BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, evidence = len(self.calls), self.evidence
        out = super().__torch_dispatch__(func, types, args, kwargs)
        frame = sys._getframe(1)
        if func.overloadpacket in _READS and not _in_optimizer(frame):
            evidence.reads[user_line(frame)] += 1
        if len(self.calls) == before:
            return out
        line = user_line(frame)
        evidence.lines.append(line)
        call = self.calls[-1]
        tensors = [one for one in (*args, out) if isinstance(one, Tensor)]
        evidence.devices.update(one.device.type for one in tensors if one.ndim)
        backward = torch._C._current_graph_task_id() != -1
        evidence.ran_backward = evidence.ran_backward or backward
        if call.kind == CAST and len(tensors) > 1 and self.room > 0:
            source, target = tensors[-2:]
            self.sources.append(source)
            self.room -= source.nbytes
            shape = (tuple(source.shape), tuple(source.stride()))
            key = (source.data_ptr(), source._version, *shape)
            evidence.casts.append(
                CastRecord(key, source.dtype, target.dtype, call.bytes, line, not backward)
            )
        return out


def _in_optimizer(frame: Any) -> bool:
    """Return True in torch's optimizers, whose reads of their step count cost little on a CPU."""
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("torch.optim"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def watched(evidence: Evidence) -> Iterator[None]:
    """Fill `evidence` with what the body does."""

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(optimizer is one for one in evidence.optimizers):
            evidence.optimizers.append(optimizer)

    hook = register_optimizer_step_pre_hook(record)
    try:
        with _Watch(evidence):
            yield
    finally:
        hook.remove()
