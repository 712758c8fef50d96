"""How single things are put back: a tensor, an array, a dict's content, hooks, globals, an object's attributes and slots."""

from __future__ import annotations

import collections
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.audit.iterators import counter_at, counter_position

MISSING = object()

Put = Callable[[], None]


def dict_putter(one: dict[Any, Any]) -> Put:
    """Return what gives a dict its present content back, if that has changed."""
    kind: Any = (
        collections.OrderedDict if isinstance(one, collections.OrderedDict) else dict
    )  # the order is its own, not that of the dict underneath
    keys = list(kind.keys(one))
    values = [dict.__getitem__(one, key) for key in keys]
    positions = {n: position for n, value in enumerate(values) if (position := counter_position(value)) is not None}

    def put() -> None:
        for n, position in positions.items():
            values[n] = counter_at(values[n], position)
        if dict.__len__(one) == len(keys) and all(
            a is b and dict.__getitem__(one, a) is value
            for a, b, value in zip(kind.keys(one), keys, values, strict=True)
        ):
            return
        kind.clear(one)
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(one, key, value)

    return put


def hooks_putter(tensor: Tensor, name: str) -> Put:
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


def globals_putter(where: dict[str, Any], names: Iterable[str]) -> Put:
    """Return what sets some names of a module back to what they refer to now."""
    kept = {name: where.get(name, MISSING) for name in names}
    positions = {name: counter_position(value) for name, value in kept.items()}

    def put() -> None:
        for name, position in positions.items():
            kept[name] = counter_at(kept[name], position)
        for name, value in kept.items():
            if value is MISSING:
                where.pop(name, None)
            elif where.get(name, MISSING) is not value:
                where[name] = value

    return put


def object_putter(one: Any, attributes: dict[str, Any] | None) -> Put:
    """Return what gives an object its class, its attributes and its slots back."""
    kind, put_attributes = type(one), None if attributes is None else dict_putter(attributes)
    slots = [(slot, slot_value(slot, one)) for slot in slots_of(kind)]

    def put() -> None:
        if type(one) is not kind:
            object.__setattr__(one, "__class__", kind)
        if attributes is not None and one.__dict__ is not attributes:
            object.__setattr__(one, "__dict__", attributes)
        if put_attributes is not None:
            put_attributes()
        for slot, value in slots:
            if slot_value(slot, one) is not value:
                slot.__delete__(one) if value is MISSING else slot.__set__(one, value)

    return put


def slots_of(kind: type) -> list[Any]:
    """The slots of a class, inherited ones included: descriptors, which know private names and ask no `__setattr__`."""
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


def tensor_putter(one: Tensor) -> Put:
    """Return what gives a tensor its numbers and its memory back."""
    alias = one.data
    # Of an expanded tensor each number of its memory is written once.
    for dim, stride in enumerate(alias.stride() if alias.layout == torch.strided else ()):
        if stride == 0 and alias.shape[dim] > 1:
            alias = alias.narrow(dim, 0, 1)
    whole, value = one.data, alias.detach().clone()

    def put() -> None:
        now = one.data
        if (
            now.dtype != whole.dtype
            or now.shape != whole.shape
            or now.layout != whole.layout
            or (
                whole.layout == torch.strided and (now.data_ptr() != whole.data_ptr() or now.stride() != whole.stride())
            )
        ):
            one.data = whole
        if whole.layout != torch.strided:
            one.copy_(value)  # its `data` would be another tensor
        elif not same_numbers(alias, value):
            alias.copy_(value)

    return put


def versions_putter(one: Tensor) -> Put:
    """Return what sets back how often a tensor was changed: with its old numbers, graphs built on it are right again."""
    try:
        kept = torch.autograd._unsafe_preserve_version_counter(one)
    except RuntimeError:  # an inference tensor counts nothing
        return lambda: None
    return lambda: kept.__exit__(None, None, None)


def script_putter(module: Any) -> Put:
    """Return what gives a TorchScript module its numbers and texts back, which lie outside of Python."""
    inner = module._c
    values = {name: inner.getattr(name) for name in module._concrete_type.get_attributes()}
    plain = {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str))}

    def put() -> None:
        for name, value in plain.items():
            if inner.getattr(name) != value:
                inner.setattr(name, value)

    return put


def buffer_putter(one: Any) -> Put:
    """Return what gives an object that lends out its memory, such as a `ctypes` array or an `mmap`, its bytes back."""
    content = memoryview(one).tobytes()

    def put() -> None:
        view = memoryview(one)
        if not view.readonly and view.tobytes() != content:
            view.cast("B")[:] = content

    return put


def array_putter(one: np.ndarray[Any, Any]) -> Put:
    """Return what gives an array its numbers, its shape and its flag back."""
    value, shape, writeable = one.copy(), one.shape, one.flags.writeable

    def put() -> None:
        if one.shape != shape:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # since NumPy 2.5
                one.shape = shape
        if writeable and not one.flags.writeable:
            one.flags.writeable = True
        if writeable:
            np.copyto(one, value)

    return put


def leaf_putter(one: Tensor) -> Put:
    """Return what gives a leaf its flag, its gradient and its hooks back."""
    flag, grad = one.requires_grad, one.grad
    hooks = [hooks_putter(one, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]

    def put() -> None:
        if one.requires_grad != flag:
            one.requires_grad_(flag)
        if one.grad is not grad:
            one.grad = grad
        for put_hooks in hooks:
            put_hooks()

    return put


def names_in(code: types.CodeType) -> set[str]:
    """The names that a function looks up, those in it included."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= names_in(const)
    return names


def is_filled(cell: types.CellType) -> bool:
    """Tell whether a closure's variable has a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one shape and dtype are equal, NaN being like NaN; False if that cannot be said."""
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):
        return False


def checksum(one: np.ndarray[Any, Any]) -> bytes:
    """Return some of an array's bytes: enough to notice that it was overwritten."""
    flat = one.reshape(-1) if one.flags.c_contiguous else one.flat
    return np.asarray(flat[:: max(1, one.size // 2**16)]).tobytes()
