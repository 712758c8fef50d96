"""Watch every op of a training: which make inf or NaN from finite numbers, and what comes of it.

A `TorchDispatchMode` sees each op that runs, below autocast and autograd, forward and backward, and
looks at what it gave in one pass over the values. Only when something is not finite does it look
closer: at what went in, at the module and the line. Nothing is changed: no result, no hook on a
module of yours, no random number. Once it is closed, it costs nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
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
from torch.utils.weak import WeakTensorKeyDictionary

from amp_course.kit.compiled import uncompiled_run
from amp_course.kit.tensors import tensors_in
from amp_course.watching import taps
from amp_course.watching.graphs import nodes_of
from amp_course.watching.origins import MADE, Frame, Line, NonfiniteOrigin, Phase, Sink, caller
from amp_course.watching.records import weights_of
from amp_course.watching.taps import Original
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

_KEPT = 12  # ops before a origin that are told
_MOST_PLACES = 100_000  # of forward ops whose lines are remembered for the backward pass
# What these return or leave in their first argument is not yet anything.
_UNSET = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "set_", "resize",
}  # fmt: skip
_OVERWRITE = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
    "geometric_", "cauchy_", "log_normal_", "_foreach_copy_", "_foreach_zero_",
}  # fmt: skip
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_SCALER: tuple[Sink, str] = ("scaler", "the GradScaler")
_SILENT = ("running_mean", "running_var")  # batch norm's schema does not say that it writes to them
# origins, names of what held it unwatched
Origin = tuple[tuple[NonfiniteOrigin, ...], tuple[str, ...]]
_NOTHING: Origin = (), ()


class Watch(TorchDispatchMode):
    """A context in which the origins of inf and NaN are written down, in `origins`.

    models: whose parameters and buffers have names; those that are called are found without it
    """

    def __init__(self, models: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.origins: list[NonfiniteOrigin] = []
        # Where something that is not finite was seen, and what held it before it was watched
        self.arrived: dict[tuple[Sink, str], None] = {}
        self.given: dict[str, None] = {}
        self.step = 1
        self.compiled: Callable[[], bool] = lambda: False
        self._recent: deque[tuple[str, Phase, str, torch.dtype, float]] = deque(maxlen=_KEPT)
        # Sequence number of a node → module, kind, line
        self._places: dict[int, tuple[str, str, tuple[CodeType, int] | None]] = {}
        # Of storages that hold inf or NaN
        self._origins_of: dict[int, tuple[StorageWeakRef, Origin]] = {}
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._roots: WeakSet[nn.Module] = WeakSet()
        # Parameter or buffer → what it is. Not by its id, which a later tensor may have.
        self._names = WeakTensorKeyDictionary()
        self._open: list[nn.Module] = []
        self._leaves: list[ref[Tensor]] = []  # that got a gradient, and are no model's
        # of the last number that was read and is not finite
        self._read: tuple[NonfiniteOrigin, ...] = ()
        self._stepping = 0
        self._passes = 0
        self._thread = threading.get_ident()
        self._aside = 0  # what runs now is not part of the training
        self._stack = ExitStack()
        for model in models:
            self._know(model)

    def __enter__(self) -> Watch:
        self.compiled = self._stack.enter_context(uncompiled_run())
        self._stack.enter_context(warnings.catch_warnings())
        about_hooks = "Using `torch.compile.module.` when there are global hooks"
        warnings.filterwarnings("ignore", about_hooks)
        self._stack.enter_context(taps.listening(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        self.look_at_weights()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled meanwhile, and keeping the compiler off is slow."""
        return False

    @contextmanager
    def aside(self, *, foreign: bool = False) -> Iterator[None]:
        """Do something that is not watched; foreign: code of the script's."""
        self._aside += 1
        try:
            # The second does not even pass ops through here.
            with nullcontext() if foreign else torch._C._DisableTorchDispatch():
                yield
        finally:
            self._aside -= 1

    @torch.no_grad()
    def look_at_weights(self) -> None:
        """See what has arrived in weights, their gradients, and buffers."""
        for leaf in (one() for one in self._leaves):
            if leaf is not None:
                self._look_at_gradient(leaf, f"a weight of shape {tuple(leaf.shape)}")
        self._leaves.clear()
        for model in list(self._roots):
            for parameter in model.parameters():
                name = self._names.get(parameter, ("weight", "a weight"))[1]
                self._arrive(parameter, "weight", name)
                self._look_at_gradient(parameter, name)
            for buffer in model.buffers():
                if buffer in self._names:
                    self._arrive(buffer, *self._names[buffer])

    def _look_at_gradient(self, weight: Tensor, name: str) -> None:
        """See what has arrived in a gradient, unless a scaler has: then it skips the step."""
        if weight.grad is not None:
            origins, _ = self._known(weight.grad)
            if not origins or not all(_SCALER in origin.reached for origin in origins):
                self._arrive(weight.grad, "gradient", name)

    def backward(self, original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._passes and not self._elsewhere():
            for tensor in tensors_in(tensors):
                self._arrive(tensor, "loss", "the loss")
        self._passes += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._passes -= 1
            if self._origins_of and not self._passes:
                leaves = leaves_of(tensors_in(tensors))
                self._leaves += [ref(one) for one in leaves if one not in self._names]

    def look_at_result(self, result: Any) -> None:
        """See what has arrived in the loss that a step returned: alone, first, or by name."""
        result = _loss_among(result)
        for tensor in tensors_in(result):
            if tensor.numel() == 1:
                self._arrive(tensor, "loss", "the returned loss")
        if isinstance(result, float) and not math.isfinite(result):
            for origin in self._read:
                origin.reached[("loss", "the returned loss")] = None

    def look_at_error(self, error: BaseException) -> None:
        """If an exception speaks of inf or NaN, note that it stopped those that had been made."""
        anomaly = "returned nan values" in str(error)  # its mode finds them in the backward pass
        if anomaly or not mentions_values(error):
            return
        origins = [one for one in self.origins if not one.meant]
        if not any(one.harmful for one in origins):
            for one in origins:
                one.reached[("output", "the exception that the step raised")] = None

    # ---- where we are ----

    def _know(self, model: nn.Module) -> None:
        self._roots.add(model)
        for path, module in model.named_modules():
            self._paths.setdefault(module, path.replace("_orig_mod.", "").replace("_orig_mod", ""))
        for path, parameter in model.named_parameters():
            given: tuple[Sink, str] = "weight", path.replace("_orig_mod.", "")
            kind, name = self._names.setdefault(parameter, given)
            with self.aside():
                if not is_finite(parameter) and not self._known(parameter)[0]:  # loaded, say
                    self._mark(parameter, ((), (f"the {kind} {name}",)))
        for path, buffer in model.named_buffers():
            self._names.setdefault(buffer, ("buffer", path.replace("_orig_mod.", "")))

    def module_begins(self, module: nn.Module, *_: Any) -> None:
        if self._aside or self._elsewhere():
            return
        if module not in self._paths:
            if self._open:
                path = f"{self._paths[self._open[-1]]}.<{type(module).__name__}>"
                self._paths[module] = path.lstrip(".")
            else:
                self._know(module)
        self._open.append(module)

    def module_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._aside or self._elsewhere() or module not in self._open:
            return
        while self._open.pop() is not module:  # one inside has raised
            pass
        if not self._open and not self._in_backward():
            for tensor in tensors_in(output):
                self._arrive(tensor, "output", f"the output of {type(module).__name__}")

    def step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping += 1
        if skips(optimizer):
            return
        for parameter in weights_of(optimizer):
            if parameter.grad is not None:
                name = self._names.get(parameter, ("", "a weight"))[1]
                self._arrive(parameter.grad, "gradient", name)

    def step_ends(self, *_: Any) -> None:
        self._stepping = max(0, self._stepping - 1)

    def _elsewhere(self) -> bool:
        """Return True if this is another thread of the program, not autograd's on a GPU."""
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
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, op = kwargs or {}, _op(func)
        if self._aside or self._elsewhere() or taps.stands_aside():
            return func(*args, **kwargs)
        if op.name == "lift_fresh":
            return self._made_of_numbers(func(*args, **kwargs))
        return func(*args, **kwargs) if op.passed else self._run(func, op, args, kwargs)

    def _run(self, func: Any, op: _Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.name == "_local_scalar_dense" and not is_finite(args[0]):
            self._read = self._known(args[0])[0]
        if op.unset:
            result = func(*args, **kwargs)
            for tensor in tensors_in(result):
                self._forget(tensor)
            return result
        places = (_argument(place, args, kwargs) for place in op.written)
        written = [one for place in places for one in tensors_in(place)]
        gone = [] if op.overwrites else list(self._seen_before(written))
        result = func(*args, **kwargs)
        gave = list({id(one): one for one in (*tensors_in(result), *written)}.values())
        worst, low = 0.0, None
        for tensor in gave:
            found = extremes(tensor)
            if found is not None:
                largest = max(map(abs, found))
                if low is None or (math.isfinite(worst) and not largest <= worst):
                    worst, low = largest, tensor.dtype
        phase = self._phase()
        if phase != "backward":
            self._remember()
        if not math.isfinite(worst):
            self._look(func, op, args, kwargs, gave, written, gone, phase)
        elif self._origins_of:
            for tensor in written:
                self._forget(tensor)
        if low is not None:
            self._recent.append((op.name, phase, self._here(), low, worst))
        return result

    def _seen_before(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Values, Origin]]:
        for one in tensors:
            found = extremes(one)
            if found is not None:
                finite = all(map(math.isfinite, found))
                yield (within(one, found), _NOTHING) if finite else (look_at(one), self._known(one))

    def _made_of_numbers(self, tensor: Tensor) -> Tensor:
        """Note where inf or NaN was written as a number: by `torch.tensor`, by `x[0] = nan`."""
        if not is_finite(tensor):
            self._mark(tensor, ((), (f"{MADE}{Line.of(caller())}",)))
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
            self._places[number] = (self._here(), kind, caller())

    def _look(
        self, func: Any, op: _Op, args: Any, kwargs: Any, gave: Sequence[Tensor],
        written: Sequence[Tensor], gone: Sequence[tuple[Values, Origin]], phase: Phase,
    ) -> None:  # fmt: skip
        """Note whether an op made what is not finite, or passes it on."""
        skip = {id(one) for one in written}
        read = [one for one in tensors_in([args, kwargs]) if id(one) not in skip]
        took = [*((look_at(one), self._known(one)) for one in read), *gone]
        if op.name.rstrip("_") == "div" and isinstance(args[1], (int, float)):
            number = Values(f"the number {args[1]:g}", (), math.nan, least=abs(args[1]))
            took.append((number, _NOTHING))
        arrived: dict[int, NonfiniteOrigin] = {}
        names: dict[str, None] = {}
        # whether an inf came in that was there before and is no mask's: +inf, or a weight's
        endless = False
        for value, (known, given) in took:
            if value.holds:
                arrived |= {one.number: one for one in known}
                names |= dict.fromkeys(given)
                of_weight = bool(given) and given[0].startswith("the weight")
                endless |= not known and bool(given) and (INF in value.holds or of_weight)
        entered = frozenset().union(*(value.holds for value, _ in took))
        made = [look_at(one) for one in gave]
        left = frozenset().union(*(value.holds for value in made))
        origins = tuple(arrived.values())
        if op.name == _UNSCALE:
            for tensor in gave:
                self._mark(tensor, (origins, ()))
            for one in origins:
                one.reached[_SCALER] = None
            return
        if endless and not origins:
            entered |= {NAN}  # what comes of it is the fault of what held it
        # An infinity may be meant; a NaN made of one never is.
        new = (NAN in left and NAN not in entered) or not entered
        new = new or _in_new_places(func, op, args, read, written, gave)
        result: Origin = origins, tuple(names)
        if new:
            values = tuple(value for value, _ in took)
            bad = [value for value in made if value.holds]
            worst = max(bad, key=lambda value: (NAN in value.holds, INF in value.holds))
            meant = NAN not in worst.holds and infinite_constants([*args, *kwargs.values()])
            origin = self._origin(op, worst, values, phase, written, result, meant)
            self.origins.append(origin)
            if origins and all(_SCALER in one.reached for one in origins):
                origin.reached[_SCALER] = None  # the scaler has seen those: it skips this one, too
            result = (origin,), ()
        for tensor, value in zip(gave, made, strict=True):
            if value.holds:
                self._mark(tensor, result)
                if tensor in self._names and id(tensor) in skip:
                    for one in result[0]:
                        one.reached[self._names[tensor]] = None
            else:
                self._forget(tensor)

    def _origin(
        self, op: _Op, made: Values, took: tuple[Values, ...], phase: Phase,
        written: Sequence[Tensor], origin: Origin, meant: bool,
    ) -> NonfiniteOrigin:  # fmt: skip
        in_pass = phase in ("backward", "recomputation")
        node = torch._C._current_autograd_node() if in_pass else None
        module, kind = self._here(), type(self._open[-1]).__name__ if self._open else ""
        forward = None
        if node is not None and (at := self._places.get(node._sequence_nr())) is not None:
            forward = Line.of(at[2])
            module, kind = (module, kind) if self._open else at[:2]
        named = (one for one in written if one in self._names and not is_finite(one))
        tensor = next((self._names[one][1] for one in named), "")
        frames = (Frame(*one[:3], str(one[3])[6:], one[4]) for one in self._recent)
        return NonfiniteOrigin(
            len(self.origins) + 1, self.step, phase, op.name, module, kind, tensor, made, took,
            Line.of(caller()), forward, node.name() if node is not None and not self._open else "",
            *origin, meant, tuple(frames),
        )  # fmt: skip

    # ---- who holds what ----

    def _mark(self, tensor: Tensor, origin: Origin) -> None:
        storage = _storage(tensor)
        if storage is not None and any(origin):
            self._origins_of[storage.cdata] = storage, origin

    def _forget(self, tensor: Tensor) -> None:
        storage = _storage(tensor) if self._origins_of else None
        if storage is not None:
            self._origins_of.pop(storage.cdata, None)

    def _known(self, tensor: Tensor) -> Origin:
        """Return the origins of what a tensor holds, and its name if it held that unwatched."""
        storage = _storage(tensor)
        found = self._origins_of.get(storage.cdata) if storage is not None else None
        if found is not None and not found[0].expired():
            return found[1]
        kind, name = self._names.get(tensor, ("", ""))
        return (), (f"the {kind} {name}" if kind else "the data",)

    def _arrive(self, tensor: Tensor, kind: Sink, name: str) -> None:
        """Note that what a tensor holds has done harm, if it holds inf or NaN."""
        # The values of one of vmap's cannot be read.
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        with self.aside():
            if is_finite(tensor):
                return
            if kind in ("output", "buffer") and look_at(tensor).holds == {MINUS_INF}:
                return  # a mask
        origins, given = self._known(tensor)
        for origin in origins:
            origin.reached[(kind, name)] = None
        self.arrived[(kind, name)] = None
        if not origins and kind != "gradient":
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
        arguments = list(enumerate(schema.arguments))
        silent = _SILENT if "batch_norm" in self.name else ()
        self.written = [
            (number, one.name)
            for number, one in arguments
            if one.name in silent or (one.alias_info is not None and one.alias_info.is_write)
        ]


def mentions_values(error: BaseException) -> bool:
    """Return True if an exception speaks of inf or NaN."""
    words = r"\b(nans?|infs?|infinite|infinity|non-?finite|finite)\b"
    return bool(re.search(words, str(error), re.IGNORECASE))


def _loss_among(result: Any) -> Any:
    if isinstance(result, Mapping):
        return [value for key, value in result.items() if "loss" in str(key).lower()]
    return result[0] if isinstance(result, (tuple, list)) and result else result


def leaves_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves of graphs: what a backward pass through these tensors gives a gradient."""
    nodes = nodes_of([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])
    return [node.variable for node in nodes if hasattr(node, "variable")]


def _in_new_places(
    func: Any,
    op: _Op,
    args: Any,
    read: Sequence[Tensor],
    written: Sequence[Tensor],
    gave: Sequence[Tensor],
) -> bool:
    """Whether an op, number by number or adding a product, made inf or NaN in new places."""
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
    """Return a weak reference to a tensor's storage; None for one without, such as a sparse one."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return StorageWeakRef(local.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None
