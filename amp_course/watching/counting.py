"""Count the matmuls of a training by dtype, and the reads of values by line."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from amp_course.watching.graphs import LOW_DTYPES
from amp_course.watching.op_schemas import OpSchema
from amp_course.watching.ops import Watch
from amp_course.watching.origins import Line, caller, user_line

_MOST_ORIGINS = 100  # of inf and NaN; after as many, nothing new is learned
_READS = ("_local_scalar_dense", "is_nonzero", "item")
# Ops that belong under autocast or after a cast to fp32: losses, and sums over many numbers.
_LATE = (
    "nll_loss_forward mse_loss binary_cross_entropy_with_logits smooth_l1_loss huber_loss "
    "soft_margin_loss _log_softmax _softmax sum prod pow exp log linalg_vector_norm norm"
).split()
_MATMULS = (
    "mm addmm bmm baddbmm convolution linear _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
).split()


class CountingWatch(Watch):
    """A watch that also counts.

    matmuls:  by dtype, "float16"
    reads:    (line, device) → updates in which it read a value; integers on a CPU are indices
    late:     the line that first ran one of `_LATE` in 16 bits, with gradients, outside autocast
    regions:  of autocast that are open; ops are seen below it, where torch calls it off
    counting: only then does it count
    raised:   exceptions from ops, which the script may have caught
    """

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: Counter[str] = Counter()
        self.reads: Counter[tuple[Line, str]] = Counter()
        self._last_read: dict[tuple[Line, str], int] = {}
        self.late: Line | None = None
        self.regions: list[torch.autocast] = []
        self.counting = False
        self.raised: list[BaseException] = []

    def _run(self, func: Any, op: OpSchema, args: Any, kwargs: Any) -> Any:
        if self.counting and op.name in _READS and torch.is_grad_enabled() and not self._stepping:
            line, read = Line.of(caller()), args[0]
            index = read.device.type == "cpu" and not read.is_floating_point()
            if line is not None and (read.dtype == torch.bool or not index):
                key = (line, read.device.type)
                self.reads[key] += self._last_read.get(key) != self.step
                self._last_read[key] = self.step
        if self.counting and self.late is None and op.name in _LATE and self._is_low(args):
            self.late = user_line()
        if len(self.origins) >= _MOST_ORIGINS:
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

    def _is_low(self, args: tuple[Any, ...]) -> bool:
        """Return True if an op's input is a 16-bit tensor with a graph, and autocast is off."""
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.dtype not in LOW_DTYPES:
            return False
        open_ones = (one for one in reversed(self.regions) if one.device == first.device.type)
        on = next((one._enabled for one in open_ones), False)
        return first.requires_grad and torch.is_grad_enabled() and not on

    def _arrive(self, tensor: torch.Tensor, kind: Any, name: str) -> None:
        """Ignore, once ops are no longer followed, what has no known origin."""
        if len(self.origins) < _MOST_ORIGINS or self.sources.of(tensor)[0]:
            super()._arrive(tensor, kind, name)
