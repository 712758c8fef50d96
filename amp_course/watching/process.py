"""What a process that trains does besides its updates: objects that it makes, errors, waits, ranks. All listen to taps."""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from amp_course.watching.births import Line, readers_line
from amp_course.watching.ops import Watch

Original = Callable[..., Any]
_MOST_WEIGHTS = 300  # that are compared one by one between ranks
_CALL = 4  # lines that a call may take up
_MOST_ITEMS = 100  # of a list in a checkpoint that are looked into: it may be a replay buffer


class Made:
    """The optimizers, scalers and schedulers that a script makes; `new_phase` is called after each new optimizer.

    resumed: are the schedulers made to begin at a point that the script names?
    """

    def __init__(self, watch: Watch, new_phase: Callable[[], None]) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lines: dict[int, Line | None] = {}  # by the id of an optimizer, where it was made
        self.scalers: list[torch.amp.GradScaler] = []
        self.schedulers: list[Any] = []
        self.resumed = False
        self._watch, self._new_phase = watch, new_phase

    def _make(self, known: list[Any], original: Original, this: Any, *args: Any, **kwargs: Any) -> bool:
        original(this, *args, **kwargs)
        new = not self._watch._aside and not any(one is this for one in known)
        known += [this] * new
        return new

    def new_optimizer(self, original: Original, *args: Any, **kwargs: Any) -> None:
        """Note an optimizer."""
        if self._make(self.optimizers, original, *args, **kwargs):
            self.lines[id(args[0])] = readers_line(sys._getframe(1))
            self._new_phase()

    def new_scaler(self, original: Original, *args: Any, **kwargs: Any) -> None:
        """Note a scaler."""
        self._make(self.scalers, original, *args, **kwargs)

    def new_scheduler(self, original: Original, *args: Any, **kwargs: Any) -> None:
        """Note a scheduler."""
        line = readers_line(sys._getframe(1))
        if line is not None:
            lines = (linecache.getline(line.file, line.number + more) for more in range(_CALL))
            self.resumed |= any("last_epoch" in one for one in lines)
        self._make(self.schedulers, original, *args, **kwargs)


class Raised:
    """Exceptions that the script has perhaps caught.

    errors:  raised by backward passes and scalers
    escaped: that left those or an autocast region, described; one that leaves several counts once
    """

    def __init__(self, describe: Callable[[BaseException], str]) -> None:
        self.errors: list[BaseException] = []
        self.escaped: list[str] = []
        self._describe = describe
        self._latest: BaseException | None = None

    def backward(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Note what it raises."""
        try:
            return original(*args, **kwargs)
        except Exception as error:
            self.errors.append(error)
            self._escapes(error)
            raise

    unscale = scaler_step = update = backward

    def leave_region(self, original: Original, region: Any, kind: Any = None, error: Any = None, at: Any = None) -> Any:
        """Note what ends a region; a checkpoint stops its second run so, in a backward pass."""
        if isinstance(error, Exception) and torch._C._current_graph_task_id() == -1:
            self._escapes(error)
        return original(region, kind, error, at)

    def _escapes(self, error: Exception) -> None:
        if error is not self._latest:
            self._latest = error
            self.escaped.append(self._describe(error))


class Saved:
    """What the script saves by `torch.save`.

    states: "optimizer", "scaler" and "schedule", each with the line that saved the first
    """

    def __init__(self) -> None:
        self.states: dict[str, Line | None] = {}

    def save(self, original: Original, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Look into what is saved."""
        line = readers_line(sys._getframe(1))
        with suppress(Exception):  # an odd object must not keep the script from saving
            for kind in _states_in(obj):
                self.states.setdefault(kind, line)
        return original(obj, *args, **kwargs)


def _states_in(obj: Any, depth: int = 4) -> Iterator[str]:
    """Yield what a checkpoint holds: the objects themselves, or their states as `state_dict` gives them."""
    if isinstance(obj, torch.optim.Optimizer):
        yield "optimizer"
    elif isinstance(obj, torch.amp.GradScaler):
        yield "scaler"
    elif isinstance(obj, LRScheduler):
        yield "schedule"
    elif isinstance(obj, Mapping):
        if {"state", "param_groups"} <= obj.keys():
            yield "optimizer"
        elif {"scale", "growth_factor"} <= obj.keys():
            yield "scaler"
        elif "_last_lr" in obj or {"last_epoch", "_step_count"} <= obj.keys():
            yield "schedule"
        elif depth:
            for value in obj.values():
                yield from _states_in(value, depth - 1)
    elif isinstance(obj, (list, tuple)) and depth:
        for value in obj[:_MOST_ITEMS]:
            yield from _states_in(value, depth - 1)
    elif depth and hasattr(obj, "__dict__") and not isinstance(obj, (nn.Module, torch.Tensor)):
        yield from _states_in(vars(obj), depth - 1)


class Calls:
    """How often the engine ran, by whose call, in regions of which dtypes; seconds in which the script waited for batches.

    passes: of `backward`; `by_hand`: of `torch.autograd.grad`
    """

    def __init__(self, watch: Watch) -> None:
        self.passes = self.by_hand = 0
        self.regions: set[str] = set()
        self.waited = 0.0
        self._watch = watch

    def grad(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Count it."""
        self.by_hand += 1
        return original(*args, **kwargs)

    def backward(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Count it."""
        self.passes += 1
        return original(*args, **kwargs)

    def enter_region(self, original: Original, region: Any) -> Any:
        """Note its dtype."""
        if region._enabled:
            self.regions.add(str(region.fast_dtype)[6:])
        return original(region)

    def next_batch(self, original: Original, iterator: Any) -> Any:
        """Take its time; a batch is no part of the training."""
        began = time.perf_counter()
        with self._watch.aside(foreign=True):
            try:
                return original(iterator)
            finally:
                self.waited += time.perf_counter() - began


class Ranks:
    """What is to be the same on all ranks of a training: a sum of the weights after each update, and their number.

    weights: for each update, of each weight, a sum of it in the first backward pass, and of its gradient after the last

    called:  wrapped models whose forward pass was called
    inner:   the line that called a wrapped model past its wrapper
    made:    the line that wrapped the first
    joined:  updates so far, at the end of each `with model.join()`, in which ranks may have unequal numbers of batches
    wrapped: models in DDP, kept until the process ends: where a script drops them while gloo's thread is at work, torch 2.13 may
             wait for ever, for the destructor waits for that thread and holds the lock that the thread needs
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
        self._begun: nn.Module | None = None  # the model of a wrapper whose forward pass has begun
        self._nodes: list[tuple[torch.Tensor, Any]] = []  # weights of wrapped models, and where their gradients arrive
        self._updates = updates

    def leave_join(self, original: Original, *args: Any) -> Any:
        """Note the number of updates."""
        self.joined.append(self._updates())
        return original(*args)

    def new_wrapper(self, original: Original, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Note a model in DDP."""
        original(model, *args, **kwargs)
        self.wrapped.append(model)
        self.made = self.made or readers_line(sys._getframe(1))
        self._nodes += [(p, _accumulator(p)) for p in model.parameters() if p.requires_grad]

    def forward(self, module: nn.Module) -> None:
        """Note whether wrappers are called, or what they wrap."""
        if isinstance(module, nn.parallel.DistributedDataParallel):
            self.called.add(module)
            self._begun = module.module
        elif self.wrapped and any(one.module is module for one in self.wrapped):
            if self._begun is not module and module.training:
                self.inner = self.inner or readers_line(sys._getframe(1))
            self._begun = None

    def pass_begins(self, weights: list[torch.Tensor]) -> None:
        """Sum up each weight, at the first backward pass of an update."""
        if not self._values and _several_ranks() and len(weights) <= _MOST_WEIGHTS:
            self._values = [float(one.detach().double().sum()) for one in weights]

    def pass_ends(self, weights: list[torch.Tensor]) -> None:
        """Sum up each gradient."""
        if self._values:
            grads = (one.grad for one in weights)
            self._gradients = [0.0 if one is None else float(one.detach().double().sum()) for one in grads]

    def moved(self) -> bool:
        """Tell whether weights were given other storage since they were wrapped, which wrappers do not notice."""
        return any(_accumulator(p) is not node for p, node in self._nodes if p.requires_grad)

    def not_called(self, trained: list[torch.Tensor]) -> bool:
        """Tell whether weights were trained that lie in wrapped models, none of which was called."""
        inside = {id(p) for one in self.wrapped for p in one.parameters()}
        return not self.called and any(id(one) in inside for one in trained)

    def end_update(self, weights: list[torch.Tensor]) -> None:
        """Sum up the weights."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.sums.append(f"{sum(float(one.detach().double().sum()) for one in weights):.17g}")
            self.rank = str(torch.distributed.get_rank())
            self.weights.append([*zip(self._values, self._gradients, strict=False)])
            self._values, self._gradients = [], []


def _several_ranks() -> bool:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return bool(there and torch.distributed.get_world_size() > 1)


def _accumulator(weight: torch.Tensor) -> Any:
    """Return the node of autograd's graphs that adds to a weight's gradient."""
    with torch.enable_grad():
        node = weight.view_as(weight).grad_fn
    return None if node is None else node.next_functions[0][0]
