"""Count what a training computes in which dtype, and where it reads values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from amp_course.watching.graphs import LOW_DTYPES
from amp_course.watching.ops import Watch
from amp_course.watching.origins import Line, caller, readers_line

_BIRTHS = 100  # of inf and NaN, after which nothing new is learnt
_READS = ("_local_scalar_dense", "is_nonzero", "item")
# Ops that belong under autocast or after a cast to fp32: losses, and sums over many numbers.
_LATE = (
    "nll_loss_forward", "mse_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss",
    "huber_loss", "soft_margin_loss", "_log_softmax", "_softmax", "sum", "prod", "pow", "exp",
    "log", "linalg_vector_norm", "norm",
)  # fmt: skip
_MATMULS = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "linear",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)  # fmt: skip


class DoctorsWatch(Watch):
    """A watch that also counts matmuls by dtype, and the reads of values, by line."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: Counter[str] = Counter()
        # (line, device) → updates in which it read a value; integers on a CPU are indices
        self.reads: Counter[tuple[Line, str]] = Counter()
        self._read_last: dict[tuple[Line, str], int] = {}
        # The first that ran one of `_LATE` in 16 bits, with gradients and outside autocast
        self.late: Line | None = None
        self.counting = False
        self.raised: list[BaseException] = []  # by ops, and perhaps caught by the script

    def _run(self, func: Any, op: Any, args: Any, kwargs: Any) -> Any:
        if self.counting and op.name in _READS and torch.is_grad_enabled() and not self._stepping:
            line, read = Line.of(caller()), args[0]
            index = read.device.type == "cpu" and not read.is_floating_point()
            if line is not None and (read.dtype == torch.bool or not index):
                key = (line, read.device.type)
                self.reads[key] += self._read_last.get(key) != self.step
                self._read_last[key] = self.step
        if self.counting and self.late is None and op.name in _LATE and _is_low(args):
            self.late = readers_line()
        if len(self.origins) >= _BIRTHS:
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
        if len(self.origins) < _BIRTHS or self._known(tensor)[0]:
            super()._arrive(tensor, kind, name)


def _is_low(args: tuple[Any, ...]) -> bool:
    """Return True if an op takes a tensor in 16 bits that has a graph, where autocast is off."""
    one = args[0] if args else None
    if not isinstance(one, torch.Tensor) or one.dtype not in LOW_DTYPES or not one.requires_grad:
        return False
    return torch.is_grad_enabled() and not torch.is_autocast_enabled(one.device.type)
