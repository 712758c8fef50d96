"""Draw what no answer can know, and take the tensor that an answer gave back, or say what it is instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amp_course.checking.exercise import Wrong


def fresh() -> torch.Generator:
    """Return a generator whose draws no answer can know."""
    generator = torch.Generator()
    generator.seed()
    return generator


def tensor_like(got: Any, shape: torch.Size, what: str) -> Tensor:
    """Return a tensor of a shape, detached; `what` names it in the diagnosis: "the sum"."""
    if got is None:
        raise Wrong(f"your function returned None where {what} is wanted: is there a `return`?")
    if not isinstance(got, Tensor):
        raise Wrong(f"{what} is a tensor, and your function gave a {type(got).__name__}")
    if got.shape != shape:
        raise Wrong(f"{what} has the shape {tuple(shape)}, and yours has {tuple(got.shape)}")
    return got.detach()


def dtype_name(dtype: torch.dtype) -> str:
    """Write a dtype as a reader would: torch.float32 → "float32"."""
    return str(dtype).removeprefix("torch.")
