"""Count the collectives of a training step on many ranks, in one process: kind, dtype, bytes and
phase of each call.

torch's fake process group claims to have 64 ranks and sends nothing. DDP and FSDP2 run on it
unchanged, as rank 0, and each collective that they call is recorded. The fake group returns no real
sums, so the model's numbers mean nothing; which calls are made, and how large they are, does not
depend on them. Nothing is timed.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
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
    elements: of the whole tensor: an all-gather's output, the others' input, padding included; 0
              for an all-to-all or a barrier, whose sizes are not read
    bytes:    of these elements; nccl-tests counts sizes in the same way
    phase:    "construction" is before the step; "forward" inside a module's call, "backward" inside
              autograd, "optimizer" inside optimizer.step(); "other" is the rest of the step, such
              as clipping
    ranks:    size of the group that calls it
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
    """Build a model on a fake group of `ranks` ranks, train it, and return its collectives: those
    of `build`, then those of one step.

    build: makes model, optimizer and whatever else a step needs; DDP and `fully_shard` find the
           group on their own
    step:  takes what `build` returned, and runs one training step: real tensors, on the CPU

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
        for _ in range(2):  # DDP rebuilds its buckets, and broadcasts them, in the second step
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
    # importing it registers the "fake" backend
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # torch wraps it, to name the rank, and never takes the wrapper off
    excepthook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


class _Counter(CollectiveWatch):
    """Record each collective with its phase, known from torch's global hooks on modules and
    optimizers, and give its caller a handle that has a result.
    """

    def __init__(self) -> None:
        super().__init__(ask=self._record)
        self.calls: list[CollectiveCall] = []
        self.started = False
        self._running = Counter[str]()  # nested calls of modules and optimizers

    def __enter__(self) -> _Counter:
        enter, leave = self._running.update, self._running.subtract
        self._handles = [
            register_module_forward_pre_hook(lambda *_: enter(["modules"])),
            register_module_forward_hook(lambda *_: leave(["modules"]), always_call=True),
            register_optimizer_step_pre_hook(lambda *_: enter(["optimizers"])),
            register_optimizer_step_post_hook(lambda *_: leave(["optimizers"])),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _phase(self) -> Phase:
        if not self.started:
            return "construction"
        # inside autograd, where a checkpointed forward pass may run, too
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if self._running["modules"]:
            return "forward"
        return "optimizer" if self._running["optimizers"] else "other"

    def _record(self, collective: Collective) -> None:
        name, dtype, ranks = collective.name, collective.dtype, len(collective.group)
        elements = collective.elements * (ranks if name == "all_gather" else 1)
        size = elements * getattr(torch, dtype).itemsize if dtype else 0
        self.calls.append(CollectiveCall(name, dtype, elements, size, self._phase(), ranks))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        # The fake group's handle resolves to None, but DDP needs the reduced bucket.
        if func is torch.ops.c10d.allreduce_.default and isinstance(result, tuple):
            future: Future[list[Tensor]] = Future()
            future.set_result(result[0])
            c10d: Any = torch._C._distributed_c10d
            return result[0], c10d._create_work_from_future(future).boxed()
        return result
