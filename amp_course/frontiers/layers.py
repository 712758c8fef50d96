"""Linear layers and convolutions whose operands are rounded in all three products (the output, and
the gradients of input and weight), and ways to round an operand: unscaled, with one scale, in
blocks, or after a rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional, grad

from amp_course.bits import FloatFormat, round_to
from amp_course.frontiers.block_formats import BlockFormat
from amp_course.frontiers.fp8 import Scaling
from amp_course.frontiers.hadamard import random_signs, rotate
from amp_course.frontiers.quantizing import ElementRounding, quantize

# (tensor, the dimension that the product sums over) → the rounded tensor
Operand = Callable[[Tensor, int], Tensor]


@dataclass
class Unscaled:
    """Round to a format without a scale: to bf16, for a matmul in bf16."""

    element: FloatFormat

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return round_to(tensor, self.element)


@dataclass
class OneScale:
    """Store in fp8 with one scale for the whole tensor."""

    dtype: torch.dtype
    scaling: Scaling

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        stored, scale = self.scaling(tensor, self.dtype)
        return stored.float() * scale


@dataclass
class ByBlocks:
    """Round to a block format along the dimension that is summed over.

    seed: of stochastic rounding
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
    """Rotate by a random Hadamard matrix, the same for both operands of a product, then round.

    Here all three products are rotated. NVIDIA's recipe (arXiv:2509.25149) rotates the operands
    of the weight gradient alone, 16 at a time.
    """

    then: Operand

    def __call__(self, tensor: Tensor, dim: int) -> Tensor:
        return self.then(rotate(tensor, 32, dim, random_signs(32)), dim)


@dataclass(frozen=True)
class Operands:
    """How the operands of a layer are rounded.

    by_dimension: whether rounding depends on the dimension that a product sums over, as in blocks.
                  Then each original tensor is rounded twice; otherwise once, and the backward pass
                  uses the result
    """

    inputs: Operand
    weights: Operand
    gradients: Operand
    by_dimension: bool = True


class Rounded(nn.Module):
    """A linear layer or a convolution in fp32 arithmetic on rounded operands. A convolution's are
    rounded along channels, or along the batch for the weight's gradient.

    It shares the parameters of the layer it replaces. Not for convolutions in groups, or padded by
    a name or by anything but zeros.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, operands: Operands) -> None:
        super().__init__()
        self.weight, self.bias, self.operands = layer.weight, layer.bias, operands
        every = (operands.inputs, operands.weights, operands.gradients)
        # as submodules, they move and are saved with the layer
        self.scalings = nn.ModuleList(
            operand.scaling for operand in every if isinstance(operand, OneScale)
        )
        self.geometry = None
        if isinstance(layer, nn.Conv2d):
            self.geometry = (layer.stride, layer.padding, layer.dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, [..., in_features] or [batch, channels, height, width]."""
        if self.geometry is None:
            rows = x.reshape(-1, x.shape[-1])
            product = _Product.apply(rows, self.weight, self.operands, None)
            result = product.view(*x.shape[:-1], self.weight.shape[0])
            bias = self.bias
        else:
            result = _Product.apply(x, self.weight, self.operands, self.geometry)
            bias = None if self.bias is None else self.bias[:, None, None]
        rounded: Tensor = (result if bias is None else result + bias).to(x.dtype)
        return rounded


class _Product(torch.autograd.Function):
    """Inputs [batch, in, …] times weights [out, in, …]: a matmul, or a convolution if `geometry`
    (stride, padding, dilation) is given.

    The output sums over `in`, dimension 1 of both; the input's gradient over `out`, dimension 1 of
    the gradient and 0 of the weight; the weight's gradient over the batch, dimension 0 of both.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, operands: Operands, geometry: tuple[Any, ...] | None
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            rounded_x, rounded_weight = operands.inputs(x, 1), operands.weights(weight, 1)
            saved = (x, weight) if operands.by_dimension else (rounded_x, rounded_weight)
            ctx.save_for_backward(*saved)
            ctx.operands, ctx.geometry, ctx.dtypes = operands, geometry, (x.dtype, weight.dtype)
            if geometry is None:
                return rounded_x @ rounded_weight.t()
            return functional.conv2d(rounded_x, rounded_weight, None, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        operands, gradient, geometry = ctx.operands, gradients[0], ctx.geometry
        if not operands.by_dimension:
            gradient = operands.gradients(gradient, 1)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            first, second = gradient, weight
            if operands.by_dimension:
                first, second = operands.gradients(gradient, 1), operands.weights(weight, 0)
            if geometry is None:
                of_x = first @ second
            else:
                of_x = grad.conv2d_input(x.shape, second, first, *geometry)
            of_x = of_x.to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            first, second = gradient, x
            if operands.by_dimension:
                first, second = operands.gradients(gradient, 0), operands.inputs(x, 0)
            if geometry is None:
                of_weight = first.t() @ second
            else:
                of_weight = grad.conv2d_weight(second, weight.shape, first, *geometry)
            of_weight = of_weight.to(ctx.dtypes[1])
        return of_x, of_weight, None, None


def replace_layers(model: nn.Module, make: Callable[[nn.Linear | nn.Conv2d], nn.Module]) -> None:
    """Replace each linear layer and convolution of a model.

    make: a layer → its replacement; called once for a layer that is used in several places
    """
    modules = list(model.modules())
    made = {layer: make(layer) for layer in modules if isinstance(layer, nn.Linear | nn.Conv2d)}
    for module in modules:
        for name, child in module._modules.items():
            if child in made:
                setattr(module, name, made[child])
