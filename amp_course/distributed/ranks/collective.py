"""Watch the collectives that a rank calls: each is asked for before it starts, so that none is left
waiting forever.

A collective hangs if one rank of its group never calls it. No rank can see that; the process that
started them can. So before a collective starts, its rank asks for it and waits for the word. `pool`
gives that once all ranks of the group ask for the same one, and says who is missing if that cannot
happen any more.
"""

from __future__ import annotations

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
RETURNED = "returned"  # no collective of torch's: an answer has ended a case, and waits for others

# What people call the ops. torch spells them "allreduce_", "_allgather_base_", and so on; others,
# such as sends, need nobody's word.
_NAMES = (
    "all_reduce",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "reduce",
    "gather",
    "scatter",
    "broadcast",
    "monitored_barrier",
    "barrier",
)
# what all ranks must have alike
_SENT = ("tensors", "input_tensors", "input_tensor", "input", "inputs", "input_list")
# nothing is sent, or something else by each rank
_SHAPELESS = ("barrier", "monitored_barrier", "all_to_all")


@dataclass(frozen=True)
class Collective:
    """One call of a collective on one rank.

    name:   "all_reduce", as people call it
    group:  the ranks that have to call it
    shapes: of the tensors that this rank puts in, whose dtype is `dtype`; both empty where ranks
            need not agree on them
    root:   of a broadcast, reduce, gather or scatter; −1 for the others
    """

    name: str
    group: tuple[int, ...]
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    root: int = -1

    @property
    def elements(self) -> int:
        """How many numbers this rank puts in."""
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
        article = "an" if self.dtype[0] in "ai" else "a"
        return f"{what} of {article} {self.dtype} tensor of shape {self.shapes[0]}"


class Stopped(BaseException):
    """The collective that this rank waits for cannot happen any more; the message says why. No
    `except Exception` catches it.

    case: in which case of an exercise, if it was in one
    """

    case = ""

    def __init__(self, why: str, collective: Collective) -> None:
        super().__init__(why)
        self.collective = collective


class CollectiveWatch(TorchDispatchMode):
    """Ask for each collective before it runs, and keep a list of those that did.

    ask:     gets the collective; raises Stopped if it can never complete
    current: the one that watches over this process's work, if any does
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

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor's own code comes first; its collectives come here again
        if func.namespace in ("c10d", "_c10d_functional") and (
            collective := _read(func, args, kwargs or {})
        ):
            self.ask(collective)
            self.called.append(collective)
        return func(*args, **(kwargs or {}))


def _read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Collective | None:
    op = func._schema.name.split("::")[1].replace("_", "")
    name = next((name for name in _NAMES if op.startswith(name.replace("_", ""))), None)
    if name is None:
        return None
    names = (argument.name for argument in func._schema.arguments)
    given = dict(zip(names, args, strict=False)) | kwargs
    group = _group(given)
    root = next((given[key] for key in ("root_rank", "src") if key in given), -1)
    inputs = ("output_tensors",) if name == "scatter" else _SENT
    sent = next((given[key] for key in inputs if key in given), None)
    tensors = [] if name in _SHAPELESS else list(tensors_in(sent))
    return Collective(
        name,
        group,
        " and ".join(sorted({dtype_name(tensor.dtype) for tensor in tensors})),
        tuple(tuple(tensor.shape) for tensor in tensors),
        group[root] if root >= 0 else -1,
    )


def _group(given: dict[str, Any]) -> tuple[int, ...]:
    if "group_name" in given:
        group = given["group_name"]
        if isinstance(group, str):
            group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    else:
        group = dist.ProcessGroup.unbox(given["process_group"])
    return tuple(dist.get_process_group_ranks(group))
