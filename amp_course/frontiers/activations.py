"""Keep activations for the backward pass in a few bits, by autograd's hooks for saved tensors; weights stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from amp_course.frontiers.packing import Packed, compress


class CompressedActivations:
    """Inside a `with`, what autograd saves for the backward pass is kept in `bits` bits, rounded at random.

    bits:      1, 2, 4 or 8
    group:     numbers that share a smallest and a step
    smallest:  tensors of fewer numbers are kept as they are, as are integers, fp8, weights, their casts and views, and what
               holds inf or NaN
    generator: of the random numbers

    Gradients are right on average where they are linear in what was saved: those of weights in linear layers and convolutions.
    Through a ReLU, which asks whether the saved number is above 0, a GELU or a norm they are nearly so.

    kept, whole: bytes that were kept, and that would have been kept without it, since the `with` was entered
    Example: with CompressedActivations() as saved: loss = f(model(x), y); then loss.backward()
    """

    def __init__(
        self, bits: int = 2, group: int = 256, *, smallest: int = 1024, generator: torch.Generator | None = None
    ) -> None:
        compress(torch.zeros(1), bits, group)  # refuses what it would refuse later
        self.bits, self.group, self.smallest, self.generator = bits, group, smallest, generator
        self.kept = self.whole = 0
        self._hooks: Any = None

    def __enter__(self) -> CompressedActivations:
        self.kept = self.whole = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor | Packed:
        small = tensor.numel() < self.smallest or tensor.element_size() == 1  # one byte: fp8, masks
        if small or not tensor.is_floating_point() or is_weight(tensor):
            return tensor
        if not bool(tensor.isfinite().all()):  # an overflow is the scaler's affair: it must come out as it went in
            return tensor
        self.whole += tensor.nbytes
        packed = compress(tensor, self.bits, self.group, self.generator)
        self.kept += packed.nbytes
        return packed

    @staticmethod
    def _unpack(saved: Tensor | Packed) -> Tensor:
        return saved.restore() if isinstance(saved, Packed) else saved


def is_weight(tensor: Tensor) -> bool:
    """Tell whether a tensor is a leaf with a gradient, or was made of one alone: a transposed weight, autocast's copy of one."""
    if isinstance(tensor, nn.Parameter) or (tensor.is_leaf and tensor.requires_grad):
        return True
    node = tensor.grad_fn
    while node is not None:
        before = [one for one, _ in node.next_functions if one is not None]
        if type(node).__name__ == "AccumulateGrad":
            return True
        if len(before) != 1 or len(node.next_functions) != 1:
            return False
        node = before[0]
    return False
