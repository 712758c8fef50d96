"""Keep activations for the backward pass in a few bits, by autograd's saved-tensor hooks; weights
stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from amp_course.frontiers.packing import Packed, can_be_compressed, check_sizes, compress

# Autograd's views and casts: a transposed weight, and autocast's copy of one, are weights, too.
_NAMES = (
    "T Transpose Permute View UnsafeView ReshapeAlias ToCopy Alias Expand Unsqueeze Squeeze Select "
    "Slice AsStrided Clone"
)
_VIEWS_AND_CASTS = {f"{name}Backward{number}" for name in _NAMES.split() for number in (0, 1)}
SMALLEST = 1024  # numbers in a tensor that is compressed


class CompressedActivations:
    """Inside a `with`, what autograd saves for the backward pass is kept in `bits` bits, rounded at
    random.

    bits:      1, 2, 4 or 8
    group:     numbers that share a smallest and a step
    generator: of the random numbers

    Tensors of fewer than 1,024 numbers, integers, fp8, weights, and tensors with inf or NaN are
    kept unchanged.
    Run the model inside, and the loss outside. Gradients are right on average where they are linear
    in what was saved: those of weights in linear layers and convolutions, and of a ReLU from 2 bits
    on. Through a norm, a GELU or a tanh they are nearly so. Not for functions that divide by a
    saved number or exponentiate it: softmax, attention, logarithms and roots. A frozen weight is
    recognized as an `nn.Parameter` or a view of one; autocast's copy of it is not, as it looks like
    any other tensor without a gradient.

    kept, whole: bytes of what was compressed, and of the originals, since the `with` was entered; a
                 tensor that several ops save is kept, and counted, once
    Example: with CompressedActivations() as saved: out = model(x)
             cross_entropy(out, y).backward()
    """

    def __init__(
        self,
        bits: int = 2,
        group: int = 256,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(bits, group)
        self.bits, self.group, self.generator = bits, group, generator
        self.kept = self.whole = 0
        self._hooks: Any = None
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Packed]] = {}

    def __enter__(self) -> CompressedActivations:
        self.kept = self.whole = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._known.clear()
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor | tuple[Packed, torch.Size]:
        small = tensor.numel() < SMALLEST or tensor.element_size() == 1  # one byte: fp8, masks
        if small or not tensor.is_floating_point() or is_weight(tensor):
            return tensor
        # subtle: the weak reference keeps the storage's address from being reused, not its bytes
        storage = StorageWeakRef(tensor.untyped_storage())
        place = (storage.cdata, tensor.storage_offset(), tensor.dtype, tensor._version)
        layout: tuple[Any, ...] = () if tensor.is_contiguous() else (tensor.shape, tensor.stride())
        key = (*place, tensor.numel(), *layout)
        if key not in self._known:
            # an overflow has to reach the scaler, so it stays unchanged
            if not can_be_compressed(tensor):
                return tensor
            self._known[key] = storage, compress(tensor, self.bits, self.group, self.generator)
            self.kept += self._known[key][1].nbytes
            self.whole += tensor.nbytes
        return self._known[key][1], tensor.shape

    @staticmethod
    def _unpack(saved: Tensor | tuple[Packed, torch.Size]) -> Tensor:
        return saved if isinstance(saved, Tensor) else saved[0].restore().view(saved[1])


def is_weight(tensor: Tensor) -> bool:
    """Return True if a tensor is a parameter, or a view or a cast of one."""
    if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
        return True
    if tensor.is_leaf:
        return tensor.requires_grad
    node = tensor.grad_fn
    while node is not None and type(node).__name__ in _VIEWS_AND_CASTS:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"
