"""Follow inf and NaN through a training: what they reached, and which module runs meanwhile.

`Watch` in ops.py adds the ops that make them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

from amp_course.kit.tensors import tensors_in
from amp_course.watching.graphs import leaves_of
from amp_course.watching.module_paths import ModulePaths
from amp_course.watching.origins import NonfiniteOrigin, Phase, Sink
from amp_course.watching.records import weights_of
from amp_course.watching.sources import Sources
from amp_course.watching.taps import Original
from amp_course.watching.values import (
    MINUS_INF,
    inspect_values,
    is_finite,
    mentions_values,
    skips,
)

SCALER: tuple[Sink, str] = ("scaler", "the GradScaler")
_EXCEPTION: tuple[Sink, str] = ("output", "the exception that the step raised")
_LOSS: tuple[Sink, str] = ("loss", "the returned loss")
_UNNAMED = ("weight", "a weight")


class Tracker:
    """A listener of taps that notes where inf and NaN arrive.

    models:  whose parameters and buffers have names; a module that is called is registered anyway
    origins: the ops that made inf or NaN, in order
    arrived: (kind, name) of what was found not to be finite
    preexisting: names of what already held inf or NaN when it was first used
    """

    def __init__(self, models: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.origins: list[NonfiniteOrigin] = []
        self.arrived: dict[tuple[Sink, str], None] = {}
        self.preexisting: dict[str, None] = {}
        self.modules = ModulePaths()
        self.sources = Sources(self.modules.names)
        self.paused = 0  # what runs now is not part of the training
        self._leaves: list[ref[Tensor]] = []  # got a gradient, and belong to no model
        # Origins of the last number that was read and is not finite
        self._read: tuple[NonfiniteOrigin, ...] = ()
        self._stepping = self._passes = 0
        self._stepped: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._thread = threading.get_ident()
        for model in models:
            self._register(model)

    @contextmanager
    def aside(self, *, foreign: bool = False) -> Iterator[None]:
        """Do something that is not watched. foreign: it runs code of the script's."""
        self.paused += 1
        try:
            # `_DisableTorchDispatch` is faster: ops do not even pass through here.
            with nullcontext() if foreign else torch._C._DisableTorchDispatch():
                yield
        finally:
            self.paused -= 1

    def scale(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note which origins are a loss times its scale."""
        first = len(self.origins)
        result = original(*args, **kwargs)
        for origin in self.origins[first:]:
            origin.scaling = True
        return result

    # ---- what inf and NaN reach ----

    @torch.no_grad()
    def look_at_weights(self) -> None:
        """Note which weights, gradients and buffers are not finite."""
        for leaf in (reference() for reference in self._leaves):
            if leaf is not None:
                self._look_at_gradient(leaf, f"a weight of shape {tuple(leaf.shape)}")
        self._leaves.clear()
        for model in list(self.modules.models):
            for parameter in model.parameters():
                name = self.modules.names.get(parameter, _UNNAMED)[1]
                self._arrive(parameter, "weight", name)
                self._look_at_gradient(parameter, name)
            for buffer in model.buffers():
                if named := self.modules.names.get(buffer):
                    self._arrive(buffer, *named)

    def _look_at_gradient(self, weight: Tensor, name: str) -> None:
        """Note a gradient that is not finite, unless a scaler has seen it: it skips the step."""
        if weight.grad is not None:
            origins, _ = self.sources.of(weight.grad)
            if not origins or not all(SCALER in origin.reached for origin in origins):
                self._arrive(weight.grad, "gradient", name)

    def look_at_result(self, result: Any) -> None:
        """Note a returned loss that is not finite: the result, its first part, or by its name."""
        if isinstance(result, Mapping):
            result = [value for key, value in result.items() if "loss" in str(key).lower()]
        elif isinstance(result, (tuple, list)) and result:
            result = result[0]
        for tensor in tensors_in(result):
            if tensor.numel() == 1:
                self._arrive(tensor, *_LOSS)
        if isinstance(result, float) and not math.isfinite(result):
            for origin in self._read:
                origin.reached[_LOSS] = None

    def look_at_error(self, error: BaseException) -> None:
        """If an exception is about inf or NaN, note that the origins so far led to it."""
        by_anomaly_mode = "returned nan values" in str(error)  # it finds them in a backward pass
        if by_anomaly_mode or not mentions_values(error):
            return
        origins = [origin for origin in self.origins if not origin.meant]
        if not any(origin.harmful for origin in origins):
            for origin in origins:
                origin.reached[_EXCEPTION] = None

    def _arrive(self, tensor: Tensor, kind: Sink, name: str) -> None:
        """Note that inf or NaN has done harm, if a tensor holds any."""
        # The values of one of vmap's cannot be read.
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        with self.aside():
            if is_finite(tensor):
                return
            if kind in ("output", "buffer") and inspect_values(tensor).holds == {MINUS_INF}:
                return  # a mask
        origins, names = self.sources.of(tensor)
        for origin in origins:
            origin.reached[(kind, name)] = None
        self.arrived[(kind, name)] = None
        if not origins and kind != "gradient":
            self.preexisting.update(dict.fromkeys(names))

    # ---- listeners of taps: where the training is ----

    def _register(self, model: nn.Module) -> None:
        self.modules.register(model)
        for parameter in model.parameters():
            kind, name = self.modules.names[parameter]
            self._name(parameter, f"the {kind} {name}")
            if parameter.is_leaf and parameter.grad is not None:
                self._name(parameter.grad, f"the gradient of {name}")

    def _name(self, tensor: Tensor, name: str) -> None:
        """Note the name of what held inf or NaN before it was watched: loaded, say."""
        with self.aside():
            if not is_finite(tensor) and not self.sources.of(tensor)[0]:
                self.sources.mark(tensor, ((), (name,)))

    def module_begins(self, module: nn.Module, *_: Any) -> None:
        if self.paused or self._in_other_thread():
            return
        if module not in self.modules.paths and not self.modules.running:
            self._register(module)
        self.modules.begins(module)

    def module_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.paused or self._in_other_thread():
            return
        if self.modules.ends(module) and not _in_backward():
            for tensor in tensors_in(output):
                self._arrive(tensor, "output", f"the output of {type(module).__name__}")

    def backward(self, original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._passes and not self._in_other_thread():
            for tensor in tensors_in(tensors):
                self._arrive(tensor, "loss", "the loss")
        self._passes += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._passes -= 1
            if self.sources and not self._passes:
                leaves = leaves_of(tensors_in(tensors))
                self._leaves += [ref(leaf) for leaf in leaves if leaf not in self.modules.names]

    def step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping += 1
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            for tensor in tensors_in(list(optimizer.state.values())):
                self._name(tensor, f"the state of {type(optimizer).__name__}")
        if skips(optimizer):
            return
        for parameter in weights_of(optimizer):
            if parameter.grad is not None:
                name = self.modules.names.get(parameter, _UNNAMED)[1]
                self._arrive(parameter.grad, "gradient", name)

    def step_ends(self, *_: Any) -> None:
        self._stepping = max(0, self._stepping - 1)

    def _in_other_thread(self) -> bool:
        """Return True in another thread of the program, but not in autograd's on a GPU."""
        return threading.get_ident() != self._thread and not _in_backward()

    def _phase(self) -> Phase:
        if _in_backward():
            return "recomputation" if self.modules.running else "backward"
        return "optimizer" if self._stepping else "forward"


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
