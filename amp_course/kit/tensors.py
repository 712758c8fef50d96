"""The tensors in a nested value, and the course's short names of dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e5m2: "fp8 E5M2",
    torch.float8_e4m3fn: "fp8 E4M3",
}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an output, also inside tuples, dicts and dataclasses."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors_in([getattr(leaf, field.name) for field in fields(leaf)])


def short(dtype: torch.dtype) -> str:
    """Name a dtype as the course does: torch.bfloat16 → "bf16", torch.int64 → "int64"."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def has_device(kind: str) -> bool:
    """Return True if this machine has a kind of device, such as "cuda"."""
    module = getattr(torch, kind, None)
    return module is None or not hasattr(module, "is_available") or bool(module.is_available())
