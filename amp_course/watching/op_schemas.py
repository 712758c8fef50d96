"""What the schema of an op says: which arguments it writes to, and whether its result has values.

Nothing here runs an op or remembers one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_course.kit.tensors import tensors_in
from amp_course.watching.values import is_finite

# These reserve memory: what they return, or leave in their first argument, has no values yet.
_UNSET = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ set_ resize"
).split()
# These do not read the argument that they write to.
_OVERWRITE = (
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ "
    "log_normal_ _foreach_copy_ _foreach_zero_"
).split()
# Batch norm writes to these although its schema does not say so.
_RUNNING = ("running_mean", "running_var")


class OpSchema:
    """What is known of an op from its schema.

    name:       "exp", as torch names it
    unset:      its result has no values yet
    overwrites: it does not read what it writes to
    is_view:    it computes nothing
    """

    def __init__(self, func: Any) -> None:
        arguments = func._schema.arguments
        self.name = func._schema.name.split("::")[-1]
        self.unset = self.name in _UNSET
        self.overwrites = self.name in _OVERWRITE or any(one.is_out for one in arguments)
        self.is_view = func.namespace == "prim" or func.is_view
        running = _RUNNING if "batch_norm" in self.name else ()
        self._written = [
            (place, one.name)
            for place, one in enumerate(arguments)
            if one.name in running or (one.alias_info is not None and one.alias_info.is_write)
        ]

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        """Yield the tensors that a call writes to."""
        for place, name in self._written:
            yield from tensors_in(args[place] if place < len(args) else kwargs.get(name))


schema_of = functools.cache(OpSchema)  # of an op, as `__torch_dispatch__` gets it


def is_nonfinite_in_new_places(
    func: Any, args: Sequence[Any], read: Sequence[Tensor], results: Sequence[Tensor]
) -> bool:
    """Return True if an op made inf or NaN where its inputs are finite.

    Answers only for ops that work element by element, or add a matrix product to something.
    read: the tensors among its arguments
    """
    if len(results) != 1:
        return False
    if schema_of(func).name in ("addmm", "baddbmm", "addmv"):
        if not all(is_finite(one) for one in read if one is not args[0]):
            return False
    elif torch.Tag.pointwise not in func.tags:
        return False
    new = ~results[0].isfinite()
    for one in read:
        try:
            new &= one.isfinite()
        except RuntimeError:  # the shape does not fit: it is a factor of the product
            continue
    return bool(new.any())
