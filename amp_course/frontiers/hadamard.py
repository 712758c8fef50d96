"""Rotate tensors by a Hadamard matrix: an outlier is spread over its whole block, and the rotations
of two factors cancel in their product.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


def hadamard(size: int) -> Tensor:
    """Return the normalised Hadamard matrix, float32: symmetric, orthogonal, entries ± 1/√size: 2 →
    [[1, 1], [1, -1]]/√2.

    Raises ValueError for a size that is not a power of two.
    Source: Sylvester's construction.
    """
    if type(size) is not int or size < 1 or size & (size - 1):
        raise ValueError(
            f"size is {size!r}: Sylvester's Hadamard matrices have sizes 1, 2, 4, 8, … powers of "
            f"two"
        )
    return torch.tensor(_signs_of(size), dtype=torch.float32) / math.sqrt(size)


@functools.cache
def _signs_of(size: int) -> list[list[float]]:
    """Return the matrix times √size: -1 where i and j have an odd number of bits in common."""
    return [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]


def rotate(tensor: Tensor, size: int = 32, dim: int = -1, signs: Tensor | None = None) -> Tensor:
    """Multiply each block of `size` numbers along a dimension by signs, then by the Hadamard
    matrix.

    tensor: any shape, floating; where its size is no multiple of `size`, the rest is rotated by
            smaller matrices: 40 = 32 + 8
    signs:  [size], of 1 and -1; None for none
    returns: the same shape and dtype, with the same norm
    Raises TypeError for a tensor of integers, ValueError for a size that is not a power of two,
    IndexError for a dimension that does not exist.
    If both operands of a product are rotated alike along the dimension that is summed over, the
    product is the same up to rounding: (xR)(wR)ᵀ = xRRᵀwᵀ = xwᵀ.
    Source: the random Hadamard transform of QuaRot (arXiv:2404.00456), for MXFP4 training Tseng et
            al. 2025 (arXiv:2502.20586).
    """
    if not tensor.is_floating_point():
        raise TypeError(
            f"only floating-point tensors are rotated, and this one is {tensor.dtype}: convert it "
            f"with .float()"
        )
    hadamard(size)  # raises for other sizes
    last = tensor.movedim(dim, -1)
    parts, start = [], 0
    with torch.autocast(tensor.device.type, enabled=False):  # the result keeps the tensor's dtype
        while start < last.shape[-1]:
            while size > last.shape[-1] - start:
                size //= 2
            stop = start + (last.shape[-1] - start) // size * size
            matrix = hadamard(size).to(tensor.device, tensor.dtype)
            if signs is not None:
                matrix = signs[:size, None].to(matrix) * matrix
            parts.append((last[..., start:stop].unflatten(-1, (-1, size)) @ matrix).flatten(-2))
            start = stop
    return torch.cat(parts, dim=-1).movedim(-1, dim)


def random_signs(size: int = 32, seed: int = 0) -> Tensor:
    """Draw the signs for `rotate`: float32, [size], 1 or -1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (size,), generator=generator, device="cpu").float() * 2 - 1
