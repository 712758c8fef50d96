"""How single objects are put back: a container's content, a tensor, an iterator."""

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

import torch
from torch import Tensor

MISSING = object()
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a parameter
CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque, bytearray)


def _kind_of(one: Any) -> Any:
    if type(one) in CONTAINERS:
        return type(one)
    return next(kind for kind in CONTAINERS if isinstance(one, kind))


def copy_of(one: Any) -> Any:
    """Return a shallow copy of a container, without a subclass's own methods."""
    kind = _kind_of(one)
    calls_subclass = kind in (collections.OrderedDict, collections.deque)
    return kind(one) if calls_subclass else kind.copy(one)


def content_of(one: Any) -> list[Any]:
    """Return what a container holds, without a subclass's own methods; of a dict, [k, v, k, v]."""
    kind = _kind_of(one)
    return [*itertools.chain(*kind.items(one))] if isinstance(one, dict) else [*kind.__iter__(one)]


def refill(one: Any, content: list[Any]) -> None:
    """Give a container its old content, if it has changed."""
    now, kind = content_of(one), _kind_of(one)
    if len(now) == len(content) and all(map(operator.is_, now, content)):
        return
    kind.clear(one)
    if isinstance(one, dict):
        for key, value in zip(content[::2], content[1::2], strict=True):
            kind.__setitem__(one, key, value)
    else:
        (kind.update if kind is set else kind.extend)(one, content)


def value_at(get: Callable[[Any], Any], place: Any) -> Any:
    """Return what is in a place, `MISSING` for nothing."""
    try:
        return get(place)
    except (AttributeError, KeyError, ValueError):  # an empty slot, no such key, an empty cell
        return MISSING


def slots_of(kind: type) -> list[Any]:
    """Return the descriptors of a class's slots, inherited ones included."""
    bases = [base for base in kind.__mro__ if "__slots__" in vars(base)]
    values = [value for base in bases for value in vars(base).values()]
    return [one for one in values if isinstance(one, types.MemberDescriptorType)]


def tensor_restorer(one: Tensor) -> Callable[[], None]:
    """Return what restores a tensor's numbers, memory, gradient, flag, hooks and version."""
    alias, flag = one.data, one.requires_grad
    # An expanded tensor shows the same memory several times: write it once.
    for dim, stride in enumerate(alias.stride() if alias.layout == torch.strided else ()):
        if stride == 0 and alias.shape[dim] > 1:
            alias = alias.narrow(dim, 0, 1)
    whole, value = one.data, alias.detach().clone()
    leaf = one.is_leaf
    place, grad = _place(whole), one.grad if leaf else None
    hooks = {name: dict(getattr(one, name, None) or {}) for name in HOOKS} if leaf else {}
    try:  # so that graphs in which its old numbers were saved can be differentiated again
        version = torch.autograd._unsafe_preserve_version_counter(one)
    except RuntimeError:  # an inference tensor counts nothing
        version = None

    def restore() -> None:
        if leaf and not one.is_leaf and one._base is None:  # `total += loss` gave it a graph
            one.detach_()
        if _place(one.data) != place:
            one.data = whole
        if whole.layout != torch.strided:
            one.copy_(value)
        elif not _same_numbers(alias, value):
            alias.copy_(value)
        if version is not None:
            version.__exit__(None, None, None)
        if one.is_leaf:
            one.requires_grad_(flag)
            if one.grad is not grad:
                one.grad = grad
        for name, were in hooks.items():
            if (now := getattr(one, name, None)) is not None:
                now.clear()
                now.update(were)

    return restore


def _place(one: Tensor) -> tuple[Any, ...]:
    strided = one.layout == torch.strided
    return one.dtype, one.shape, one.layout, *((one.data_ptr(), one.stride()) if strided else ())


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):
        return False


def duplicate(one: Any) -> Any:
    """Return an independent copy of an iterator, and of the iterators inside it.

    Raises TypeError for one that cannot be copied: a generator, or most of `itertools` from Python
    3.14 on.
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
    """Return how far an iterator that cannot be copied has come, as far as that shows."""
    if isinstance(one, types.GeneratorType):
        frame, plain = one.gi_frame, (int, float, str, bool, type(None))
        if frame is None:
            return None
        values = {k: v if isinstance(v, plain) else id(v) for k, v in frame.f_locals.items()}
        return frame.f_lasti, values, position_of(one.gi_yieldfrom)
    length = getattr(one, "__length_hint__", lambda: None)()
    inside = [
        position_of(part) for part in gc.get_referents(one) if hasattr(type(part), "__next__")
    ]
    return length, getattr(one, "_num_yielded", None), inside


def names_in(code: types.CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))
