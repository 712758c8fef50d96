"""What a trace consists of: ops, calls of modules, and a row for each module."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

ROOT, LOSS = ("(model)", "(loss)")  # the module paths of the model itself and of its loss
Phase = Literal["forward", "backward"]
CastBy = Literal["", "autocast", "model", "op", "gradient"]


@dataclass(frozen=True)
class Op:
    """One op that ran.

    module: the path of the module that called it
    call:   the operator that Python called, such as "matmul" for `@`; in the backward pass the node
            of autograd's graph
    op:     what ran
    inputs, outputs: dtypes of its tensors
    cast:   if it is a cast, who made it: "autocast"; "model" for `.float()` and the like; "op" if
            the called operator casts itself, as `softmax(dtype=…)` does; "gradient" for autograd's
            way back through a cast of autocast's
    source: what was cast, a weight's name or "activation"; bytes: the size of the copy
    reused: weights whose copy already existed, from an earlier use in this region
    """

    phase: Phase
    module: str
    call: str
    op: str
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    cast: CastBy = ""
    source: str = ""
    bytes: int = 0
    reused: tuple[str, ...] = ()
    view: bool = False


@dataclass
class Call:
    """One call of a module: the dtypes of all its inputs and outputs."""

    module: str
    kind: str
    inputs: tuple[torch.dtype, ...]
    start: int  # autograd's sequence number when it began, and when it ended
    end: int = sys.maxsize
    outputs: tuple[torch.dtype, ...] = ()


@dataclass(frozen=True)
class ModuleRow:
    """What happened in one module, without the modules inside it.

    inputs, outputs:        float dtypes of all `calls`, each once
    casts, cast_bytes:      the casts that autocast inserted before its ops
    reused:                 how often a weight came from the cache
    computed:               dtypes of the results of its backward ops
    back_casts, back_bytes: the casts of gradients on their way back
    """

    path: str
    kind: str
    calls: int
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    casts: int
    cast_bytes: int
    reused: int
    computed: tuple[torch.dtype, ...]
    back_casts: int
    back_bytes: int


@dataclass(frozen=True)
class Record:
    """What a model did under autocast: iterate over its ops, or look up `record["linear1"]`.

    dtype: what autocast lowered to, None for off
    fake:  True if traced on fake tensors, because this machine lacks the device
    notes: such as why there is no backward pass
    """

    name: str
    device_type: str
    dtype: torch.dtype | None
    fake: bool
    ops: tuple[Op, ...] = field(repr=False)
    modules: tuple[ModuleRow, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return a module's row. Raises KeyError, with the known paths, if it was not called."""
        rows = {row.path: row for row in self.modules}
        if path not in rows:
            raise KeyError(f"no module {path!r} was called; there are: {', '.join(rows)}")
        return rows[path]

    def of(self, path: str, phase: Phase = "forward") -> list[Op]:
        """Return the ops of one module in the order in which they ran."""
        return [op for op in self.ops if op.module == path and op.phase == phase]

    def casts(self, phase: Phase = "forward") -> list[Op]:
        """Return the casts that autocast inserted or, for "backward", those of their gradients.

        If a checkpoint repeats a part of the forward pass during the backward pass, its casts
        belong to the first kind.
        """
        kind = "autocast" if phase == "forward" else "gradient"
        return [op for op in self.ops if op.cast == kind]

    def cast_bytes(self, phase: Phase = "forward") -> int:
        """Return the bytes of the copies that these casts made."""
        return sum(op.bytes for op in self.casts(phase))

    @property
    def recomputed(self) -> list[Op]:
        """The casts that autocast inserted while a checkpoint recomputed its forward pass."""
        return [op for op in self.casts() if op.phase == "backward"]

    @property
    def has_backward(self) -> bool:
        """True if the backward pass was traced."""
        return any(op.phase == "backward" for op in self.ops)


def dtypes(tensors: Iterable[Tensor]) -> tuple[torch.dtype, ...]:
    """Return the dtype of each tensor, in order."""
    return tuple(tensor.dtype for tensor in tensors)


def floats(found: Iterator[torch.dtype]) -> tuple[torch.dtype, ...]:
    """Return the float and complex dtypes among some, each once, in order."""
    kept = (dtype for dtype in found if dtype.is_floating_point or dtype.is_complex)
    return tuple(dict.fromkeys(kept))


def module_rows(
    calls: Iterable[Call], ops: Iterable[Op], kind_of_root: str
) -> tuple[ModuleRow, ...]:
    """Sum up calls and ops, module by module, in the order of the first call."""
    calls, ops = list(calls), list(ops)
    rows = []
    for path in dict.fromkeys([call.module for call in calls] + [op.module for op in ops]):
        called = [call for call in calls if call.module == path]
        own = [op for op in ops if op.module == path]
        inserted = [op for op in own if op.cast == "autocast"]
        back = [op for op in own if op.cast == "gradient"]
        computed = [op for op in own if op.phase == "backward" and not op.cast and not op.view]
        rows.append(
            ModuleRow(
                path,
                called[0].kind if called else kind_of_root if path == ROOT else "",
                len(called),
                floats(dtype for call in called for dtype in call.inputs),
                floats(dtype for call in called for dtype in call.outputs),
                len(inserted),
                sum(op.bytes for op in inserted),
                sum(len(op.reused) for op in own),
                floats(dtype for op in computed for dtype in op.outputs),
                len(back),
                sum(op.bytes for op in back),
            )
        )
    return tuple(rows)
