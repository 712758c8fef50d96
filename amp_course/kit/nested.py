"""Copy and compare nested states, such as a `state_dict()`: dicts, lists and tuples of tensors and
plain values.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def copied(value: Any) -> Any:
    """Copy a value deeply, tensors detached."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf),
        value,
    )


def first_difference(one: Any, other: Any) -> str | None:
    """Return the place of the first difference and both values, or None. Tensors are compared to
    the last bit, and NaN equals NaN.

    Example: first_difference({"a": [1, 2]}, {"a": [1, 3]}) → "['a'][1]: 2 became 3"
    """
    leaves, others = (dict(pytree.tree_flatten_with_path(value)[0]) for value in (one, other))
    for place in [*leaves, *(place for place in others if place not in leaves)]:
        if place not in leaves or place not in others:
            only = "one" if place in leaves else "the other"
            return f"{pytree.keystr(place)} is only in {only}".strip()
        if not _equal(leaves[place], others[place]):
            change = f"{_short(leaves[place])} became {_short(others[place])}"
            return f"{pytree.keystr(place)}: {change}" if place else change
    return None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            return False
        try:
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        except AssertionError:
            return False
        return True
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _short(value: Any) -> str:
    return f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
