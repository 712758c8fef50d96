"""Watch every op of a training: which of them make inf or NaN from finite numbers, and what becomes of it.

A `TorchDispatchMode` sees each op that runs, below autocast and autograd, forward and backward, and looks at what it gave in one
pass over the values. Only when something is not finite does it look closer: at what went in, at the module and the line. Nothing
is changed: no result, no hook on a module of yours, no random number. Once it is closed, it costs nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.kit.compiled import uncompiled_run
from amp_course.kit.tensors import tensors_in
from amp_course.watching import taps
from amp_course.watching.births import MADE, Birth, Frame, Line, Phase, Sink, caller
from amp_course.watching.values import (
    INF,
    MINUS_INF,
    NAN,
    Values,
    extremes,
    infinite_constants,
    is_finite,
    look_at,
    skips,
    within,
)

_KEPT = 12  # ops before a birth that are told
_MOST_PLACES = 100_000  # of forward ops whose lines are remembered for the backward pass
# What these return, or leave in their first argument, has nothing to do with what was in it, or is not yet anything at all.
_UNSET = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "resize",
}
_OVERWRITE = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_",    "_foreach_copy_", "_foreach_zero_",
}  # fmt: skip
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_SCALER: tuple[Sink, str] = ("scaler", "the GradScaler")
_SILENT = ("running_mean", "running_var")  # that batch norm writes to without saying so in its schema


class Watch(TorchDispatchMode):
    """A context in which the births of inf and NaN are written down, in `births`.

    models: whose parameters and buffers have names; those that are called are found without it
    """

    def __init__(self, models: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.births: list[Birth] = []
        self.arrived: dict[tuple[Sink, str], None] = {}  # where something that is not finite was seen
        self.given: dict[str, None] = {}  # what held it before it was watched
        self.step = 1
        self.compiled: Callable[[], bool] = lambda: False
        self._recent: deque[tuple[str, Phase, str, torch.dtype, float]] = deque(maxlen=_KEPT)
        self._places: dict[
            int, tuple[str, str, tuple[CodeType, int] | None]
        ] = {}  # sequence number → module, kind, line
        # of storages that hold inf or NaN: where that was born, and the names of what held it before
        self._births_of: dict[int, tuple[StorageWeakRef, tuple[Birth, ...], tuple[str, ...]]] = {}
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._roots: WeakSet[nn.Module] = WeakSet()
        self._names: dict[int, tuple[Sink, str]] = {}  # id of a parameter or buffer → what it is
        self._open: list[nn.Module] = []
        self._leaves: list[ref[Tensor]] = []  # that got a gradient, and are no model's
        self._read: tuple[Birth, ...] = ()  # of the last number that was read and is not finite
        self._stepping = 0
        self._passes = 0
        self._thread = threading.get_ident()
        self._aside = 0  # what runs now is not part of the training
        self._stack = ExitStack()
        for model in models:
            self._know(model)

    def __enter__(self) -> Watch:
        self.compiled = self._stack.enter_context(uncompiled_run())
        self._stack.enter_context(warnings.catch_warnings())  # one that is about the hooks below, for a compiled module
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        listening = taps.listening(
            {
                "module_begins": self._module_begins,
                "module_ends": self._module_ends,
                "backward": self._backward,
                "step_begins": self._optimizer_begins,
                "step_ends": self._optimizer_ends,
            }
        )
        self._stack.enter_context(listening)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        self.look_at_weights()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled meanwhile, and to keep the compiler off each op would take as long as many an op."""
        return False

    @contextmanager
    def aside(self, *, foreign: bool = False) -> Iterator[None]:
        """Do something in between that is not part of the training, and is not watched. foreign: it is the script's code."""
        self._aside += 1
        try:
            with nullcontext() if foreign else torch._C._DisableTorchDispatch():  # ops are not even passed through here
                yield
        finally:
            self._aside -= 1

    @torch.no_grad()
    def look_at_weights(self) -> None:
        """See what has arrived in the weights of the step, their gradients, and the buffers of the models."""
        for leaf in (one() for one in self._leaves):
            if leaf is not None and leaf.grad is not None and not self._is_skipped(leaf.grad):
                self._arrive(leaf.grad, "gradient", f"a weight of shape {tuple(leaf.shape)}")
        self._leaves.clear()
        for model in list(self._roots):
            for parameter in model.parameters():
                name = self._names.get(id(parameter), ("weight", "a weight"))[1]
                self._arrive(parameter, "weight", name)
                if parameter.grad is not None and not self._is_skipped(parameter.grad):
                    self._arrive(parameter.grad, "gradient", name)
            for buffer in model.buffers():
                if id(buffer) in self._names:
                    self._arrive(buffer, *self._names[id(buffer)])

    def _is_skipped(self, grad: Tensor) -> bool:
        """Tell whether a scaler has seen what a gradient holds: then it skips the step, and the next `zero_grad` clears it."""
        births, _ = self._known(grad)
        return bool(births) and all(_SCALER in birth.reached for birth in births)

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._passes and not self._elsewhere():
            for tensor in tensors_in(tensors):
                self._arrive(tensor, "loss", "the loss")
        self._passes += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._passes -= 1
            if self._births_of and not self._passes:
                self._leaves += [ref(leaf) for leaf in leaves_of(tensors_in(tensors)) if id(leaf) not in self._names]

    def look_at_result(self, result: Any) -> None:
        """See what has arrived in the loss that a step returned: alone, first of several values, or under that name."""
        result = _loss_among(result)
        for tensor in tensors_in(result):
            if tensor.numel() == 1:
                self._arrive(tensor, "loss", "the returned loss")
        if isinstance(result, float) and not math.isfinite(result):
            for birth in self._read:
                birth.reached[("loss", "the returned loss")] = None

    def look_at_error(self, error: BaseException) -> None:
        """If an exception speaks of inf or NaN, note that it stopped those that had been made."""
        if not mentions_values(error) or "returned nan values" in str(error):  # anomaly mode's, of the backward pass
            return
        births = [one for one in self.births if not one.meant]
        if not any(one.harmful for one in births):
            for one in births:
                one.reached[("output", "the exception that the step raised")] = None

    # ---- where we are ----

    def _know(self, model: nn.Module) -> None:
        self._roots.add(model)
        for path, module in model.named_modules():
            self._paths.setdefault(module, path.replace("_orig_mod.", "").replace("_orig_mod", ""))
        for path, parameter in model.named_parameters():
            kind, name = self._names.setdefault(id(parameter), ("weight", path.replace("_orig_mod.", "")))
            with self.aside():
                if not is_finite(parameter) and not self._known(parameter)[0]:  # loaded, say
                    self._mark(parameter, (), (f"the {kind} {name}",))
        for path, buffer in model.named_buffers():
            self._names.setdefault(id(buffer), ("buffer", path.replace("_orig_mod.", "")))

    def _module_begins(self, module: nn.Module, *_: Any) -> None:
        if self._aside or self._elsewhere():
            return
        if module not in self._paths:
            if self._open:
                self._paths[module] = f"{self._paths[self._open[-1]]}.<{type(module).__name__}>".lstrip(".")
            else:
                self._know(module)
        self._open.append(module)

    def _module_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._aside or self._elsewhere() or module not in self._open:
            return
        while self._open.pop() is not module:  # one inside has raised
            pass
        if not self._open and not self._in_backward():
            for tensor in tensors_in(output):
                self._arrive(tensor, "output", f"the output of {type(module).__name__}")

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping += 1
        if skips(optimizer):
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._arrive(parameter.grad, "gradient", self._names.get(id(parameter), ("", "a weight"))[1])

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping = max(0, self._stepping - 1)

    def _elsewhere(self) -> bool:
        """Tell whether this is another thread of the program; on a GPU, autograd runs a backward pass in one of its own."""
        return threading.get_ident() != self._thread and not self._in_backward()

    @staticmethod
    def _in_backward() -> bool:
        return bool(torch._C._current_graph_task_id() != -1)

    def _phase(self) -> Phase:
        if self._in_backward():
            return "recomputation" if self._open else "backward"
        return "optimizer" if self._stepping else "forward"

    # ---- ops ----

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, op = kwargs or {}, _op(func)
        if op.name == "lift_fresh" and not self._aside and not self._elsewhere() and not taps.stands_aside():
            return self._made_of_numbers(func(*args, **kwargs))
        if self._aside or op.passed or self._elsewhere() or taps.stands_aside():
            return func(*args, **kwargs)
        return self._run(func, op, args, kwargs)

    def _run(self, func: Any, op: _Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.name == "_local_scalar_dense" and not is_finite(args[0]):
            self._read = self._known(args[0])[0]
        if op.unset:
            result = func(*args, **kwargs)
            for tensor in tensors_in(result):
                self._forget(tensor)
            return result
        written = [tensor for place in op.written for tensor in tensors_in(_argument(place, args, kwargs))]
        before = [] if op.overwrites else [(one, extremes(one)) for one in written]  # it is gone afterwards
        spoilt = [one for one, found in before if found is not None and not all(map(math.isfinite, found))]
        took = [
            look_at(one) if any(one is other for other in spoilt) else within(one, found)
            for one, found in before
            if found is not None
        ]
        origins = {id(one): self._known(one) for one in spoilt}
        result = func(*args, **kwargs)
        gave = list({id(one): one for one in (*tensors_in(result), *written)}.values())
        worst, low = 0.0, None
        for tensor in gave:
            found = extremes(tensor)
            if found is not None:
                largest = max(abs(found[0]), abs(found[1])) if found[0] == found[0] else math.nan
                if low is None or (math.isfinite(worst) and not largest <= worst):
                    worst, low = largest, tensor.dtype
        finite = math.isfinite(worst)
        phase = self._phase()
        if phase != "backward":
            self._remember()
        if not finite:
            overwritten = [one for one, found in before if found is not None]
            self._look(func, op, args, kwargs, gave, written, overwritten, took, origins, phase)
        elif self._births_of:
            for tensor in written:
                self._forget(tensor)
        if low is not None:
            self._recent.append((op.name, phase, self._here(), low, worst))
        return result

    def _made_of_numbers(self, tensor: Tensor) -> Tensor:
        """Note where a tensor was made of plain numbers, if inf or NaN is among them: by `torch.tensor`, by `x[0] = nan`."""
        if not is_finite(tensor):
            self._mark(tensor, (), (f"{MADE}{Line.of(caller(sys._getframe(2)))}",))
        return tensor

    def _here(self) -> str:
        return self._paths.get(self._open[-1], "") if self._open else ""

    def _remember(self) -> None:
        """Note where the node of the graph that this op belongs to was made."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._places:
            if len(self._places) >= _MOST_PLACES:
                for old in list(itertools.islice(self._places, _MOST_PLACES // 2)):
                    del self._places[old]
            kind = type(self._open[-1]).__name__ if self._open else ""
            self._places[number] = (self._here(), kind, caller(sys._getframe(2)))

    def _look(
        self,
        func: Any,
        op: _Op,
        args: Any,
        kwargs: Any,
        gave: Sequence[Tensor],
        written: Sequence[Tensor],
        overwritten: Sequence[Tensor],
        took_overwritten: Sequence[Values],
        origins_spoilt: dict[int, tuple[tuple[Birth, ...], tuple[str, ...]]],
        phase: Phase,
    ) -> None:
        """Tell whether this op made what is not finite, or passes it on; note it for what it gave."""
        skip = {id(one) for one in written}
        read = [one for one in tensors_in([args, kwargs]) if id(one) not in skip]
        values = [*map(look_at, read), *took_overwritten]
        births: dict[int, Birth] = {}
        given: list[str] = []
        endless = False  # an inf came in that was there before and is no mask's: +inf, or a weight's
        for tensor, value in zip([*read, *overwritten], values, strict=True):
            if value.holds:
                known, names = origins_spoilt[id(tensor)] if id(tensor) in origins_spoilt else self._known(tensor)
                births |= {one.number: one for one in known}
                given += names
                endless |= not known and bool(names) and (INF in value.holds or names[0].startswith("the weight"))
        entered = frozenset().union(*(value.holds for value in values))
        made = [look_at(one) for one in gave]
        left = frozenset().union(*(value.holds for value in made))
        if op.name == _UNSCALE:
            for tensor in gave:
                self._mark(tensor, tuple(births.values()))
            for one in births.values():
                one.reached[_SCALER] = None
            return
        if endless and not births:
            entered |= {NAN}  # what comes of it is the fault of what held it
        # An infinity may be meant; a NaN made of one never is.
        new = (NAN in left and NAN not in entered) or not entered or _in_new_places(func, op, args, read, written, gave)
        if new:
            worst = max((one for one in made if one.holds), key=lambda one: (NAN in one.holds, INF in one.holds))
            meant = NAN not in worst.holds and infinite_constants([*args, *kwargs.values()])
            birth = self._birth(
                op, worst, values, phase, written, tuple(births.values()), tuple(dict.fromkeys(given)), meant
            )
            self.births.append(birth)
            if births and all(_SCALER in one.reached for one in births.values()):
                birth.reached[_SCALER] = None  # of gradients that the scaler has seen: it skips this one, too
        result: tuple[Birth, ...] = (birth,) if new else tuple(births.values())
        for tensor, value in zip(gave, made, strict=True):
            if value.holds:
                self._mark(tensor, result, () if new else tuple(dict.fromkeys(given)))
                if id(tensor) in self._names and id(tensor) in skip:
                    for one in result:
                        one.reached[self._names[id(tensor)]] = None
            else:
                self._forget(tensor)

    def _birth(
        self,
        op: _Op,
        made: Any,
        took: Any,
        phase: Phase,
        written: Sequence[Tensor],
        origins: Any,
        given: Any,
        meant: bool,
    ) -> Birth:
        node = torch._C._current_autograd_node() if phase in ("backward", "recomputation") else None
        line = Line.of(caller(sys._getframe(3)))
        module, kind = self._here(), type(self._open[-1]).__name__ if self._open else ""
        forward = None
        if node is not None:
            at = self._places.get(node._sequence_nr())
            if at is not None:
                forward = Line.of(at[2])
                module, kind = (module, kind) if self._open else at[:2]
        tensor = next((self._names[id(one)][1] for one in written if id(one) in self._names and not is_finite(one)), "")
        frames = tuple(
            Frame(name, when, where, str(dtype).removeprefix("torch."), largest)
            for name, when, where, dtype, largest in self._recent
        )
        return Birth(
            len(self.births) + 1, self.step, phase, op.name, module, kind, tensor, made, tuple(took), line, forward,
            node.name() if node is not None and not self._open else "", origins, given, meant, frames,
        )  # fmt: skip

    # ---- who holds what ----

    def _mark(self, tensor: Tensor, births: tuple[Birth, ...], given: tuple[str, ...] = ()) -> None:
        storage = _storage(tensor)
        if storage is not None and (births or given):
            self._births_of[storage.cdata] = (storage, births, given)

    def _forget(self, tensor: Tensor) -> None:
        storage = _storage(tensor) if self._births_of else None
        if storage is not None:
            self._births_of.pop(storage.cdata, None)

    def _known(self, tensor: Tensor) -> tuple[tuple[Birth, ...], tuple[str, ...]]:
        """Return the births of what a tensor holds, and its name if it held that before it was watched."""
        storage = _storage(tensor)
        found = self._births_of.get(storage.cdata) if storage is not None else None
        if found is not None and not found[0].expired():
            return found[1:]
        if id(tensor) in self._names:
            kind, name = self._names[id(tensor)]
            return (), (f"the {kind} {name}",)
        return (), ("the data",)

    def _arrive(self, tensor: Tensor, kind: Sink, name: str) -> None:
        """Note that what a tensor holds has done harm, if it holds inf or NaN."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # of vmap: its values cannot be read
            return
        with self.aside():
            if is_finite(tensor):
                return
            if kind in ("output", "buffer") and look_at(tensor).holds == {MINUS_INF}:  # a mask's, on purpose
                return
        births, given = self._known(tensor)
        for birth in births:
            birth.reached[(kind, name)] = None
        self.arrived[(kind, name)] = None
        if not births and kind != "gradient":
            self.given.update(dict.fromkeys(given))


class _Op:
    """What is known of an op from its schema, read once."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = schema.name.split("::")[-1]
        out = any(argument.is_out for argument in schema.arguments)
        self.overwrites = out or self.name in _OVERWRITE
        self.unset = self.name in _UNSET
        self.passed = func.namespace == "prim" or func.is_view
        self.written = [
            (number, argument.name)
            for number, argument in enumerate(schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or ("batch_norm" in self.name and argument.name in _SILENT)
        ]


def mentions_values(error: BaseException) -> bool:
    """Tell whether an exception speaks of inf or NaN."""
    return bool(re.search(r"\b(nans?|infs?|infinite|infinity|non-?finite|finite)\b", str(error), re.IGNORECASE))


def _loss_among(result: Any) -> Any:
    if isinstance(result, Mapping):
        return [value for key, value in result.items() if "loss" in str(key).lower()]
    return result[0] if isinstance(result, (tuple, list)) and result else result


def leaves_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves of graphs: what a backward pass through these tensors gives a gradient."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    found = []
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found


def _in_new_places(
    func: Any, op: _Op, args: Any, read: Sequence[Tensor], written: Sequence[Tensor], gave: Sequence[Tensor]
) -> bool:
    """Whether an op that works number by number, or adds a product, made inf or NaN where none went in."""
    if written or len(gave) != 1:
        return False
    if op.name in ("addmm", "baddbmm", "addmv"):
        if not all(is_finite(one) for one in read if one is not args[0]):
            return False
    elif torch.Tag.pointwise not in func.tags:
        return False
    new = ~gave[0].isfinite()
    for one in read:
        try:
            new &= one.isfinite()
        except RuntimeError:  # a shape that does not fit: a factor of the product
            continue
    return bool(new.any())


@functools.cache
def _op(func: Any) -> _Op:
    return _Op(func)


def _argument(place: tuple[int, str], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return args[place[0]] if place[0] < len(args) else kwargs.get(place[1])


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to what a tensor shares with its views; None for one without, such as a sparse one."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return StorageWeakRef(local.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None
