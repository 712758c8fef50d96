"""Remember a training and the plain data that its step can reach, and put both back in place.

Put back: models, optimizers, scalers and schedulers (parameters, buffers, gradients, state, modes,
hooks, attributes), random generators, and numbers, strings, lists, dicts, sets, tensors, arrays
and copyable iterators in closures, named globals and attributes. Nothing else: what a generator,
a file, a lock or C code keeps is not put back; then two runs of the step may differ.
"""

from __future__ import annotations

import collections
import contextlib
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
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
    tensor_restorer,
    value_at,
)
from amp_course.checking.explain import is_learners
from amp_course.checking.interrupts import deferred
from amp_course.checking.sandbox import sandbox
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 1_000_000
_MOST_TENSORS = 10_000  # besides those of models and optimizers
_MOST_BYTES = 2**29  # of those
_PLAIN = {type(None), bool, int, float, complex, str, bytes, range, slice}
_PLAIN |= {torch.dtype, torch.device, torch.Size}
_NUMPY_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
# Nothing of these is a step's own data: caches of compiled code, locks, kernels, sockets, files.
_NOT_DATA = """
torch._dynamo torch._inductor torch._functorch torch.fx torch._C _thread threading logging asyncio
concurrent multiprocessing subprocess IPython ipykernel zmq ipywidgets traitlets matplotlib _pytest
enum weakref _weakref io _io re contextvars _contextvars queue ctypes _ctypes
"""
_LEFT_ALONE = tuple(f"{module}." for module in _NOT_DATA.split())


class Snapshot:
    """The state of a training at one moment; `restore()` brings it back as often as you like.

    own:   objects that are copied whatever their size: models, optimizers, scalers, schedulers
    roots: name → an object whose plain data are put back, too: the step, the loss, a loader
    lost:  name → what changed and could not be put back, filled by `restore`
    iterators: the names in `lost` of iterators that go on where the last run left them
    """

    def __init__(self, own: Iterable[Any], roots: dict[str, Any]) -> None:
        self.lost: dict[str, str] = {}
        self.iterators: set[str] = set()
        self._restorers: list[tuple[str, Callable[[], None]]] = []
        self._visited: dict[int, Any] = {}  # by id; they are kept alive, so that no id is reused
        self._plain: list[tuple[Any, Any]] = []  # containers of plain values, and their copies
        self._generators: list[Any] = []
        self._iterators: dict[int, Any] = {}  # the id of an iterator → a copy to make others from
        self._fresh: dict[int, Any] = {}
        self._queue: collections.deque[tuple[str, Any]] = collections.deque()
        self._bytes_left = self._tensors_left = float("inf")
        self._follow((type(one).__name__, one) for one in own)
        self._bytes_left, self._tensors_left = _MOST_BYTES, _MOST_TENSORS
        self._follow(roots.items())
        self._random = random_state()

    def covers(self, one: Any) -> bool:
        """Return True if an object is put back."""
        return id(one) in self._visited

    def reseed(self, seed: int) -> None:
        """Seed all random generators, global and found ones, until the next `restore`."""
        for seed_global in (torch.manual_seed, np.random.seed, random.seed):
            seed_global(seed)
        for one in self._generators:
            if isinstance(one, torch.Generator):
                one.manual_seed(seed)
            elif isinstance(one, (random.Random, np.random.RandomState)):
                one.seed(seed)
            else:
                bits = getattr(one, "bit_generator", one)
                bits.state = type(bits)(seed).state

    def restore(self) -> None:
        """Put everything back."""
        self._fresh = {}
        for one, copy in self._plain:
            if _differ(one, copy):
                refill(one, content_of(copy))
        with torch.no_grad():
            for name, restore in self._restorers:
                try:
                    restore()
                except Exception as error:
                    why = f"could not be put back ({type(error).__name__}: {error})"
                    self.lost.setdefault(name, why)
        set_random_state(self._random)

    # ---- what there is to put back ----

    def _follow(self, roots: Iterable[tuple[str, Any]]) -> None:
        self._queue.extend(roots)
        while self._queue:
            name, one = self._queue.popleft()
            if id(one) in self._visited or type(one) in _PLAIN:
                continue
            if len(self._visited) > _MOST_OBJECTS:
                self.lost[name] = f"is not looked into: there are over {_MOST_OBJECTS:,} objects"
                self._queue.clear()
                return
            self._visited[id(one)] = one
            try:
                self._remember(name, one)
            except Exception as error:  # some objects raise when they are inspected
                kind = type(one).__name__
                self.lost[name] = f"is a {kind} that could not be looked into ({error})"

    def _children(self, name: str, *values: Any) -> None:
        for one in values:
            # Lists of numbers need no place in the queue; large data hold many.
            if type(one) is list and _PLAIN.issuperset(map(type, one)):
                if id(one) not in self._visited:
                    self._visited[id(one)] = one
                    self._content(name, one)
            elif type(one) not in _PLAIN:
                self._queue.append((name, one))

    def _remember(self, name: str, one: Any) -> None:
        """Note how to put one object back, and what it refers to."""
        for kind, remember in _KINDS:
            if isinstance(one, kind):
                remember(self, name, one)
                return
        if hasattr(type(one), "__next__") and not _is_learners(type(one)):
            self._iterator(name, one)
        elif not f"{type(one).__module__}.".startswith(_LEFT_ALONE):
            self._object(name, one)

    def _container(self, name: str, one: Any) -> None:
        self._content(name, one)
        self._children(name, *content_of(one))
        if type(one) not in CONTAINERS:
            self._attributes(name, one)

    def _content(self, name: str, one: Any) -> None:
        content = content_of(one)
        if _PLAIN.issuperset(map(type, content)):
            self._plain.append((one, copy_of(one)))
            return

        def restore() -> None:
            refill(one, [*map(self._value, content)] if self._iterators else content)

        self._restorers.append((name, restore))

    def _attributes(self, name: str, one: Any) -> None:
        """Remember and follow the attributes of an object or a function."""
        if isinstance(attributes := getattr(one, "__dict__", None), dict):
            self._content(name, attributes)
            for key, value in attributes.items():
                self._children(name if key.startswith("_") else f"{name}.{key}", value)

    def _places(self, name: str, places: Iterable[Any], get: Any, put: Any, drop: Any) -> Any:
        """Remember what is in some places, and return it."""
        before = {place: value_at(get, place) for place in places}

        def restore() -> None:
            for place, was in before.items():
                value = self._value(was)
                if value_at(get, place) is not value:
                    drop(place) if value is MISSING else put(place, value)

        self._restorers.append((name, restore))
        return before

    def _named(self, name: str, one: Any, *names: str) -> None:
        """Remember and follow attributes that are not in an object's `__dict__`."""
        get, put, drop = (partial(access, one) for access in (getattr, setattr, delattr))
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
            self._restorers.append((name, tensor_restorer(one)))
            return
        version = one._version

        def check() -> None:
            if one._version != version:
                self.lost[name] = "is a tensor too large to copy that the step changed in place"

        self._restorers.append((name, check))

    def _array(self, name: str, one: np.ndarray[Any, Any]) -> None:
        if one.dtype == object:
            self._children(name, *one.flat)
        if not self._fits(one.nbytes):
            self.lost.setdefault(name, "is an array too large to copy: it is as the step left it")
        elif one.flags.writeable:
            self._restorers.append((name, partial(np.copyto, one, one.copy())))

    def _function(self, name: str, one: types.FunctionType) -> None:
        if is_learners(one.__code__.co_filename):
            names, where = names_in(one.__code__), one.__globals__
            access = where.__getitem__, where.__setitem__, where.pop
            for key, value in self._places(name, names, *access).items():
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
        """Remember the globals of a learner's module, or the attributes of a learner's class."""
        if not _is_learners(one):
            return
        names = [key for key in vars(one) if not key.startswith("__")]
        access = vars(one).__getitem__, partial(setattr, one), partial(delattr, one)
        for key, value in self._places(name, names, *access).items():
            self._children(f"{name}.{key}", value)

    def _generator(self, name: str, one: Any) -> None:
        bits = getattr(one, "bit_generator", one)
        if isinstance(bits, np.random.BitGenerator):
            restore = partial(setattr, bits, "state", bits.state)
        elif isinstance(one, random.Random):
            restore = partial(one.setstate, one.getstate())
        else:
            restore = partial(one.set_state, one.get_state())
        self._generators.append(one)
        self._restorers.append((name, restore))

    def _iterator(self, name: str, one: Any) -> None:
        """Copy an iterator; if that is impossible, report later that the step moved it on."""
        try:
            self._iterators[id(one)] = duplicate(one)
            return
        except Exception:
            before = position_of(one)

        def check() -> None:
            if position_of(one) != before:
                kind = type(one).__name__
                self.lost[name] = f"is an iterator ({kind}) that the step has moved on"
                self.iterators.add(name)

        self._restorers.append((name, check))

    def _value(self, one: Any) -> Any:
        """Return what to put back for a value: a copy of an iterator, one for all its owners."""
        if id(one) not in self._iterators:
            return one
        if id(one) not in self._fresh:
            self._fresh[id(one)] = duplicate(self._iterators[id(one)])
        return self._fresh[id(one)]

    def _object(self, name: str, one: Any) -> None:
        kind = type(one)
        self._attributes(name, one)
        if slots := slots_of(kind):
            values = self._places(
                name,
                slots,
                lambda slot: slot.__get__(one),
                lambda slot, value: slot.__set__(one, value),
                lambda slot: slot.__delete__(one),
            )
            self._children(name, *values.values())
        if isinstance(one, nn.Module):  # a parametrization gives it another class
            self._named(name, one, "__class__")
        self._children(kind.__name__, kind)


# The type of an object → how it is remembered; `losses.append` leads to the list.
_KINDS: tuple[tuple[Any, Callable[[Snapshot, str, Any], object]], ...] = (
    (Tensor, Snapshot._tensor),
    (np.ndarray, Snapshot._array),
    (CONTAINERS, Snapshot._container),
    ((tuple, frozenset), lambda self, name, one: self._children(name, *one)),
    (types.FunctionType, Snapshot._function),
    (types.MethodType, Snapshot._method),
    (partial, lambda self, name, one: self._children(name, one.func, one.args, one.keywords)),
    (types.BuiltinMethodType, lambda self, name, one: self._children(name, one.__self__)),
    (types.CellType, lambda self, name, one: self._named(name, one, "cell_contents")),
    ((torch.Generator, random.Random, *_NUMPY_GENERATORS), Snapshot._generator),
    ((types.ModuleType, type), Snapshot._namespace),
)


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # there is a tensor in it now
        return True


def _is_learners(one: Any) -> bool:
    """Return True for a module or a class of the learner's own."""
    module = one if isinstance(one, types.ModuleType) else sys.modules.get(one.__module__)
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return name == "__main__" or (isinstance(file, str) and is_learners(file))


@contextlib.contextmanager
def restored(own: Iterable[Any], roots: dict[str, Any]) -> Iterator[Snapshot]:
    """Put everything back after the block: what a `Snapshot` of these objects holds, and the
    process's state. Ctrl-C, a second one too, waits until that is done.
    """
    with sandbox():
        snapshot = Snapshot(own, roots)
        try:
            yield snapshot
        finally:
            with deferred():
                snapshot.restore()
