"""How single things are put back: a container's content, a tensor, an array, an iterator."""

from __future__ import annotations

import ast
import collections
import gc
import itertools
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

MISSING = object()


def copy_of(one: Any) -> Any:
    """Return a shallow copy of a list, dict, set, deque or bytearray, past what a subclass does."""
    if isinstance(one, collections.OrderedDict):
        return collections.OrderedDict(one)
    if isinstance(one, collections.deque):
        return collections.deque(one, one.maxlen)
    kind: Any = next(kind for kind in (list, dict, set, bytearray) if isinstance(one, kind))
    return kind.copy(one)


def holds_same(one: Any, was: Any) -> bool:
    """Return True if two containers of one kind hold the same objects in the same order."""
    if isinstance(one, dict):
        kind: Any = collections.OrderedDict if isinstance(was, collections.OrderedDict) else dict
        if len(one) != len(was) or not all(map(operator.is_, kind.keys(one), kind.keys(was))):
            return False
        return all(dict.get(one, key, MISSING) is value for key, value in dict.items(was))
    if isinstance(one, (set, bytearray)):
        return bool(one == was)
    base: Any = list if isinstance(one, list) else collections.deque
    return base.__len__(one) == len(was) and all(map(operator.is_, base.__iter__(one), was))


def refill(one: Any, was: Any) -> None:
    """Give a container its old content."""
    if isinstance(one, dict):
        kind: Any = collections.OrderedDict if isinstance(was, collections.OrderedDict) else dict
        kind.clear(one)
        for key, value in was.items():
            kind.__setitem__(one, key, value)
    elif isinstance(one, set):
        set.clear(one)
        set.update(one, was)
    elif isinstance(one, collections.deque):
        collections.deque.clear(one)
        collections.deque.extend(one, was)
    else:
        type(was).__setitem__(one, slice(None), was)


def slots_of(kind: type) -> list[Any]:
    """Return the descriptors of a class's slots, inherited ones included."""
    return [
        value
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for value in vars(base).values()
        if isinstance(value, types.MemberDescriptorType)
    ]


def slot_value(slot: Any, one: Any) -> Any:
    """Return what a slot of an object holds, `MISSING` for nothing."""
    try:
        return slot.__get__(one)
    except AttributeError:
        return MISSING


def tensor_putter(one: Tensor) -> Callable[[], None]:
    """Return what gives a tensor its numbers, memory, gradient, flag, hooks and version back."""
    alias, flag = one.data, one.requires_grad
    # Of an expanded tensor each number of its memory is written once.
    for dim, stride in enumerate(alias.stride() if alias.layout == torch.strided else ()):
        if stride == 0 and alias.shape[dim] > 1:
            alias = alias.narrow(dim, 0, 1)
    whole, value = one.data, alias.detach().clone()
    place, grad = _place(whole), one.grad if one.is_leaf else None
    hooks = {name: dict(getattr(one, name, None) or {}) for name in HOOKS} if one.is_leaf else {}
    try:  # with its old numbers, graphs that were built on it are right again
        version = torch.autograd._unsafe_preserve_version_counter(one)
    except RuntimeError:  # an inference tensor counts nothing
        version = None

    def put() -> None:
        if _place(one.data) != place:
            one.data = whole
        if whole.layout != torch.strided:
            one.copy_(value)
        elif not _same_numbers(alias, value):
            alias.copy_(value)
        if version is not None:
            version.__exit__(None, None, None)
        if one.requires_grad != flag and one.is_leaf:
            one.requires_grad_(flag)
        if one.is_leaf and one.grad is not grad:
            one.grad = grad
        for name, were in hooks.items():
            now = getattr(one, name, None)
            if now is not None and now != were:
                now.clear()
                now.update(were)

    return put


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _place(one: Tensor) -> tuple[Any, ...]:
    if one.layout != torch.strided:
        return one.dtype, one.shape, one.layout
    return one.dtype, one.shape, one.layout, one.data_ptr(), one.stride()


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):
        return False


def array_putter(one: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Return what gives an array its numbers, its shape and its flag back."""
    value, shape, writeable = one.copy(), one.shape, one.flags.writeable

    def put() -> None:
        if one.shape != shape:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # since NumPy 2.5
                one.shape = shape
        if writeable:
            one.flags.writeable = True
            np.copyto(one, value)

    return put


def duplicate(one: Any) -> Any:
    """Return an independent copy of an iterator and of those inside it, from Python's own parts.

    Raises TypeError for one that has none: a generator, or most of `itertools` from Python 3.14 on.
    """
    if type(one) is itertools.count:
        start = repr(one).removeprefix("count").replace(")", ",)")
        return itertools.count(*ast.literal_eval(start))
    if type(one).__module__ not in ("builtins", "itertools"):
        raise TypeError(f"a {type(one).__name__} cannot be copied")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kind, arguments, *state = one.__reduce__()
    new = kind(*map(_inside, arguments))
    if state and state[0] is not None:
        new.__setstate__(_inside(state[0], lists=True))
    return new


def _inside(one: Any, lists: bool = False) -> Any:
    if isinstance(one, tuple):
        return tuple(_inside(part, lists) for part in one)
    if lists and type(one) is list:
        return list(one)
    return duplicate(one) if hasattr(type(one), "__next__") else one


def position_of(one: Any) -> Any:
    """Return where an iterator that cannot be copied stands, as far as it shows."""
    if isinstance(one, types.GeneratorType):
        frame, plain = one.gi_frame, (int, float, str, bool, type(None))
        if frame is None:
            return None
        values = {k: v if isinstance(v, plain) else id(v) for k, v in frame.f_locals.items()}
        return frame.f_lasti, values, position_of(one.gi_yieldfrom)
    length = getattr(one, "__length_hint__", lambda: None)()
    inside = [position_of(part) for part in gc.get_referents(one) if hasattr(type(part), "__next__")]
    return length, getattr(one, "_num_yielded", None), inside


def names_in(code: types.CodeType) -> set[str]:
    """Return the names that a function looks up, those of functions in it included."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))
