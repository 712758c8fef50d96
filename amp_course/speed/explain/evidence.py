"""Look at one step op by op: which line reads values, which tensor is cast again and again,
which optimizers step.
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

from amp_course.speed.counting import CAST, MATMUL, OpCall, OpCounter, Replay
from amp_course.speed.explain.kinds import LOW
from amp_course.speed.explain.sampling import Line, reader_line

_READS = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.is_nonzero,
    torch.ops.aten.equal,
    torch.ops.aten.nonzero,
    torch.ops.aten._unique2,
}
_MOST_KEPT = 2**29  # bytes; casts after that are not looked at


@dataclass(frozen=True)
class CastSeen:
    """One cast: of which tensor, from and to what, and where in the reader's code."""

    # address, version, shape, strides: the same for the same unchanged tensor
    source: tuple[Any, ...]
    before: torch.dtype
    after: torch.dtype
    bytes: int
    line: Line | None
    forward: bool = True


@dataclass
class Evidence:
    """What one step did, op by op."""

    calls: list[OpCall] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    lines: list[Line | None] = field(default_factory=list)  # one a call
    reads: Counter[Line | None] = field(default_factory=Counter)  # the optimizer's own aside
    casts: list[CastSeen] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    ran_backward: bool = False

    @property
    def uses_low(self) -> bool:
        """Whether a matmul ran in 16 bits or fewer."""
        return any(call.dtype in LOW for call in self.calls if call.kind == MATMUL)

    def matmul_devices(self) -> set[str]:
        """Return where matmuls ran: {"cuda:0"}."""
        pairs = zip(self.calls, self.replays, strict=True)
        return {replay.layouts()[0].device for call, replay in pairs if call.kind == MATMUL}

    def repeated_casts(self) -> list[tuple[CastSeen, int]]:
        """Return the casts of one unchanged tensor to one dtype that ran more than once,
        with their number, largest first.
        """
        counts = Counter((cast.source, cast.after) for cast in self.casts)
        first = {(cast.source, cast.after): cast for cast in reversed(self.casts)}
        found = [(first[key], count) for key, count in counts.items() if count > 1]
        return sorted(found, key=lambda pair: pair[0].bytes * pair[1], reverse=True)


class _Watch(OpCounter):
    """Count ops, and note who asked for reads and casts."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self.calls, self.replays, self.evidence = evidence.calls, evidence.replays, evidence
        # what was cast stays alive, so that no other tensor gets its address
        self.kept: list[Any] = []
        self.room = _MOST_KEPT

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, evidence = len(self.calls), self.evidence
        out = super().__torch_dispatch__(func, types, args, kwargs)
        packet = func.overloadpacket
        if packet in _READS:
            frame = sys._getframe(1)
            if not _in_optimizer(frame):
                evidence.reads[reader_line(frame)] += 1
        if len(self.calls) == before:
            return out
        line = reader_line(sys._getframe(1))
        evidence.lines.append(line)
        call = self.calls[-1]
        tensors = [one for one in (*args, out) if isinstance(one, Tensor)]
        evidence.devices.update(one.device.type for one in tensors if one.ndim)
        backward = torch._C._current_graph_task_id() != -1
        evidence.ran_backward = evidence.ran_backward or backward
        if call.kind == CAST and len(tensors) > 1 and self.room > 0:
            source, target = tensors[-2], tensors[-1]
            self.kept.append(source)
            self.room -= source.nbytes
            shape = (tuple(source.shape), tuple(source.stride()))
            same = (source.data_ptr(), source._version, *shape)
            evidence.casts.append(
                CastSeen(same, source.dtype, target.dtype, call.bytes, line, not backward)
            )
        return out


def _in_optimizer(frame: Any) -> bool:
    """Return True if torch's optimizer asked: on a CPU, its reads of its step count cost little."""
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
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: _note(evidence, optimizer))
    try:
        with _Watch(evidence):
            yield
    finally:
        hook.remove()


def _note(evidence: Evidence, optimizer: torch.optim.Optimizer) -> None:
    if not any(optimizer is one for one in evidence.optimizers):
        evidence.optimizers.append(optimizer)
