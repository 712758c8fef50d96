"""Remember a training and the plain data that its step can reach, and put both back in place.

Put back: models, optimizers, scalers and schedulers (parameters, buffers, gradients, state, modes,
hooks, attributes), random generators, and numbers, strings, lists, dicts, sets, tensors, arrays
and copyable iterators in closures, named globals and attributes. Nothing else: what a generator,
a file, a lock or C code keeps is lost, and shows in that two runs of the step differ.
"""

from __future__ import annotations

import collections
import functools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from amp_course.audit.restoring import (
    MISSING,
    array_putter,
    copy_of,
    duplicate,
    holds_same,
    names_in,
    position_of,
    refill,
    slot_value,
    slots_of,
    tensor_putter,
)
from amp_course.checking.explain import is_readers
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 1_000_000
_MOST_TENSORS = 10_000  # besides those of models and optimizers
_MOST_BYTES = 2**29  # of those
_MANY = 10_000  # containers, or things in one: few steps touch them, and looking takes its time
_PLAIN = {
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size,
    range, slice,
}  # fmt: skip
_CONTAINERS = (list, dict, set, collections.deque, bytearray)
_GENERATORS = (
    torch.Generator, random.Random, np.random.Generator, np.random.RandomState,
    np.random.BitGenerator,
)  # fmt: skip
# Nothing of these is a step's own data: caches of compiled code, locks, kernels, sockets, files.
_LEFT_ALONE = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch._C", "_thread",
    "threading", "logging", "asyncio", "concurrent", "multiprocessing", "IPython", "ipykernel",
    "zmq", "ipywidgets", "traitlets", "matplotlib", "_pytest", "enum", "weakref", "_weakref", "io",
    "_io", "re", "contextvars", "_contextvars", "queue", "ctypes", "_ctypes", "subprocess",
)  # fmt: skip


class Snapshot:
    """The state of a training at one moment; `restore()` brings it back as often as you like.

    own:  objects that are copied whatever their size: models, optimizers, scalers, schedulers
    held: name → an object whose surroundings are followed as well: the step, the loss, a loader
    lost: name → what changed and could not be put back, filled by `restore`
    iterators: the names in it that will give the next run other things
    """

    def __init__(self, own: Iterable[Any], held: dict[str, Any]) -> None:
        self.lost: dict[str, str] = {}
        self.iterators: set[str] = set()
        self._puts: list[tuple[str, Callable[[], None]]] = []
        self._met: dict[int, Any] = {}  # kept alive, so that an id stays its own
        self._plain: list[Any] = []  # containers of numbers and strings, and copies of them
        self._copies: list[Any] = []
        self._touched: set[int] = set()  # the numbers of those that a run changed
        self._generators: list[Any] = []
        self._iterators: dict[int, Any] = {}  # the id of an iterator → a copy to make others from
        self._fresh: dict[int, Any] = {}
        self._restored = 0
        self._looks_at_all = True
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._bytes_left: float = float("inf")
        self._tensors_left: float = float("inf")
        self._follow((type(one).__name__, one) for one in own)
        self._bytes_left, self._tensors_left = _MOST_BYTES, _MOST_TENSORS
        self._follow(held.items())
        self._random = random_state()

    def covers(self, one: Any) -> bool:
        """Return True if an object is put back."""
        return id(one) in self._met

    def reseed(self, seed: int) -> None:
        """Give every random generator that was found another state, until the next `restore`."""
        for one in self._generators:
            if isinstance(one, torch.Generator):
                one.manual_seed(seed)
            elif isinstance(one, (random.Random, np.random.RandomState)):
                one.seed(seed)
            else:
                bits = getattr(one, "bit_generator", one)
                bits.state = type(bits)(seed).state

    def restore(self, last: bool = True) -> None:
        """Put everything back. last: also large data that the step's first runs did not touch."""
        self._fresh = {}
        self._looks_at_all = last or self._restored < 3
        self._restored += 1
        if self._looks_at_all or len(self._plain) < _MANY:
            self._touched |= _different(self._plain, self._copies)
        for number in self._touched:
            if not holds_same(self._plain[number], self._copies[number]):
                refill(self._plain[number], self._copies[number])
        with torch.no_grad():
            for name, put in self._puts:
                try:
                    put()
                except Exception as error:
                    why = f"could not be put back ({type(error).__name__}: {error})"
                    self.lost.setdefault(name, why)
        set_random_state(self._random)

    # ---- what is found ----

    def _follow(self, roots: Iterable[tuple[str, Any]]) -> None:
        for name, one in roots:
            self._children(name, (one,))
        while self._waiting:
            name, one = self._waiting.popleft()
            if id(one) in self._met:
                continue
            if len(self._met) > _MOST_OBJECTS:
                self.lost[name] = f"is not looked into: there are over {_MOST_OBJECTS:,} objects"
                self._waiting.clear()
                return
            self._met[id(one)] = one
            try:
                self._remember(name, one)
            except Exception as error:  # an object that raises when it is looked at
                kind = type(one).__name__
                self.lost[name] = f"is a {kind} that could not be looked into ({error})"

    def _children(self, name: str, values: Iterable[Any]) -> None:
        for one in values:
            kind = type(one)
            if kind in _PLAIN:
                continue
            if kind is list and _PLAIN.issuperset(map(type, one)):  # most of what large data hold
                if id(one) not in self._met:
                    self._met[id(one)] = one
                    self._plain.append(one)
                    self._copies.append(one[:])
                continue
            self._waiting.append((name, one))

    def _remember(self, name: str, one: Any) -> None:
        """Note how to put one object back, and what it refers to."""
        if isinstance(one, Tensor):
            self._tensor(name, one)
        elif isinstance(one, np.ndarray):
            self._array(name, one)
        elif isinstance(one, _CONTAINERS):
            self._container(name, one)
            if isinstance(attributes := getattr(one, "__dict__", None), dict):
                self._attributes(name, attributes)
        elif isinstance(one, (tuple, frozenset)):
            self._children(name, one)
        elif isinstance(one, types.FunctionType):
            self._function(name, one)
        elif isinstance(one, types.MethodType):
            self._children(name, (one.__func__,))
            self._children("self", (one.__self__,))
        elif isinstance(one, functools.partial):
            self._children(name, (one.func, one.args, one.keywords))
        elif isinstance(one, types.BuiltinMethodType):
            self._children(name, (one.__self__,))  # `losses.append` holds the list
        elif isinstance(one, types.CellType):
            self._cell(name, one)
        elif isinstance(one, _GENERATORS):
            self._generator(name, one)
        elif isinstance(one, (types.ModuleType, type)):
            self._namespace(name, one)
        elif hasattr(type(one), "__next__") and not _is_readers(type(one)):
            self._iterator(name, one)
        elif not f"{type(one).__module__}.".startswith(tuple(f"{m}." for m in _LEFT_ALONE)):
            self._object(name, one)

    def _container(self, name: str, one: Any) -> None:
        was = copy_of(one)
        content = list(one.values()) if isinstance(one, dict) else list(one)
        keys = list(one) if isinstance(one, dict) else []
        if _PLAIN.issuperset(map(type, [*keys, *content])):
            self._plain.append(one)
            self._copies.append(was)
            return
        self._puts.append((name, lambda: self._put_container(one, was)))
        self._children(name, [*keys, *content])

    def _put_container(self, one: Any, was: Any) -> None:
        if len(was) > _MANY and not self._looks_at_all:
            return
        new = was
        if self._iterators and not isinstance(was, (set, bytearray)):
            if isinstance(was, dict):
                new = copy_of(was)
                dict.update(new, {key: self._value(value) for key, value in was.items()})
            else:
                new = [self._value(value) for value in was]
        if not holds_same(one, new):
            refill(one, new)

    def _attributes(self, name: str, attributes: dict[str, Any]) -> None:
        """Follow what an object or a function keeps, each by its own name."""
        was = dict(attributes)
        self._puts.append((name, lambda: self._put_container(attributes, was)))
        for key, value in was.items():
            self._children(name if key.startswith("_") else f"{name}.{key}", (value,))

    def _tensor(self, name: str, one: Tensor) -> None:
        size = one.numel() * one.element_size() if one.layout == torch.strided else 0
        self._attributes(name, vars(one))
        self._children(name, (one._base, one.grad if one.is_leaf else None))
        self._bytes_left -= size
        self._tensors_left -= 1
        if one.device.type != "meta" and min(self._bytes_left, self._tensors_left) >= 0:
            self._puts.append((name, tensor_putter(one)))
            return
        self._bytes_left += size
        version = one._version

        def look() -> None:
            if one._version != version:
                self.lost[name] = "is a tensor too large to copy that the step changed in place"

        self._puts.append((name, look))

    def _array(self, name: str, one: np.ndarray[Any, Any]) -> None:
        if one.dtype == object:
            self._children(name, one.flat)
        if one.nbytes > self._bytes_left:
            self.lost.setdefault(name, "is an array too large to copy: it is as the step left it")
            return
        self._bytes_left -= one.nbytes
        self._puts.append((name, array_putter(one)))

    def _function(self, name: str, one: types.FunctionType) -> None:
        if is_readers(one.__code__.co_filename):
            named = names_in(one.__code__)
            self._names(name, one.__globals__, named)
            for module in named & sys.modules.keys() - one.__globals__.keys():
                self._children(module, (sys.modules[module],))  # imported in the function
        self._attributes(name, vars(one))
        defaults = one.__defaults__

        def put() -> None:
            if one.__defaults__ is not defaults:
                one.__defaults__ = defaults

        self._puts.append((name, put))
        self._children(name, (defaults, one.__kwdefaults__))
        for variable, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            self._children(variable, (cell,))

    def _names(self, name: str, where: dict[str, Any], names: Iterable[str]) -> None:
        """Remember what some names of a module refer to."""
        kept = {key: where.get(key, MISSING) for key in names}

        def put() -> None:
            for key, was in kept.items():
                value = self._value(was)
                if value is MISSING:
                    where.pop(key, None)
                elif where.get(key, MISSING) is not value:
                    where[key] = value

        self._puts.append((name, put))
        for key, value in kept.items():
            self._children(key, (value,))

    def _cell(self, name: str, one: types.CellType) -> None:
        try:
            content = one.cell_contents
        except ValueError:  # a variable without a value yet
            content = MISSING

        def put() -> None:
            if content is not MISSING:
                one.cell_contents = self._value(content)
            elif one != types.CellType():
                del one.cell_contents

        self._puts.append((name, put))
        self._children(name, (content,))

    def _namespace(self, name: str, one: Any) -> None:
        """Remember the globals of a module, or the attributes of a class, of the reader's own."""
        if not _is_readers(one):
            return
        kept = {key: value for key, value in vars(one).items() if not key.startswith("__")}

        def put() -> None:
            now = vars(one)
            for key in [key for key in now if not key.startswith("__") and key not in kept]:
                if not isinstance(now[key], types.ModuleType):  # one that was imported stays
                    delattr(one, key)
            for key, was in kept.items():
                value = self._value(was)
                if now.get(key, MISSING) is not value:
                    setattr(one, key, value)

        self._puts.append((name, put))
        for key, value in kept.items():
            self._children(f"{name}.{key}", (value,))

    def _generator(self, name: str, one: Any) -> None:
        bits = getattr(one, "bit_generator", one)
        if isinstance(bits, np.random.BitGenerator):
            state = bits.state
            put: Callable[[], None] = lambda: setattr(bits, "state", state)  # noqa: E731
        elif isinstance(one, random.Random):
            put = functools.partial(one.setstate, one.getstate())
        else:
            put = functools.partial(one.set_state, one.get_state())
        self._generators.append(one)
        self._puts.append((name, put))

    def _iterator(self, name: str, one: Any) -> None:
        """Copy an iterator; of one that cannot be copied, notice that it was moved on."""
        try:
            self._iterators[id(one)] = duplicate(one)
            return
        except Exception:
            before = position_of(one)

        def look() -> None:
            if position_of(one) != before:
                kind = type(one).__name__
                self.lost[name] = f"is an iterator ({kind}) that the step has moved on"
                self.iterators.add(name)

        self._puts.append((name, look))

    def _value(self, one: Any) -> Any:
        """Return a value as it is to be put back: of an iterator a copy, the same to all owners."""
        if id(one) not in self._iterators:
            return one
        if id(one) not in self._fresh:
            self._fresh[id(one)] = duplicate(self._iterators[id(one)])
        return self._fresh[id(one)]

    def _object(self, name: str, one: Any) -> None:
        kind = type(one)
        slots = [(slot, slot_value(slot, one)) for slot in slots_of(kind)]
        if isinstance(attributes := getattr(one, "__dict__", None), dict):
            self._attributes(name, attributes)
        self._children(name, (value for _, value in slots))

        def put() -> None:
            if type(one) is not kind:
                object.__setattr__(one, "__class__", kind)
            for slot, was in slots:
                value = self._value(was)
                if slot_value(slot, one) is not value:
                    slot.__delete__(one) if value is MISSING else slot.__set__(one, value)

        if slots or isinstance(one, nn.Module):
            self._puts.append((name, put))
        self._children(kind.__name__, (kind,))


def _different(some: list[Any], others: list[Any]) -> set[int]:
    """Return the places at which two lists of containers are not equal."""
    try:
        return {n for n, same in enumerate(map(operator.eq, some, others)) if not same}
    except Exception:  # there is a tensor among them now
        pairs = enumerate(zip(some, others, strict=True))
        return {n for n, (one, was) in pairs if not holds_same(one, was)}


def _is_readers(one: Any) -> bool:
    """Return True for a module or a class of the reader's own."""
    module = one if isinstance(one, types.ModuleType) else sys.modules.get(one.__module__)
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return name == "__main__" or (isinstance(file, str) and is_readers(file))
