"""Watch the collectives that a rank calls: it asks before each one, so that none waits forever.

A collective hangs if one rank of its group never calls it. No rank can see that; the process that
started them can. So a rank asks before it starts a collective. `pool` answers "go" once all ranks
of the group ask for the same one, and says which rank is missing if that cannot happen any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.kit.dtypes import dtype_name
from amp_course.kit.tensors import tensors_in

ENDED_GROUP = (
    "your code ended the process group. It belongs to the program that opened it: leave it open"
)
RETURNED = "returned"  # not a collective: an answer has finished a case, and waits for the others

# The usual names; torch's ops are "allreduce_", "_allgather_base_", and so on. Others, such as
# sends, are not watched.
_OPS = (
    "all_reduce all_gather all_to_all reduce_scatter reduce gather scatter broadcast "
    "monitored_barrier barrier"
)
_NAMES = {name.replace("_", ""): name for name in _OPS.split()}
# the arguments that must have the same shapes and dtype on all ranks
_INPUTS = ("tensors", "input_tensors", "input_tensor", "input", "inputs", "input_list")
# their shapes may differ between ranks, or there are none
_SHAPELESS = ("barrier", "monitored_barrier", "all_to_all")


@dataclass(frozen=True)
class Collective:
    """One call of a collective on one rank.

    name:   "all_reduce"
    group:  the ranks that have to call it
    shapes: of this rank's inputs, whose dtype is `dtype`; both empty where ranks need not agree
    root:   of a broadcast, reduce, gather or scatter; −1 for the others
    """

    name: str
    group: tuple[int, ...]
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    root: int = -1

    @property
    def elements(self) -> int:
        """How many numbers this rank's inputs have."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def __str__(self) -> str:
        """Describe it: "`all_reduce` of a float32 tensor of shape (1,)"."""
        what = f"`{self.name}`"
        if self.root >= 0:
            what += f" with root rank {self.root}"
        if not self.shapes:
            return what
        if len(self.shapes) > 1:
            return f"{what} of {len(self.shapes)} {self.dtype} tensors of {self.elements:,} numbers"
        article = "an" if self.dtype.startswith("i") else "a"
        return f"{what} of {article} {self.dtype} tensor of shape {self.shapes[0]}"


class Stopped(BaseException):
    """The collective that this rank waits for can never complete; the message says why. Not an
    Exception, so that `except Exception` does not catch it.

    signature: which collective of the case it was, how many numbers, and why; no shape or dtype
    case:      of an exercise, if any
    """

    case = ""

    def __init__(self, rank: int, collective: Collective, why: str, number: int) -> None:
        super().__init__(f"rank {rank}'s {collective} can never complete: {why}")
        self.collective = collective
        size = f"{collective.name} of {collective.elements}"
        why = re.sub(r"` [^.]* instead", "` instead", why)
        self.signature = f"collective number {number}: rank {rank}'s {size}: {why}"


class CollectiveWatch(TorchDispatchMode):
    """Ask before each collective, and list those that ran.

    ask:     takes the collective; raises Stopped if it can never complete
    current: the active watch of this process
    """

    current: CollectiveWatch | None = None

    def __init__(self, ask: Callable[[Collective], None]) -> None:
        super().__init__()
        self.called: list[Collective] = []
        self.ask = ask

    def __enter__(self) -> CollectiveWatch:
        CollectiveWatch.current = self
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        CollectiveWatch.current = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # run DTensor's own code first; its collectives come back here
        if func.namespace in ("c10d", "_c10d_functional") and (
            collective := _read(func, args, kwargs or {})
        ):
            self.ask(collective)
            self.called.append(collective)
        return func(*args, **(kwargs or {}))


def _read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Collective | None:
    op = func._schema.name.split("::")[1].replace("_", "")
    name = next((name for prefix, name in _NAMES.items() if op.startswith(prefix)), None)
    if name is None:
        return None
    names = (argument.name for argument in func._schema.arguments)
    arguments = dict(zip(names, args, strict=False)) | kwargs
    group = _group(arguments)
    root = next((arguments[key] for key in ("root_rank", "src") if key in arguments), -1)
    inputs = ("output_tensors",) if name == "scatter" else _INPUTS
    sent = next((arguments[key] for key in inputs if key in arguments), None)
    tensors = [] if name in _SHAPELESS else list(tensors_in(sent))
    return Collective(
        name,
        group,
        " and ".join(sorted({dtype_name(tensor.dtype) for tensor in tensors})),
        tuple(tuple(tensor.shape) for tensor in tensors),
        group[root] if root >= 0 else -1,
    )


def _group(arguments: dict[str, Any]) -> tuple[int, ...]:
    if "group_name" in arguments:
        group = arguments["group_name"]
        if isinstance(group, str):
            group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    else:
        group = dist.ProcessGroup.unbox(arguments["process_group"])
    return tuple(dist.get_process_group_ranks(group))
