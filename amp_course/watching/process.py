"""What a training process creates, raises, saves and waits for: listeners of taps."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from amp_course.kit.tensors import has_device
from amp_course.watching.ops import Watch
from amp_course.watching.origins import Line, user_line
from amp_course.watching.taps import Original

_MOST_WEIGHTS = 300  # more are not compared one by one between ranks
_CALL_LINES = 4  # that a call may take up
_MOST_ITEMS = 100  # searched in a list of a checkpoint, which may be a replay buffer


class CreatedObjects:
    """The optimizers, scalers and schedulers that a script creates.

    new_phase: called after each new optimizer
    lines:     id of an optimizer → the line that created it
    resumed:   the script names a point where a schedule begins
    """

    def __init__(self, watch: Watch, new_phase: Callable[[], None]) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lines: dict[int, Line | None] = {}
        self.scalers: list[torch.amp.GradScaler] = []
        self.schedulers: list[Any] = []
        self.resumed = False
        self._watch, self._new_phase = watch, new_phase

    def _add(
        self, known: list[Any], original: Original, new: Any, *args: Any, **kwargs: Any
    ) -> bool:
        original(new, *args, **kwargs)
        if self._watch.paused or any(one is new for one in known):
            return False
        known.append(new)
        return True

    def new_optimizer(self, original: Original, *args: Any, **kwargs: Any) -> None:
        if self._add(self.optimizers, original, *args, **kwargs):
            self.lines[id(args[0])] = user_line()
            self._new_phase()

    def new_scaler(self, *args: Any, **kwargs: Any) -> None:
        self._add(self.scalers, *args, **kwargs)

    def new_scheduler(self, *args: Any, **kwargs: Any) -> None:
        if (line := user_line()) is not None:
            numbers = range(line.number, line.number + _CALL_LINES)
            self.resumed |= any("last_epoch" in linecache.getline(line.file, n) for n in numbers)
        self._add(self.schedulers, *args, **kwargs)


class RaisedErrors:
    """Exceptions, some of which the script may have caught.

    errors:  raised by backward passes and scalers
    escaped: descriptions of those that left one of these, or an autocast region; each one once
    """

    def __init__(self, describe: Callable[[BaseException], str]) -> None:
        self.errors: list[BaseException] = []
        self.escaped: list[str] = []
        self._describe = describe
        self._latest: BaseException | None = None

    def backward(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            self.errors.append(error)
            self._escapes(error)
            raise

    unscale = scaler_step = update = backward

    def leave_region(
        self, original: Original, region: Any, kind: Any = None, error: Any = None, at: Any = None
    ) -> Any:
        # Activation checkpointing ends its second run, in a backward pass, by an exception.
        if isinstance(error, Exception) and torch._C._current_graph_task_id() == -1:
            self._escapes(error)
        return original(region, kind, error, at)

    def _escapes(self, error: Exception) -> None:
        if error is not self._latest:
            self._latest = error
            self.escaped.append(self._describe(error))


class SavedStates:
    """What the script saves by `torch.save`.

    states: "optimizer", "scaler" and "schedule" → the line that first saved one
    """

    def __init__(self) -> None:
        self.states: dict[str, Line | None] = {}

    def save(self, original: Original, obj: Any, *args: Any, **kwargs: Any) -> Any:
        line = user_line()
        with suppress(Exception):  # an odd object must not keep the script from saving
            for kind in _states_in(obj):
                self.states.setdefault(kind, line)
        return original(obj, *args, **kwargs)


_SAVED = {
    torch.optim.Optimizer: "optimizer",
    torch.amp.GradScaler: "scaler",
    LRScheduler: "schedule",
}


def _states_in(obj: Any, depth: int = 4) -> Iterator[str]:
    """Yield which states a checkpoint holds, as objects or as their `state_dict`."""
    for kind, name in _SAVED.items():
        if isinstance(obj, kind):
            yield name
            return
    inside: Any = ()
    if isinstance(obj, Mapping):
        if {"state", "param_groups"} <= obj.keys():
            yield "optimizer"
        elif {"scale", "growth_factor"} <= obj.keys():
            yield "scaler"
        elif "_last_lr" in obj or {"last_epoch", "_step_count"} <= obj.keys():
            yield "schedule"
        else:
            inside = obj.values()
    elif isinstance(obj, (list, tuple)):
        inside = obj[:_MOST_ITEMS]
    elif hasattr(obj, "__dict__") and not isinstance(obj, (nn.Module, torch.Tensor)):
        inside = (vars(obj),)
    for value in inside if depth else ():
        yield from _states_in(value, depth - 1)


class Calls:
    """How often autograd ran, and how long the script waited.

    passes:  calls of `backward`; `by_hand`: calls of `torch.autograd.grad`
    regions: dtypes of the autocast regions; `missing_devices`: of regions that torch switched off
    waited:  seconds, for batches
    """

    def __init__(self, watch: Watch) -> None:
        self.passes = self.by_hand = 0
        self.regions: set[str] = set()
        self.missing_devices: set[str] = set()
        self.waited = 0.0
        self._watch = watch

    def grad(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        self.by_hand += 1
        return original(*args, **kwargs)

    def backward(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        self.passes += 1
        return original(*args, **kwargs)

    def enter_region(self, original: Original, region: Any) -> Any:
        if region._enabled:
            self.regions.add(str(region.fast_dtype)[6:])
        elif not has_device(region.device):
            self.missing_devices.add(region.device)
        return original(region)

    def next_batch(self, original: Original, iterator: Any) -> Any:
        """Measure the time; making a batch is no part of the training."""
        began = time.perf_counter()
        with self._watch.aside(foreign=True):
            try:
                return original(iterator)
            finally:
                self.waited += time.perf_counter() - began


class Ranks:
    """What has to be the same on all ranks, and how the script wraps its models in DDP.

    sums:    the sum of all weights after each update
    weights: for each update, pairs for each weight: its sum at the first backward pass, and the sum
             of its gradient after the last
    called:  wrapped models whose forward pass was called
    inner:   the line that called a model without its wrapper
    made:    the line that wrapped the first
    joined:  updates so far, at the end of each `with model.join()`, which allows uneven batches
    wrapped: models in DDP. They are kept until the process ends: if a script drops one while gloo's
             thread works, torch 2.13 may hang, as the destructor waits for that thread and holds
             the lock that it needs
    """

    def __init__(self, updates: Callable[[], int]) -> None:
        self.rank = os.environ.get("RANK", "")
        self.joined: list[int] = []
        self.sums: list[str] = []
        self.wrapped: list[nn.Module] = []
        self.called: set[nn.Module] = set()
        self.inner: Line | None = None
        self.made: Line | None = None
        self.weights: list[list[tuple[float, float]]] = []
        self._values: list[float] = []
        self._gradients: list[float] = []
        # Weights of wrapped models, and the nodes that add to their gradients
        self._nodes: list[tuple[torch.Tensor, Any]] = []
        self._updates = updates

    def leave_join(self, original: Original, *args: Any) -> Any:
        self.joined.append(self._updates())
        return original(*args)

    def new_wrapper(self, original: Original, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        self.wrapped.append(model)
        self.made = self.made or user_line()
        self._nodes += [(p, _accumulator(p)) for p in model.parameters() if p.requires_grad]

    def forward(self, module: nn.Module) -> None:
        # What torch sets in the wrapper's forward pass, even if `forward` itself is called
        active = nn.parallel.DistributedDataParallel._active_ddp_module
        if active is not None:
            self.called.add(active)
        elif module.training and any(one.module is module for one in self.wrapped):
            self.inner = self.inner or user_line()

    def pass_begins(self, weights: list[torch.Tensor]) -> None:
        if not self._values and _ranks() > 1 and len(weights) <= _MOST_WEIGHTS:
            self._values = list(map(_sum, weights))

    def pass_ends(self, weights: list[torch.Tensor]) -> None:
        if self._values:
            self._gradients = [0.0 if one.grad is None else _sum(one.grad) for one in weights]

    def moved(self) -> bool:
        """Return True if weights got other storage, which wrappers do not notice."""
        return any(_accumulator(p) is not node for p, node in self._nodes if p.requires_grad)

    def not_called(self, trained: list[torch.Tensor]) -> bool:
        """Return True if weights of wrapped models were trained, and no wrapper was called."""
        inside = {id(p) for one in self.wrapped for p in one.parameters()}
        return not self.called and any(id(one) in inside for one in trained)

    def end_update(self, weights: list[torch.Tensor]) -> None:
        if _ranks():
            self.sums.append(f"{sum(map(_sum, weights)):.17g}")
            self.rank = str(torch.distributed.get_rank())
            self.weights.append([*zip(self._values, self._gradients, strict=False)])
            self._values, self._gradients = [], []


def _sum(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().sum())


def _ranks() -> int:
    """Return the number of processes that train together, 0 without a process group."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 0


def _accumulator(weight: torch.Tensor) -> Any:
    """Return the node of autograd's graphs that adds to a weight's gradient."""
    with torch.enable_grad():
        node = weight.view_as(weight).grad_fn
    return None if node is None else node.next_functions[0][0]
