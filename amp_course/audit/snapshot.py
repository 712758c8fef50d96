"""Remember everything that a training step can reach, and put it back: models, optimizers, closures, attributes, generators.

From the step, its objects and its loss, whatever they refer to is followed: attributes, containers, cells of closures, the
globals that a function names. What was changed gets its old content, in place. What cannot get it is known by name.
"""

from __future__ import annotations

import array
import ast
import collections
import functools
import io
import itertools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from amp_course.checking.explain import is_readers
from amp_course.kit.random_state import random_state, set_random_state

_MOST_OBJECTS = 200_000
_MOST_BYTES = 2**29  # of tensors and arrays that are copied, besides those of models and optimizers
_MISSING = object()
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice, type(...),
    types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType, weakref.ref, property,
)  # fmt: skip

# Of these a step has nothing to put back, and much that must not be: caches of compiled code, locks, kernels, sockets.
_LEFT_ALONE = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch._C", "threading", "_thread", "logging", "asyncio",
    "concurrent",
    "multiprocessing", "IPython", "ipykernel", "zmq", "tqdm", "ipywidgets", "traitlets", "matplotlib", "_pytest", "enum",
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
            if isinstance(one, _PLAIN) or id(one) in self._met:
                continue
            if len(self._met) >= _MOST_OBJECTS:
                self.lost.setdefault(name, f"holds more than {_MOST_OBJECTS:,} objects; the rest was not watched")
                return
            self._met[id(one)] = one  # kept alive, so that its id stays its own
            waiting.extend(self._remember(path, one))

    def _remember(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        """Note how to put one object back; yield what it refers to."""
        if isinstance(one, Tensor):
            yield from self._tensor(path, one)
        elif isinstance(one, np.ndarray):
            self._array(path, one)
        elif isinstance(one, dict):
            yield from self._dict(path, one)
        elif isinstance(one, (list, collections.deque)):
            yield from self._sequence(path, one)
        elif isinstance(one, set):
            content = list(one)
            self._parts.append(
                (path, lambda: None if set(content) == one else (set.clear(one), set.update(one, content))[0])
            )
        elif isinstance(one, (bytearray, array.array)):
            bytes_then: Any = one[:]
            self._parts.append((path, lambda: None if one == bytes_then else one.__setitem__(slice(None), bytes_then)))
        elif isinstance(one, (tuple, frozenset)):
            yield from ((f"{path}[{n}]", item) for n, item in enumerate(one))
        elif isinstance(one, types.FunctionType):
            yield from self._function(path, one)
        elif isinstance(one, (types.MethodType, functools.partial)):
            yield from self._callable(path, one)
        elif isinstance(one, types.CellType):
            yield from self._cell(path, one)
        elif (state := _generator_state(one)) is not None:
            self._parts.append((path, lambda: state(one)))
        elif isinstance(one, type):
            yield from self._class(path, one)
        elif isinstance(one, io.IOBase) or hasattr(one, "__next__"):
            self._watch(path, one)
        else:
            yield from self._object(path, one)

    # ---- tensors ----

    def _tensor(self, path: str, one: Tensor) -> Iterator[tuple[str, Any]]:
        size = one.numel() * one.element_size() if one.layout == torch.strided else 0
        yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
        self._parts.append((path, _contents(vars(one))))
        if one.is_leaf:
            flag, grad = one.requires_grad, one.grad
            hooks = [_hooks(one, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
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
                if not _same(alias, value):
                    alias.copy_(value)

        self._parts.append((path, put_value))
        if one.is_leaf:
            self._parts.append((path, put_leaf))

    def _array(self, path: str, one: np.ndarray[Any, Any]) -> None:
        if one.nbytes > self._bytes_left or not one.flags.writeable:
            return
        self._bytes_left -= one.nbytes
        value = one.copy()
        self._parts.append((path, lambda: np.copyto(one, value)))

    # ---- containers ----

    def _dict(self, path: str, one: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
        self._parts.append((path, _contents(one)))
        for key, value in _others(one):
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
        self._parts.append((path, _contents(vars(one))))
        yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
        yield from ((path, value) for value in (*(defaults or ()), *(kept or {}).values()))
        yield from zip(code.co_freevars, one.__closure__ or (), strict=True)
        if is_readers(code.co_filename):
            names = [name for name in _names(code) if _counts(one.__globals__.get(name, one)) is None]
            self._parts.append((path, _globals(one.__globals__, _names(code))))
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
        content = one.cell_contents if _filled(one) else _MISSING
        position = _counts(content)

        def put() -> None:
            nonlocal content
            if content is _MISSING:
                if _filled(one):
                    del one.cell_contents
                return
            content = _counting(content, position)
            if not _filled(one) or one.cell_contents is not content:
                one.cell_contents = content

        self._parts.append((path, put))
        if content is not _MISSING and position is None:
            yield path, content

    # ---- other objects ----

    def _class(self, path: str, one: type) -> Iterator[tuple[str, Any]]:
        """Remember the attributes of a class of the reader's own."""
        module = one.__module__
        if module != "__main__" and not is_readers(getattr(sys.modules.get(module), "__file__", None) or ""):
            return
        content = {k: v for k, v in vars(one).items() if not k.startswith("__")}

        def put() -> None:
            now = vars(one)
            for key in [key for key in now if not key.startswith("__") and key not in content]:
                delattr(one, key)
            for key, value in content.items():
                if now.get(key, _MISSING) is not value:
                    setattr(one, key, value)

        self._parts.append((path, put))
        yield from ((f"{path}.{key}", value) for key, value in content.items())

    def _watch(self, path: str, one: Any) -> None:
        """Remember where an iterator or a file stands, which nobody can put back."""
        before, index = _position(one), _index(one)

        def look() -> None:
            if index is not None and _index(one) is not None:
                one.__setstate__(index)
            elif _position(one) != before:
                kind = "a file" if isinstance(one, io.IOBase) else "an iterator"
                self.lost[path] = f"is {kind} ({type(one).__name__}) that the step has moved on"

        self._parts.append((path, look))

    def _object(self, path: str, one: Any) -> Iterator[tuple[str, Any]]:
        if type(one).__module__.startswith(_LEFT_ALONE):
            return
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict):
            self._parts.append((path, _contents(attributes)))
            # In a module these are dicts of their own, which hold what matters.
            yield from ((path if isinstance(one, nn.Module) and key.startswith("_") else f"{path}.{key}", value)
                        for key, value in _others(attributes))  # fmt: skip
        for name in _slots(type(one)):
            value = getattr(one, name, _MISSING)
            self._parts.append((path, _slot(one, name, value)))
            if value is not _MISSING:
                yield f"{path}.{name}", value
        if isinstance(one, (torch.optim.Optimizer, nn.Module)) or type(one).__module__ != "builtins":
            yield path, type(one)


def _contents(one: dict[Any, Any]) -> Put:
    """Return what gives a dict its present content back, if that has changed."""
    keys, values = list(dict.keys(one)), list(dict.values(one))
    ordered = isinstance(one, collections.OrderedDict)
    positions = {n: position for n, value in enumerate(values) if (position := _counts(value)) is not None}

    def put() -> None:
        for n, position in positions.items():
            values[n] = _counting(values[n], position)
        if len(one) == len(keys) and all(
            (a is b and x is y) for a, b, x, y in zip(one, keys, one.values(), values, strict=True)
        ):
            return
        if ordered:
            one.clear()
            for key, value in zip(keys, values, strict=True):
                one[key] = value
        else:
            dict.clear(one)
            dict.update(one, zip(keys, values, strict=True))

    return put


def _hooks(tensor: Tensor, name: str) -> Put:
    """Return what gives a tensor the hooks back that it has now."""
    hooks = getattr(tensor, name, None)
    content = None if hooks is None else list(hooks.items())

    def put() -> None:
        now = getattr(tensor, name, None)
        if now is None or (content is not None and list(now.items()) == content):
            return
        now.clear()
        now.update(content or ())
        if hooks is None:
            setattr(tensor, name, None)

    return put


def _globals(where: dict[str, Any], names: Iterable[str]) -> Put:
    kept = {name: where.get(name, _MISSING) for name in names}
    positions = {name: _counts(value) for name, value in kept.items()}

    def put() -> None:
        for name, position in positions.items():
            kept[name] = _counting(kept[name], position)
        for name, value in kept.items():
            if value is _MISSING:
                where.pop(name, None)
            elif where.get(name, _MISSING) is not value:
                where[name] = value

    return put


def _slot(one: Any, name: str, value: Any) -> Put:
    def put() -> None:
        if getattr(one, name, _MISSING) is not value:
            delattr(one, name) if value is _MISSING else setattr(one, name, value)

    return put


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and isinstance(vars(base).get(name), types.MemberDescriptorType):
                yield name


def _names(code: types.CodeType) -> set[str]:
    """The names that a function looks up, those in it included."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names(const)
    return names


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one shape and dtype are equal, NaN being like NaN; False if that cannot be said."""
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):
        return False


def _generator_state(one: Any) -> Callable[[Any], None] | None:
    """Return what puts a random generator back, or None for another object."""
    if isinstance(one, torch.Generator):
        torchs = one.get_state()
        return lambda generator: generator.set_state(torchs)
    if isinstance(one, random.Random):
        pythons = one.getstate()
        return lambda generator: generator.setstate(pythons)
    if isinstance(one, np.random.Generator):
        numpys = one.bit_generator.state
        return lambda generator: setattr(generator.bit_generator, "state", numpys)
    if isinstance(one, np.random.RandomState):
        legacy = one.get_state()
        return lambda generator: generator.set_state(legacy)
    return None


def _others(one: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict but for its counters, which `_contents` puts back."""
    return [(key, value) for key, value in dict.items(one) if _counts(value) is None]


def _counts(one: Any) -> str | None:
    """Return where a counter stands, None for anything else: "count(3)"."""
    return repr(one) if type(one) is itertools.count else None


def _counting(one: Any, position: str | None) -> Any:
    """Return a counter that stands where this one stood: it cannot be set back, but its owner can be given another."""
    if position is None or repr(one) == position:
        return one
    return itertools.count(*ast.literal_eval(position.removeprefix("count").replace(")", ",)")))


def _index(one: Any) -> int | None:
    """Return the place of an iterator that can be set back: one over a list, a tuple or a range, that has not ended."""
    if not isinstance(one, (type(iter([])), type(iter(())), type(iter(range(0))))):
        return None
    reduced = one.__reduce__()
    return reduced[2] if len(reduced) > 2 and isinstance(reduced[2], int) else None


def _position(one: Any) -> Any:
    """Say where an iterator or a file stands, as far as can be seen without moving it."""
    try:
        if isinstance(one, io.IOBase):
            return None if one.closed else (one.tell() if one.seekable() else None)
        if isinstance(one, types.GeneratorType):
            return one.gi_frame.f_lasti if one.gi_frame is not None else "ended", _locals(one)
        hint = one.__length_hint__() if hasattr(one, "__length_hint__") else None
        yielded = getattr(one, "_num_yielded", None)
        return hint, yielded, repr(one) if type(one).__module__ == "itertools" else None
    except Exception:
        return None


def _locals(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    frame = generator.gi_frame
    plain = (int, float, str, bool, type(None))
    return None if frame is None else {k: v if isinstance(v, plain) else id(v) for k, v in frame.f_locals.items()}
