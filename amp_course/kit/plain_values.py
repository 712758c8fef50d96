"""Turn what a checkpoint holds into tensors and plain values, which
`torch.load(…, weights_only=True)` returns equal.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (bool, type(None), torch.Size, torch.dtype, torch.device)
# `.item()` turns these into an equal Python value, with few exceptions
_NUMPY = (np.bool_, np.number, np.str_, np.bytes_)

_BASES: tuple[Any, ...] = (int, float, complex, bytes)


def as_plain(value: Any, where: str) -> Any:
    """Return an equal value of tensors and plain types only.

    NumPy's numbers and texts become Python's, and subclasses of numbers, texts, dicts, lists and
    tuples their base: an IntEnum its int, a defaultdict its dict, a named tuple its tuple. An
    OrderedDict and a Counter stay. Tensors share their memory with the originals; a parameter
    becomes a tensor.

    where: the value's name, for the message
    Raises TypeError for anything else, with the place of the entry and the fix.
    Example: as_plain({"losses": [np.float64(0.5)]}, "data") → {"losses": [0.5]}
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)
    if kind in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return _plain_scalar(value, where)
    if isinstance(value, str):
        return str.__str__(value)  # `str(…)` of a `class Name(str, Enum)` is "Name.ONE"
    for base in _BASES:
        if isinstance(value, base):
            return base(value)
    if isinstance(value, dict):
        pairs = [
            (_plain_key(key, where), as_plain(part, f"{where}[{_short(key)}]"))
            for key, part in value.items()
        ]
        return _dict_like(value, pairs)
    if isinstance(value, (list, tuple)):
        parts = [as_plain(part, f"{where}[{number}]") for number, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    article = "an" if kind.__name__[0] in "aeiouAEIO" else "a"
    raise TypeError(
        f"{where} is {article} {kind.__name__}, which cannot be loaded without running code: "
        f"{_fix(value)}."
    )


def _dict_like(value: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if isinstance(value, collections.Counter):
        return collections.Counter(dict(pairs))  # MultiStepLR keeps one
    if not isinstance(value, collections.OrderedDict):
        return dict(pairs)
    ordered = collections.OrderedDict(pairs)
    if isinstance(metadata := getattr(value, "_metadata", None), Mapping):
        ordered._metadata = dict(metadata)  # type: ignore[attr-defined]  # versions of modules
    return ordered


def _plain_scalar(value: np.generic, where: str) -> Any:
    plain = value.item()
    known = isinstance(value, _NUMPY) and not isinstance(value, np.timedelta64)
    if known and not isinstance(plain, np.generic):  # as a long double's is
        return plain
    raise TypeError(
        f"{where} is a {type(value).__name__}, which no plain type can hold: save `float(…)` or "
        "`str(…)`."
    )


def _plain_tensor(value: Tensor, where: str) -> Tensor:
    if type(value) not in (Tensor, nn.Parameter, nn.Buffer):
        raise TypeError(
            f"{where} is a {type(value).__name__}, a kind of tensor with code of its own: save an "
            "ordinary tensor made from it."
        )
    return value.detach()


def _plain_key(key: Any, where: str) -> Any:
    if isinstance(key, (Tensor, nn.Module)):
        raise TypeError(f"{where} uses a {type(key).__name__} as a key: use its name, a text.")
    return as_plain(key, f"the key {key!r} of {where}")


def _short(value: Any) -> str:
    if isinstance(value, (str, int, float)) and len(repr(value)) < 60:
        return repr(value)
    return f"a {type(value).__name__}"


def _fix(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return "save its `.value` or its `.name`"
    if isinstance(value, os.PathLike):
        return "save `str(path)`"
    if isinstance(value, np.ndarray):
        return "save `torch.from_numpy(array)` or `array.tolist()`"
    if dataclasses.is_dataclass(value):
        return "save `dataclasses.asdict(…)`"
    if isinstance(value, (set, frozenset, collections.deque)):
        return "save it as a list"
    if hasattr(value, "state_dict"):
        return "save its `state_dict()`"
    return "save tensors and plain values (numbers, texts, lists, dicts)"
