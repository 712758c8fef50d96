"""Remember a training and the plain data that its step can reach, and put both back in place.

Put back: models, optimizers, scalers and schedulers (parameters, buffers, gradients, state, modes,
hooks, attributes), random generators, and numbers, strings, lists, dicts, sets, tensors, arrays
and copyable iterators in closures, named globals and attributes. Nothing else: what a generator,
a file, a lock or C code keeps is lost, and shows in that two runs of the step differ.
"""

from __future__ import annotations

import collections
import random
import sys
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from amp_course.audit.restoring import (
    CONTAINERS,
    MISSING,
    content_of,
    copy_of,
    duplicate,
    names_in,
    position_of,
    refill,
    slots_of,
    tensor_putter,
    value_at,
)
from amp_course.checking.explain import is_readers
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 1_000_000
_MOST_TENSORS = 10_000  # besides those of models and optimizers
_MOST_BYTES = 2**29  # of those
_PLAIN = {
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size,
    range, slice,
}  # fmt: skip
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
        self._generators: list[Any] = []
        self._iterators: dict[int, Any] = {}  # the id of an iterator → a copy to make others from
        self._fresh: dict[int, Any] = {}
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._bytes_left = self._tensors_left = float("inf")
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

    def restore(self) -> None:
        self._fresh = {}
        for one, was in zip(self._plain, self._copies, strict=True):
            if _differ(one, was):
                refill(one, content_of(was))
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
        self._waiting.extend(roots)
        while self._waiting:
            name, one = self._waiting.popleft()
            if id(one) in self._met or type(one) in _PLAIN:
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

    def _children(self, name: str, *values: Any) -> None:
        for one in values:
            # most of what large data hold
            if type(one) is list and _PLAIN.issuperset(map(type, one)):
                if id(one) not in self._met:
                    self._met[id(one)] = one
                    self._content(name, one)
            elif type(one) not in _PLAIN:
                self._waiting.append((name, one))

    def _remember(self, name: str, one: Any) -> None:
        """Note how to put one object back, and what it refers to."""
        for kind, remember in _KINDS:
            if isinstance(one, kind):
                remember(self, name, one)
                return
        if hasattr(type(one), "__next__") and not _is_readers(type(one)):
            self._iterator(name, one)
        elif not f"{type(one).__module__}.".startswith(tuple(f"{m}." for m in _LEFT_ALONE)):
            self._object(name, one)

    def _container(self, name: str, one: Any) -> None:
        self._content(name, one)
        self._children(name, *content_of(one))
        if type(one) not in CONTAINERS:
            self._attributes(name, one)

    def _content(self, name: str, one: Any) -> None:
        was = content_of(one)
        if _PLAIN.issuperset(map(type, was)):
            self._plain.append(one)
            self._copies.append(copy_of(one))
            return

        def put() -> None:
            refill(one, [*map(self._value, was)] if self._iterators else was)

        self._puts.append((name, put))

    def _attributes(self, name: str, one: Any) -> None:
        """Follow what an object or a function keeps, each by its own name."""
        if isinstance(kept := getattr(one, "__dict__", None), dict):
            self._content(name, kept)
            for key, value in kept.items():
                self._children(name if key.startswith("_") else f"{name}.{key}", value)

    def _places(self, name: str, places: Iterable[Any], get: Any, put: Any, drop: Any) -> Any:
        """Remember what lies in some places, and return it."""
        kept = {place: value_at(get, place) for place in places}

        def restore() -> None:
            for place, was in kept.items():
                value = self._value(was)
                if value_at(get, place) is not value:
                    drop(place) if value is MISSING else put(place, value)

        self._puts.append((name, restore))
        return kept

    def _named(self, name: str, one: Any, *names: str) -> None:
        """Remember and follow what an object has under some names, past what `vars` tells."""
        get, put, drop = (partial(way, one) for way in (getattr, setattr, delattr))
        self._children(name, *self._places(name, names, get, put, drop).values())

    def _fits(self, size: int) -> bool:
        if size > self._bytes_left or self._tensors_left < 1:
            return False
        self._bytes_left -= size
        self._tensors_left -= 1
        return True

    def _tensor(self, name: str, one: Tensor) -> None:
        size = one.numel() * one.element_size() if one.layout == torch.strided else 0
        self._attributes(name, one)
        self._children(name, one._base, one.grad if one.is_leaf else None)
        if one.device.type != "meta" and self._fits(size):
            self._puts.append((name, tensor_putter(one)))
            return
        version = one._version

        def look() -> None:
            if one._version != version:
                self.lost[name] = "is a tensor too large to copy that the step changed in place"

        self._puts.append((name, look))

    def _array(self, name: str, one: np.ndarray[Any, Any]) -> None:
        if one.dtype == object:
            self._children(name, *one.flat)
        if not self._fits(one.nbytes):
            self.lost.setdefault(name, "is an array too large to copy: it is as the step left it")
        elif one.flags.writeable:
            self._puts.append((name, partial(np.copyto, one, one.copy())))

    def _function(self, name: str, one: types.FunctionType) -> None:
        if is_readers(one.__code__.co_filename):
            names, where = names_in(one.__code__), one.__globals__
            ways = where.__getitem__, where.__setitem__, where.pop
            for key, value in self._places(name, names, *ways).items():
                self._children(key, value)
            for module in names & sys.modules.keys() - where.keys():
                self._children(module, sys.modules[module])  # imported in the function
        self._attributes(name, one)
        self._named(name, one, "__defaults__", "__kwdefaults__")
        for variable, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            self._children(variable, cell)

    def _method(self, name: str, one: types.MethodType) -> None:
        self._children(name, one.__func__)
        self._children("self", one.__self__)

    def _namespace(self, name: str, one: Any) -> None:
        """Remember the globals of a module, or the attributes of a class, of the reader's own."""
        if not _is_readers(one):
            return
        names = [key for key in vars(one) if not key.startswith("__")]
        ways = vars(one).__getitem__, partial(setattr, one), partial(delattr, one)
        for key, value in self._places(name, names, *ways).items():
            self._children(f"{name}.{key}", value)

    def _generator(self, name: str, one: Any) -> None:
        bits = getattr(one, "bit_generator", one)
        if isinstance(bits, np.random.BitGenerator):
            put = partial(setattr, bits, "state", bits.state)
        elif isinstance(one, random.Random):
            put = partial(one.setstate, one.getstate())
        else:
            put = partial(one.set_state, one.get_state())
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
        self._attributes(name, one)
        if slots := slots_of(kind):
            held = self._places(
                name,
                slots,
                lambda slot: slot.__get__(one),
                lambda slot, value: slot.__set__(one, value),
                lambda slot: slot.__delete__(one),
            )
            self._children(name, *held.values())
        if isinstance(one, nn.Module):  # a parametrization gives it another class
            self._named(name, one, "__class__")
        self._children(kind.__name__, kind)


# What an object is → how it is remembered; `losses.append` holds the list.
_KINDS: tuple[tuple[Any, Callable[[Snapshot, str, Any], object]], ...] = (
    (Tensor, Snapshot._tensor),
    (np.ndarray, Snapshot._array),
    (CONTAINERS, Snapshot._container),
    ((tuple, frozenset), lambda seen, name, one: seen._children(name, *one)),
    (types.FunctionType, Snapshot._function),
    (types.MethodType, Snapshot._method),
    (partial, lambda seen, name, one: seen._children(name, one.func, one.args, one.keywords)),
    (types.BuiltinMethodType, lambda seen, name, one: seen._children(name, one.__self__)),
    (types.CellType, lambda seen, name, one: seen._named(name, one, "cell_contents")),
    (_GENERATORS, Snapshot._generator),
    ((types.ModuleType, type), Snapshot._namespace),
)


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # there is a tensor in it now
        return True


def _is_readers(one: Any) -> bool:
    """Return True for a module or a class of the reader's own."""
    module = one if isinstance(one, types.ModuleType) else sys.modules.get(one.__module__)
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return name == "__main__" or (isinstance(file, str) and is_readers(file))
