"""Watch ops below autocast and autograd: the dtypes that arrive at the kernels, casts included.

Judges see here in which dtype something was really computed, whatever the answer's code looks like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOW = {torch.bfloat16, torch.float16}
_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"}
# These move numbers and compute nothing.
_MOVES = {"_to_copy", "t", "view", "detach", "expand", "permute", "transpose", "unsqueeze", "squeeze", "clone", "alias"}


@dataclass(frozen=True)
class Kernel:
    """One op at the kernels: its name ("mm"), and the dtypes of its floating-point inputs."""

    name: str
    dtypes: tuple[torch.dtype, ...]


class KernelLog(TorchDispatchMode):
    """Write down each op that runs inside, and how often each of the `watched` tensors was copied to another dtype.

    Example: with KernelLog() as seen, torch.autocast("cpu"): a @ b
             seen.low_matmul() → torch.bfloat16
    """

    def __init__(self, *watched: Tensor) -> None:
        super().__init__()
        self.watched = watched
        self.ops: list[Kernel] = []
        self.copies = [0 for _ in watched]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        name = func.overloadpacket.__name__
        floats = tuple(tensor.dtype for tensor in tensors if tensor.is_floating_point())
        self.ops.append(Kernel(name, floats))
        if name == "_to_copy":
            for place, tensor in enumerate(self.watched):
                self.copies[place] += tensors[0] is tensor
        return func(*args, **(kwargs or {}))

    def low_matmul(self) -> torch.dtype | None:
        """Return the 16-bit dtype that a matmul ran in, or None if none did."""
        return next((dtype for op in self.ops if op.name in _MATMULS for dtype in op.dtypes if dtype in LOW), None)

    def low_op(self) -> Kernel | None:
        """Return the first op that computed with a 16-bit input, or None; casts and views do not compute."""
        return next((op for op in self.ops if op.name not in _MOVES and LOW.intersection(op.dtypes)), None)
