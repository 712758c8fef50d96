"""Count what a training computes in which dtype, and where it reads values."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch

from amp_course.watching import taps
from amp_course.watching.births import Line, caller
from amp_course.watching.ops import Watch

_BIRTHS = 100  # of inf and NaN, after which nothing new is learnt
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")  # fmt: skip


class DoctorsWatch(Watch):
    """A watch that also counts matmuls by dtype, and the reads of values, by line."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: Counter[str] = Counter()
        self.reads: Counter[tuple[Line, str]] = (
            Counter()
        )  # line and device; of integers on a CPU, which are indices, none
        self.counting = False
        self.raised: list[BaseException] = []  # by ops, and perhaps caught by the script

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the op, and watch it."""
        if self._aside or self._elsewhere() or taps.stands_aside():
            return func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        reads = name in ("_local_scalar_dense", "is_nonzero", "item") and torch.is_grad_enabled() and not self._stepping
        if self.counting and reads:
            line, read = Line.of(caller(sys._getframe(1))), args[0]
            if line is not None and (read.device.type != "cpu" or read.is_floating_point() or read.dtype == torch.bool):
                self.reads[line, read.device.type] += 1
        if len(self.births) >= _BIRTHS:
            return func(*args, **(kwargs or {}))
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except Exception as error:
            self.raised.append(error)
            raise
        if name in _MATMULS:
            dtype = next((one.dtype for one in args if isinstance(one, torch.Tensor)), None)
            self.matmuls[str(dtype)[6:]] += self.counting
        return result

    def _arrive(self, tensor: torch.Tensor, kind: Any, name: str) -> None:
        """Once no op is followed any more, nobody knows where an inf comes from."""
        if len(self.births) < _BIRTHS or self._known(tensor)[0]:
            super()._arrive(tensor, kind, name)
