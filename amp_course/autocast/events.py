"""What a recorder writes down: ops, calls of modules, and the names of dtypes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from amp_course.bits.formats import FORMATS

ROOT, LOSS = "(model)", "(loss)"  # the module path of the model itself, and of the loss that came with it
Phase = Literal["forward", "backward"]
_NAMES = {fmt.dtype: fmt.name for fmt in FORMATS if fmt.dtype is not None and fmt.name != "tf32"}


@dataclass(frozen=True)
class Op:
    """One op that ran.

    module: the path of the module that called it; call: the torch function that Python called, in the backward pass the
    node of autograd's graph; op: what that came to; inputs, outputs: dtypes of the tensors
    cast: "autocast" for a cast that autocast inserted, "model" for one that the model asked for, "gradient" for autograd's
          way back through a cast of autocast's; else ""
    source: what a cast was made of, a weight's name or "activation"; bytes: the size of the copy that it made
    reused: weights whose copy was there already, from an earlier use in this region
    """

    phase: Phase
    module: str
    call: str
    op: str
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    cast: str = ""
    source: str = ""
    bytes: int = 0
    reused: tuple[str, ...] = ()
    view: bool = False


@dataclass
class Call:
    """One call of a module: dtypes of all tensors that went in and came out."""

    module: str
    kind: str
    inputs: tuple[torch.dtype, ...]
    start: int  # autograd's sequence number when it began, and when it ended
    end: int = sys.maxsize
    outputs: tuple[torch.dtype, ...] = ()


@dataclass
class TorchCall:
    """A function in C that Python has called, such as "linear".

    autocast: whether that was on at the call; started: whether an op other than a cast has run in it
    """

    name: str = ""
    autocast: bool = False
    started: bool = False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an output, however it is packed: tuples, dicts, dataclasses, None."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors_in([getattr(leaf, one.name) for one in fields(leaf)])


def dtypes(tensors: Iterable[Tensor]) -> tuple[torch.dtype, ...]:
    """Return the dtype of each tensor, in order."""
    return tuple(tensor.dtype for tensor in tensors)


def floats(found: Iterator[torch.dtype]) -> tuple[torch.dtype, ...]:
    """Return the float and complex dtypes among some, each once, in order."""
    return tuple(dict.fromkeys(dtype for dtype in found if dtype.is_floating_point or dtype.is_complex))


def short(dtype: torch.dtype) -> str:
    """Name a dtype as the course does: torch.bfloat16 → "bf16", torch.int64 → "int64"."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))
