"""Count the collectives of a training step on many ranks, in one process: kind, dtype, bytes and
phase of each call.

torch's fake process group claims to have 64 ranks, and talks to nobody. DDP and FSDP2 run on it
unchanged, in what they take for rank 0, and each collective that they call is noted. What the fake
group returns is not what real ranks would compute, so the model's numbers mean nothing; which calls
are made, and how large they are, does not depend on them. Nothing is timed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from amp_course.distributed.ranks.collective import Collective, CollectiveWatch

Phase = Literal["construction", "forward", "backward", "optimizer", "other"]


@dataclass(frozen=True)
class CollectiveCall:
    """One collective that a rank called.

    kind:     "all_reduce", "all_gather", "reduce_scatter", "broadcast"
    dtype:    of the tensor that travels, "bfloat16"
    elements: of the whole tensor: what an all-gather returns, what the others take, padding
              included; 0 for an all-to-all or a barrier, whose sizes are not read
    bytes:    of these elements; nccl-tests counts sizes in the same way
    phase:    "construction" is before the step; "forward" inside a module's call, "backward" inside
              autograd, "optimizer" inside optimizer.step(); "other" is the rest of the step, such
              as clipping
    ranks:    in the group that calls it
    """

    kind: str
    dtype: str
    elements: int
    bytes: int
    phase: Phase
    ranks: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends in a ring: bytes · (n−1)/n, twice that for an all-reduce; all
        of them for a broadcast.

        Source: the factors of the bus bandwidth in NVIDIA/nccl-tests, doc/PERFORMANCE.md.
        """
        special = {"all_reduce": 2 * (self.ranks - 1), "broadcast": self.ranks}
        return self.bytes * special.get(self.kind, self.ranks - 1) / self.ranks


def count_collectives(
    build: Callable[[], Any], step: Callable[[Any], object], ranks: int = 64
) -> tuple[CollectiveCall, ...]:
    """Build a model on a fake group of `ranks` ranks, train it, and return its collectives: of
    `build`, then of one step.

    build: makes model, optimizer and whatever else a step needs; DDP and `fully_shard` find the
           group on their own
    step:  gets what `build` returned, and runs one training step: real tensors, on the CPU

    Raises RuntimeError if this process has a default process group already.
    Example: count_collectives(setup.build, setup.step)[-1] →
             CollectiveCall("all_reduce", "float32", elements=12480, bytes=49920, phase="backward",
             ranks=64)
    """
    counter = _Counter()
    with torch.random.fork_rng(devices=[]), _fake_group(ranks), counter:
        built = build()
        made = tuple(counter.calls)
        counter.started = True
        for _ in range(2):  # DDP sorts its buckets again, and tells all ranks, in the second step
            step(built)
        counter.calls.clear()
        step(built)
        return (*made, *counter.calls)


def total_bytes(calls: Iterable[CollectiveCall]) -> dict[str, int]:
    """Add up the bytes of collectives by dtype: {"bfloat16": 24960, "float32": 49920}."""
    totals: dict[str, int] = {}
    for call in calls:
        totals[call.dtype] = totals.get(call.dtype, 0) + call.bytes
    return totals


@contextlib.contextmanager
def _fake_group(ranks: int) -> Iterator[None]:
    if dist.is_initialized():
        raise RuntimeError(
            "this process has a default process group already, and the fake one would take its "
            "place: call this in a process without one, or call "
            "torch.distributed.destroy_process_group() first"
        )
    # importing it registers the backend "fake"
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # torch puts its own around it, which names the rank, and leaves it there
    excepthook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


class _Counter(CollectiveWatch):
    """Note each collective with its phase, which torch's own hooks on every module and optimizer
    tell, and give its caller a handle that has a result.
    """

    def __init__(self) -> None:
        super().__init__(ask=self._note)
        self.calls: list[CollectiveCall] = []
        self.started = False
        self._modules = self._optimizers = 0  # how many calls are running, one inside the other

    def __enter__(self) -> _Counter:
        self._handles = [
            register_module_forward_pre_hook(lambda *_: self._count(modules=1)),
            register_module_forward_hook(lambda *_: self._count(modules=-1), always_call=True),
            register_optimizer_step_pre_hook(lambda *_: self._count(optimizers=1)),
            register_optimizer_step_post_hook(lambda *_: self._count(optimizers=-1)),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _count(self, modules: int = 0, optimizers: int = 0) -> None:
        self._modules += modules
        self._optimizers += optimizers

    def _phase(self) -> Phase:
        if not self.started:
            return "construction"
        # autograd is at work; a checkpointed forward pass in it, too
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "forward" if self._modules else "optimizer" if self._optimizers else "other"

    def _note(self, collective: Collective) -> None:
        name, dtype, ranks = collective.name, collective.dtype, len(collective.group)
        elements = collective.elements * (ranks if name == "all_gather" else 1)
        size = elements * getattr(torch, dtype).itemsize if dtype else 0
        self.calls.append(CollectiveCall(name, dtype, elements, size, self._phase(), ranks))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        # The fake group's handle resolves to None, and DDP wants the reduced bucket.
        if func is torch.ops.c10d.allreduce_.default and isinstance(result, tuple):
            future: Future[list[Tensor]] = Future()
            future.set_result(result[0])
            c10d: Any = torch._C._distributed_c10d
            return result[0], c10d._create_work_from_future(future).boxed()
        return result
