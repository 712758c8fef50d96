"""Remember everything that a training step can reach, and put it back: models, optimizers, closures, attributes, generators.

From the step, its objects and its loss, whatever they refer to is followed: attributes, containers, cells of closures, the
globals that a function names. What was changed gets its old content, in place. What cannot get it is known by name.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import functools
import gc
import io
import logging
import mmap
import multiprocessing.sharedctypes
import random
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from amp_course.audit.code_objects import (
    Parts,
    follow_callable,
    follow_cell,
    follow_class,
    follow_function,
    follow_logger,
    follow_module,
)
from amp_course.audit.iterators import (
    answers_of,
    forget_counters,
    generator_putter,
    index_of,
    position_of,
    reseed,
    text_putter,
    without_counters,
)
from amp_course.audit.restoring import (
    MISSING,
    array_putter,
    buffer_putter,
    checksum,
    dict_putter,
    leaf_putter,
    object_putter,
    script_putter,
    slot_value,
    slots_of,
    tensor_putter,
    versions_putter,
)
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 200_000
_MOST_BYTES = 2**29  # of tensors and arrays that are copied, besides those of models and optimizers
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice, type(...),
    types.CodeType, types.FrameType,
)  # fmt: skip

# Of these a step has nothing to put back, and much that must not be: caches of compiled code, locks, kernels, sockets.
_LEFT_ALONE = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch._C", "threading", "_thread", "logging", "asyncio",
    "concurrent",
    "multiprocessing", "IPython", "ipykernel", "zmq", "ipywidgets", "traitlets", "matplotlib", "_pytest", "enum",
)  # fmt: skip


_CONTAINERS = (
    dict, list, set, tuple, frozenset, collections.deque, bytearray, array.array, np.ndarray, functools.partial, io.StringIO,
    io.BytesIO, random.Random,
)  # fmt: skip
_WATCHED = (io.IOBase, functools._lru_cache_wrapper, types.GeneratorType, types.CoroutineType)
_BUFFERS = (memoryview, mmap.mmap, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)


class Snapshot:
    """The state of a training at one moment; `restore()` brings it back, in place, as often as you like.

    own:  objects that are copied whatever their size: models, optimizers, scalers, schedulers
    held: name → an object whose surroundings are followed as well: the step, the loss, a data loader
    lost: names of what changed and could not be put back, filled by `restore`
    iterators: those among them that will give the next run other things
    graphs: nodes at which the graphs of tensors end that the step can reach → the tensor's name
    freed:  the names of those that the step has put through `backward()`
    """

    def __init__(self, own: Iterable[Any], held: dict[str, Any]) -> None:
        self.lost: dict[str, str] = {}
        self.iterators: set[str] = set()
        self.graphs: dict[Any, str] = {}
        self.freed: set[str] = set()
        self._parts: Parts = []
        self._met: dict[int, Any] = {}
        self._generators: list[Any] = []
        self._bytes_left: float = float("inf")
        for one in own:
            self._follow(type(one).__name__, one)
        self._bytes_left = _MOST_BYTES
        for name, one in held.items():
            self._follow(name, one)
        self._random = random_state()

    def covers(self, one: Any) -> bool:
        """Tell whether an object is put back."""
        return id(one) in self._met

    def reseed(self, seed: int) -> None:
        """Give every random generator that the step can reach another state, until the next `restore`."""
        for generator in self._generators:
            reseed(generator, seed)

    def differentiated(self, nodes: Iterable[Any]) -> None:
        """Name the tensors whose graphs, built before, a `backward()` of the step went through, which frees them."""
        for node in nodes:
            self.freed.add(self.graphs[node])
            self.lost[self.graphs[node]] = "has a graph that the step put through `backward()`, which frees it"

    def restore(self) -> None:
        """Put everything back."""
        forget_counters()
        with torch.no_grad():
            for name, put in self._parts:
                try:
                    put()
                except Exception as error:
                    self.lost.setdefault(name, f"could not be put back ({type(error).__name__}: {error})")
        set_random_state(self._random)

    def _follow(self, name: str, first: Any) -> None:
        waiting: collections.deque[tuple[str, Any]] = collections.deque([(name, first)])
        while waiting:
            path, one = waiting.popleft()
            if id(one) in self._met or _is_plain(one):
                continue
            if len(self._met) >= _MOST_OBJECTS:
                self.lost.setdefault(path, f"and what comes after it: {name} holds more than {_MOST_OBJECTS:,} objects")
                return
            self._met[id(one)] = one  # kept alive, so that its id stays its own
            try:
                waiting.extend(list(self._remember(path, one)))
            except Exception as error:  # an object of the reader's that no one can look into
                self.lost.setdefault(
                    path, f"is a {type(one).__name__} that could not be looked into ({type(error).__name__})"
                )

    def _remember(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        """Note how to put one object back; yield what it refers to."""
        if isinstance(one, _CONTAINERS) and isinstance(attributes := getattr(one, "__dict__", None), dict):
            self._parts.append((path, object_putter(one, attributes)))  # a container of the reader's own
            yield from ((f"{path}.{key}", value) for key, value in without_counters(attributes))
            yield path, type(one)
        if isinstance(one, Tensor):
            yield from self._tensor(path, one)
        elif isinstance(one, np.ndarray):
            yield from self._array(path, one)
        elif isinstance(one, dict):
            yield from self._dict(path, one)
        elif isinstance(one, (list, collections.deque)):
            yield from self._sequence(path, one)
        elif isinstance(one, set):
            content = list(one)
            self._parts.append(
                (path, lambda: None if set(content) == one else (set.clear(one), set.update(one, content))[0])
            )
            yield from ((path, item) for item in content)
        elif isinstance(one, (bytearray, array.array)):
            bytes_then: Any = one[:]
            self._parts.append((path, lambda: None if one == bytes_then else one.__setitem__(slice(None), bytes_then)))
        elif isinstance(one, (tuple, frozenset)):
            yield from ((f"{path}[{n}]", item) for n, item in enumerate(one))
        elif isinstance(one, types.FunctionType):
            yield from follow_function(self._parts, path, one)
        elif isinstance(one, (types.MethodType, functools.partial)):
            yield from follow_callable(self._parts, path, one)
        elif isinstance(one, (types.BuiltinFunctionType, types.MethodWrapperType)):
            yield path, one.__self__  # `losses.append` holds the list
        elif isinstance(one, types.ModuleType):
            yield from follow_module(self._parts, path, one)
        elif isinstance(one, types.CellType):
            yield from follow_cell(self._parts, path, one)
        elif (state := generator_putter(one)) is not None:
            self._generators.append(one)
            self._parts.append((path, lambda: state(one)))
        elif isinstance(one, type):
            yield from follow_class(self._parts, path, one)
        elif isinstance(one, (io.StringIO, io.BytesIO)):
            self._parts.append((path, text_putter(one)))
        elif isinstance(one, _BUFFERS):
            self._parts.append((path, buffer_putter(one)))
        elif isinstance(one, torch.UntypedStorage):
            yield path, torch.empty(0, dtype=torch.uint8, device=one.device).set_(one)
        elif isinstance(one, multiprocessing.sharedctypes.SynchronizedBase):
            yield path, one.get_obj()
        elif isinstance(one, (logging.Logger, logging.LoggerAdapter, logging.Handler)):
            yield from follow_logger(self._parts, path, one)
        elif isinstance(one, property):
            yield from ((path, function) for function in (one.fget, one.fset, one.fdel))
        elif isinstance(one, weakref.ref):
            yield path, one()
        elif isinstance(one, (threading.Event, threading.Semaphore)):
            self._parts.append((path, dict_putter(vars(one))))
        elif isinstance(one, threading.local):
            yield from self._dict(path, vars(one))
        elif isinstance(one, contextvars.ContextVar):
            yield path, one.get(None)  # what it is set to ends with the context that the audit runs in
        elif isinstance(one, _WATCHED) or hasattr(type(one), "__next__"):
            yield from self._watch(path, one)
        elif type(one).__dictoffset__ == 0 and (before := answers_of(one)):
            self._parts.append((path, lambda: self._look_again(path, one, before)))
        else:
            yield from self._object(path, one)

    # ---- tensors ----

    def _tensor(self, path: str, one: Tensor) -> Iterator[tuple[str, Any]]:
        size = one.numel() * one.element_size() if one.layout == torch.strided else 0
        yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
        if one._base is not None:
            yield path, one._base
        if one.is_leaf and one.grad is not None:
            yield f"{path}.grad", one.grad
        self._parts.append((path, object_putter(one, vars(one))))
        if one.grad_fn is not None:
            self._graph(path, one)
        if one.device.type == "meta" or size > self._bytes_left:
            version = one._version

            def look() -> None:
                if one._version != version:
                    kind = "tensor without numbers" if one.device.type == "meta" else "large tensor"
                    self.lost[path] = f"is a {kind} that the step changed in place"

            self._parts.append((path, look))
        else:
            self._bytes_left -= size
            self._parts += [(path, tensor_putter(one)), (path, versions_putter(one))]
        if one.is_leaf:
            self._parts.append((path, leaf_putter(one)))

    def _graph(self, path: str, one: Tensor) -> None:
        self.graphs[one.grad_fn] = path

        def look() -> None:
            if one.grad_fn is None:
                self.lost[path] = "is a tensor that the step detached from its graph"

        self._parts.append((path, look))

    def _array(self, path: str, one: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
        if one.nbytes > self._bytes_left:
            before = checksum(one)

            def look() -> None:
                if checksum(one) != before:
                    self.lost[path] = "is a large array that the step changed in place"

            self._parts.append((path, look))
            return
        self._bytes_left -= one.nbytes
        self._parts.append((path, array_putter(one)))
        if one.dtype == object:
            yield from ((path, item) for item in one.flat)

    # ---- containers ----

    def _dict(self, path: str, one: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
        self._parts.append((path, dict_putter(one)))
        if isinstance(one, collections.defaultdict):
            factory = one.default_factory
            self._parts.append((path, lambda: setattr(one, "default_factory", factory)))
        for key, value in without_counters(one):
            yield f"{path}[{key!r}]" if isinstance(key, (str, int)) else path, value
            if not isinstance(key, (str, int)):
                yield path, key

    def _sequence(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        kind: Any = list if isinstance(one, list) else collections.deque  # a class of the reader's may count otherwise
        content = list(kind.__iter__(one))

        def put() -> None:
            now = list(kind.__iter__(one))
            if len(now) == len(content) and all(a is b for a, b in zip(now, content, strict=True)):
                return
            kind.clear(one)
            kind.extend(one, content)

        self._parts.append((path, put))
        yield from ((f"{path}[{n}]", item) for n, item in enumerate(content))

    # ---- other objects ----

    def _watch(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        """Remember where an iterator, a cache or a file stands, which nobody can put back; follow the iterators inside it."""
        if not isinstance(one, _WATCHED) or isinstance(one, functools._lru_cache_wrapper):
            inside = [part for part in gc.get_referents(one) if not isinstance(part, type)]
            yield from ((path, part) for part in inside)
        before, index = position_of(one), index_of(one)

        def look() -> None:
            if index is not None and index_of(one) is not None:
                one.__setstate__(index)
            elif position_of(one) != before:
                self.lost[path] = _moved_on(one)
                if not isinstance(one, (io.IOBase, functools._lru_cache_wrapper)):
                    self.iterators.add(path)

        self._parts.append((path, look))

    def _look_again(self, path: str, one: Any, before: Any) -> None:
        if answers_of(one) != before:
            self.lost[path] = f"is an object ({type(one).__name__}) that the step has changed"

    def _object(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        module = type(one).__module__
        if any(module == name or module.startswith(f"{name}.") for name in _LEFT_ALONE):
            return
        attributes = getattr(one, "__dict__", None)
        attributes = attributes if isinstance(attributes, dict) else None
        self._parts.append((path, object_putter(one, attributes)))
        if isinstance(one, torch.jit.RecursiveScriptModule):
            self._parts.append((path, script_putter(one)))
        if attributes is not None:
            # In a module these are dicts of their own, which hold what matters.
            yield from ((path if isinstance(one, nn.Module) and key.startswith("_") else f"{path}.{key}", value)
                        for key, value in without_counters(attributes))  # fmt: skip
        for slot in slots_of(type(one)):
            if (value := slot_value(slot, one)) is not MISSING:
                yield f"{path}.{slot.__name__}", value
        if isinstance(one, (torch.optim.Optimizer, nn.Module)) or type(one).__module__ != "builtins":
            yield path, type(one)


def _is_plain(one: Any) -> bool:
    """Tell whether there is nothing in an object to put back."""
    kind = type(one)
    if kind is tuple and len(one) < 64:
        return all(issubclass(type(item), _PLAIN) for item in one)
    return issubclass(kind, _PLAIN) and not hasattr(one, "__dict__")


def _moved_on(one: Any) -> str:
    if isinstance(one, functools._lru_cache_wrapper):
        return "is a cache that the step has used"
    kind = "a file" if isinstance(one, io.IOBase) else "an iterator"
    return f"is {kind} ({type(one).__name__}) that the step has moved on"
