"""Remember everything that a training step can reach, and put it back: models, optimizers, closures, attributes, generators.

From the step, its objects and its loss, whatever they refer to is followed: attributes, containers, cells of closures, the
globals that a function names. What was changed gets its old content, in place. What cannot get it is known by name.
"""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from amp_course.audit.restoring import (
    MISSING,
    checksum,
    counter_at,
    counter_position,
    dict_putter,
    generator_putter,
    globals_putter,
    hooks_putter,
    index_of,
    is_filled,
    names_in,
    position_of,
    reseed,
    same_numbers,
    slot_putter,
    slots_of,
    without_counters,
)
from amp_course.checking.explain import is_readers
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 200_000
_MOST_BYTES = 2**29  # of tensors and arrays that are copied, besides those of models and optimizers
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice, type(...),
    types.CodeType, types.FrameType, weakref.ref, property,
)  # fmt: skip

# Of these a step has nothing to put back, and much that must not be: caches of compiled code, locks, kernels, sockets.
_LEFT_ALONE = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch._C", "threading", "_thread", "logging", "asyncio",
    "concurrent",
    "multiprocessing", "IPython", "ipykernel", "zmq", "ipywidgets", "traitlets", "matplotlib", "_pytest", "enum",
)  # fmt: skip


Put = Callable[[], None]


class Snapshot:
    """The state of a training at one moment; `restore()` brings it back, in place, as often as you like.

    own:  objects that are copied whatever their size: models, optimizers, scalers, schedulers
    held: name → an object whose surroundings are followed as well: the step, the loss, a data loader
    lost: names of what changed and could not be put back, filled by `restore`
    """

    def __init__(self, own: Iterable[Any], held: dict[str, Any]) -> None:
        self.lost: dict[str, str] = {}
        self._parts: list[tuple[str, Put]] = []
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

    def restore(self) -> None:
        """Put everything back."""
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
            yield from self._function(path, one)
        elif isinstance(one, (types.MethodType, functools.partial)):
            yield from self._callable(path, one)
        elif isinstance(one, (types.BuiltinFunctionType, types.MethodWrapperType)):
            yield path, one.__self__  # `losses.append` holds the list
        elif isinstance(one, types.ModuleType):
            yield from self._module(path, one)
        elif isinstance(one, types.CellType):
            yield from self._cell(path, one)
        elif (state := generator_putter(one)) is not None:
            self._generators.append(one)
            self._parts.append((path, lambda: state(one)))
        elif isinstance(one, type):
            yield from self._class(path, one)
        elif isinstance(one, (io.IOBase, functools._lru_cache_wrapper)) or hasattr(type(one), "__next__"):
            yield from self._watch(path, one)
        else:
            yield from self._object(path, one)

    # ---- tensors ----

    def _tensor(self, path: str, one: Tensor) -> Iterator[tuple[str, Any]]:
        size = one.numel() * one.element_size() if one.layout == torch.strided else 0
        yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
        self._parts.append((path, dict_putter(vars(one))))
        if one.is_leaf:
            flag, grad = one.requires_grad, one.grad
            hooks = [hooks_putter(one, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
            if grad is not None:
                yield f"{path}.grad", grad

            def put_leaf() -> None:
                if one.requires_grad != flag:
                    one.requires_grad_(flag)
                if one.grad is not grad:
                    one.grad = grad
                for put in hooks:
                    put()

        if one.device.type == "meta" or size > self._bytes_left:
            version = one._version

            def put_value() -> None:
                if one._version != version:
                    self.lost[path] = "is a large tensor that the step changed in place"
        else:
            self._bytes_left -= size
            alias, value = one.data, one.detach().clone()

            def put_value() -> None:
                now = one.data
                if (
                    now.dtype != alias.dtype
                    or now.shape != alias.shape
                    or now.layout != alias.layout
                    or (
                        alias.layout == torch.strided
                        and (now.data_ptr() != alias.data_ptr() or now.stride() != alias.stride())
                    )
                ):
                    one.data = alias
                if not same_numbers(alias, value):
                    alias.copy_(value)

        self._parts.append((path, put_value))
        if one.is_leaf:
            self._parts.append((path, put_leaf))

    def _array(self, path: str, one: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
        if one.nbytes > self._bytes_left:
            before = checksum(one)

            def look() -> None:
                if checksum(one) != before:
                    self.lost[path] = "is a large array that the step changed in place"

            self._parts.append((path, look))
            return
        if not one.flags.writeable:
            return
        self._bytes_left -= one.nbytes
        value = one.copy()
        self._parts.append((path, lambda: np.copyto(one, value)))
        if one.dtype == object:
            yield from ((path, item) for item in one.flat)

    # ---- containers ----

    def _dict(self, path: str, one: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
        self._parts.append((path, dict_putter(one)))
        for key, value in without_counters(one):
            yield f"{path}[{key!r}]" if isinstance(key, (str, int)) else path, value
            if not isinstance(key, (str, int)):
                yield path, key

    def _sequence(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        content = list(one)

        def put() -> None:
            if len(one) == len(content) and all(a is b for a, b in zip(one, content, strict=True)):
                return
            if isinstance(one, list):
                list.__setitem__(one, slice(None), content)
            else:
                one.clear()
                one.extend(content)

        self._parts.append((path, put))
        yield from ((f"{path}[{n}]", item) for n, item in enumerate(content))

    # ---- functions ----

    def _function(self, path: str, one: types.FunctionType) -> Iterator[tuple[str, Any]]:
        defaults, keywords, code = one.__defaults__, one.__kwdefaults__, one.__code__
        kept = dict(keywords) if keywords is not None else None

        def put() -> None:
            if one.__defaults__ is not defaults:
                one.__defaults__ = defaults
            if one.__kwdefaults__ != kept:
                one.__kwdefaults__ = kept
            if one.__code__ is not code:
                one.__code__ = code

        self._parts.append((path, put))
        self._parts.append((path, dict_putter(vars(one))))
        yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
        yield from ((path, value) for value in (*(defaults or ()), *(kept or {}).values()))
        yield from zip(code.co_freevars, one.__closure__ or (), strict=True)
        if is_readers(code.co_filename):
            names = [name for name in names_in(code) if counter_position(one.__globals__.get(name, one)) is None]
            self._parts.append((path, globals_putter(one.__globals__, names_in(code))))
            yield from ((name, one.__globals__[name]) for name in names if name in one.__globals__)

    def _callable(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(one, types.MethodType):
            yield path, one.__func__
            yield path if "." in path else "self", one.__self__
        else:
            yield path, one.func
            yield path, one.args
            yield path, one.keywords

    def _cell(self, path: str, one: types.CellType) -> Iterator[tuple[str, Any]]:
        content = one.cell_contents if is_filled(one) else MISSING
        position = counter_position(content)

        def put() -> None:
            nonlocal content
            if content is MISSING:
                if is_filled(one):
                    del one.cell_contents
                return
            content = counter_at(content, position)
            if not is_filled(one) or one.cell_contents is not content:
                one.cell_contents = content

        self._parts.append((path, put))
        if content is not MISSING and position is None:
            yield path, content

    # ---- other objects ----

    def _class(self, path: str, one: type) -> Iterator[tuple[str, Any]]:
        """Remember the attributes of a class of the reader's own."""
        if one.__module__ != "__main__" and not _is_readers(sys.modules.get(one.__module__)):
            return
        content = {k: v for k, v in vars(one).items() if not k.startswith("__")}

        def put() -> None:
            now = vars(one)
            for key in [key for key in now if not key.startswith("__") and key not in content]:
                delattr(one, key)
            for key, value in content.items():
                if now.get(key, MISSING) is not value:
                    setattr(one, key, value)

        self._parts.append((path, put))
        yield from ((f"{path}.{key}", value) for key, value in content.items())

    def _module(self, path: str, one: types.ModuleType) -> Iterator[tuple[str, Any]]:
        """Remember the globals of a module of the reader's own."""
        if not _is_readers(one):
            return
        content = {k: v for k, v in vars(one).items() if not k.startswith("__")}
        self._parts.append((path, globals_putter(vars(one), content)))
        yield from ((f"{path}.{key}", value) for key, value in content.items() if counter_position(value) is None)

    def _watch(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        """Remember where an iterator, a cache or a file stands, which nobody can put back; follow the iterators inside of it."""
        if not isinstance(one, (io.IOBase, types.GeneratorType)):
            inside = [part for part in gc.get_referents(one) if not isinstance(part, type)]
            yield from ((path, part) for part in inside)
        before, index = position_of(one), index_of(one)

        def look() -> None:
            if index is not None and index_of(one) is not None:
                one.__setstate__(index)
            elif position_of(one) != before:
                self.lost[path] = _moved_on(one)

        self._parts.append((path, look))

    def _object(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        module = type(one).__module__
        if any(module == name or module.startswith(f"{name}.") for name in _LEFT_ALONE):
            return
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict):
            self._parts.append((path, dict_putter(attributes)))
            # In a module these are dicts of their own, which hold what matters.
            yield from ((path if isinstance(one, nn.Module) and key.startswith("_") else f"{path}.{key}", value)
                        for key, value in without_counters(attributes))  # fmt: skip
        for name in slots_of(type(one)):
            value = getattr(one, name, MISSING)
            self._parts.append((path, slot_putter(one, name, value)))
            if value is not MISSING:
                yield f"{path}.{name}", value
        if isinstance(one, (torch.optim.Optimizer, nn.Module)) or type(one).__module__ != "builtins":
            yield path, type(one)


def _is_plain(one: Any) -> bool:
    """Tell whether there is nothing in an object to put back."""
    kind = type(one)
    if kind is tuple and len(one) < 64:
        return all(issubclass(type(item), _PLAIN) for item in one)
    return issubclass(kind, _PLAIN)


def _is_readers(module: types.ModuleType | None) -> bool:
    """Tell whether a module is the reader's own."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_readers(file)


def _moved_on(one: Any) -> str:
    if isinstance(one, functools._lru_cache_wrapper):
        return "is a cache that the step has used"
    kind = "a file" if isinstance(one, io.IOBase) else "an iterator"
    return f"is {kind} ({type(one).__name__}) that the step has moved on"
