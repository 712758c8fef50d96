"""How the two operands of a matmul are rounded: to a format as it is, with one scale for all,
by blocks, or rotated before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from amp_course.bits import FloatFormat, round_to
from amp_course.frontiers.block_formats import BlockFormat
from amp_course.frontiers.fp8 import E4M3, CurrentScaling, Scaling, from_fp8
from amp_course.frontiers.hadamard import random_signs, rotate
from amp_course.frontiers.quantizing import ElementRounding, quantize

# a tensor, and the dimension that the product sums over → what is multiplied
Operand = Callable[[Tensor, int], Tensor]


@dataclass
class Unscaled:
    """Round to a format as it is: bf16, for a matmul in bf16."""

    element: FloatFormat

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return round_to(tensor, self.element)


@dataclass
class OneScale:
    """Store in fp8 with one scale for the whole tensor."""

    dtype: torch.dtype = E4M3
    scaling: Scaling = field(default_factory=CurrentScaling)

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return from_fp8(*self.scaling(tensor, self.dtype))


@dataclass
class ByBlocks:
    """Round to a block format along the dimension that is summed over.

    seed: of the draws, if the rounding is stochastic
    """

    block_format: BlockFormat
    rounding: ElementRounding = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return quantize(
            tensor, self.block_format, dim, rounding=self.rounding, generator=self.generator
        )


@dataclass
class Rotated:
    """Rotate by a random Hadamard matrix, then round. Both operands of a product have to have the
    same size and seed.

    Here all three products are rotated. NVIDIA's recipe (arXiv:2509.25149) rotates the operands
    of the weight gradient alone, 16 at a time.
    """

    then: Operand
    size: int = 32
    seed: int = 0

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return self.then(rotate(tensor, self.size, dim, random_signs(self.size, self.seed)), dim)


def scaling_of(operand: Operand) -> Scaling | None:
    """Return the module that scales an operand, if there is one."""
    if isinstance(operand, Rotated):
        return scaling_of(operand.then)
    return operand.scaling if isinstance(operand, OneScale) else None
