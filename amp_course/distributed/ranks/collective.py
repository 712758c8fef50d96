"""Watch the collectives that a rank calls: each is asked for before it starts, so that none is left
waiting forever.

A collective hangs if one rank of its group never calls it. No rank can see that; the process that
started them can. So before a collective starts, its rank asks for it and waits for the word. `pool`
gives that once all ranks of the group ask for the same one, and says who is missing if that cannot
happen any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.kit.dtypes import dtype_name

Kind = Literal["collective", "send", "receive", "returned"]

ENDED_GROUP = (
    "your code ended the process group. It belongs to the program that opened it: leave it open"
)

# torch's name for an op → what people call it. Ops of either namespace that are not here are no
# communication.
_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
# what all ranks must have alike
_SENT = ("tensors", "input_tensors", "input_tensor", "input", "inputs", "input_list")
_SHAPELESS = {
    "barrier",
    "monitored_barrier",
    "all_to_all",
}  # nothing is sent, or something else by each rank


@dataclass(frozen=True)
class Collective:
    """One call of a collective on one rank.

    name:   "all_reduce", as people call it
    group:  the ranks that have to call it
    shapes: of the tensors that this rank puts in, whose dtype is `dtype`; both empty where ranks
            need not agree on them
    root:   of a broadcast, reduce, gather or scatter, and the other end of a send or recv; −1 for
            the others
    """

    name: str
    group: tuple[int, ...]
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    root: int = -1

    @property
    def kind(self) -> Kind:
        """A send needs no word, a recv needs a send, and all others need the whole group.

        "returned" is no collective of torch's: it says that an answer has ended a case, and waits
        for the others (`answers`).
        """
        kinds: dict[str, Kind] = {"send": "send", "recv": "receive", "returned": "returned"}
        return kinds.get(self.name, "collective")

    @property
    def elements(self) -> int:
        """How many numbers this rank puts in."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def __str__(self) -> str:
        """Describe it: "`all_reduce` of a float32 tensor of shape (1,)"."""
        at = (
            f" {'from' if self.name == 'recv' else 'to' if self.name == 'send' else 'with root'} "
            f"rank {self.root}"
        )
        what = f"`{self.name}`{at if self.root >= 0 else ''}"
        if not self.shapes:
            return what
        if len(self.shapes) > 1:
            return f"{what} of {len(self.shapes)} {self.dtype} tensors of {self.elements:,} numbers"
        return (
            f"{what} of {'an' if self.dtype[0] in 'ai' else 'a'} {self.dtype} tensor of shape "
            f"{self.shapes[0]}"
        )


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
    name = _NAMES.get(func._schema.name.split("::")[1])
    if name is None:
        return None
    given = (
        dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        | kwargs
    )
    group = _group(given)
    root = next((given[key] for key in ("root_rank", "dst", "src") if key in given), -1)
    sent = next((given[key] for key in ("output_tensors",) if name == "scatter"), None)
    if sent is None:
        sent = next((given[key] for key in _SENT if key in given), [])
    tensors = [] if name in _SHAPELESS else list(_tensors(sent))
    dtypes = {dtype_name(tensor.dtype) for tensor in tensors}
    return Collective(
        name,
        group,
        " and ".join(sorted(dtypes)),
        tuple(tuple(t.shape) for t in tensors),
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


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
