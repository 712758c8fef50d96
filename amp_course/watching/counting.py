"""Count what a training computes in which dtype, and where it reads values."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch

from amp_course.watching.births import Line, caller
from amp_course.watching.ops import Watch

_BIRTHS = 100  # of inf and NaN, after which nothing new is learnt
_READS = ("_local_scalar_dense", "is_nonzero", "item")
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")  # fmt: skip


class DoctorsWatch(Watch):
    """A watch that also counts matmuls by dtype, and the reads of values, by line."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: Counter[str] = Counter()
        # (line, device) → updates in which it read a value; of integers on a CPU, which are indices, none
        self.reads: Counter[tuple[Line, str]] = Counter()
        self._read_last: dict[tuple[Line, str], int] = {}
        self.counting = False
        self.raised: list[BaseException] = []  # by ops, and perhaps caught by the script

    def _run(self, func: Any, op: Any, args: Any, kwargs: Any) -> Any:
        """Count the op, and watch it."""
        if self.counting and op.name in _READS and torch.is_grad_enabled() and not self._stepping:
            line, read = Line.of(caller(sys._getframe(1))), args[0]
            if line is not None and (read.device.type != "cpu" or read.is_floating_point() or read.dtype == torch.bool):
                key = (line, read.device.type)
                self.reads[key] += self._read_last.get(key) != self.step
                self._read_last[key] = self.step
        if len(self.births) >= _BIRTHS:
            return func(*args, **kwargs)
        try:
            result = super()._run(func, op, args, kwargs)
        except Exception as error:
            self.raised.append(error)
            raise
        if op.name in _MATMULS:
            dtype = next((one.dtype for one in args if isinstance(one, torch.Tensor)), None)
            self.matmuls[str(dtype)[6:]] += self.counting
        return result

    def _arrive(self, tensor: torch.Tensor, kind: Any, name: str) -> None:
        """Once no op is followed any more, nobody knows where an inf comes from."""
        if len(self.births) < _BIRTHS or self._known(tensor)[0]:
            super()._arrive(tensor, kind, name)
