"""Linear layers and convolutions whose operands are rounded in all three products: forward, for the input, for the weight."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional, grad

from amp_course.frontiers.operands import Operand


@dataclass(frozen=True)
class Operands:
    """How the operands of a layer are rounded.

    by_dimension: whether that depends on the dimension that a product sums over, as with blocks along it. Each tensor is then
                  rounded twice, from the original; otherwise once, and the backward pass keeps the result
    """

    inputs: Operand
    weights: Operand
    gradients: Operand
    by_dimension: bool = True


class RoundedLinear(nn.Module):
    """A linear layer in fp32 arithmetic, on operands that were rounded. It shares the parameters of the one it replaces."""

    def __init__(self, linear: nn.Linear, operands: Operands) -> None:
        super().__init__()
        self.weight, self.bias, self.operands = linear.weight, linear.bias, operands

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias` for x of [..., in_features]."""
        rows: Tensor = _Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self.operands, None)
        result = rows.view(*x.shape[:-1], self.weight.shape[0])
        return result if self.bias is None else result + self.bias


class RoundedConv2d(nn.Module):
    """A convolution in fp32 arithmetic, on operands that were rounded along channels, and for the weight along the batch.

    Raises ValueError for groups, and for padding by a name or by anything but zeros.
    """

    def __init__(self, convolution: nn.Conv2d, operands: Operands) -> None:
        super().__init__()
        if convolution.groups != 1 or convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
            raise ValueError("only convolutions of one group, padded by a number of zeros, can be rounded here")
        self.weight, self.bias, self.operands = convolution.weight, convolution.bias, operands
        self.how = (convolution.stride, convolution.padding, convolution.dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x, [batch, channels, height, width]."""
        result: Tensor = _Product.apply(x, self.weight, self.operands, self.how)
        return result if self.bias is None else result + self.bias[:, None, None]


class _Product(torch.autograd.Function):
    """Inputs [batch, in, …] times weights [out, in, …]: a matmul, or a convolution where `how` says how.

    Forward sums over `in`, dimension 1 of both; the input's gradient over `out`, dimension 1 of the gradient and 0 of the weight;
    the weight's gradient over the batch, dimension 0 of both.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands, how: tuple[Any, ...] | None) -> Tensor:
        rounded_x, rounded_weight = operands.inputs(x, 1), operands.weights(weight, 1)
        ctx.save_for_backward(*((x, weight) if operands.by_dimension else (rounded_x, rounded_weight)))
        ctx.operands, ctx.how = operands, how
        if how is None:
            return rounded_x @ rounded_weight.t()
        return functional.conv2d(rounded_x, rounded_weight, None, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        operands, gradient = ctx.operands, gradients[0]
        if not operands.by_dimension:
            gradient = operands.gradients(gradient, 1)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            first, second = gradient, weight
            if operands.by_dimension:
                first, second = operands.gradients(gradient, 1), operands.weights(weight, 0)
            of_x = first @ second if ctx.how is None else grad.conv2d_input(x.shape, second, first, *ctx.how)
        if ctx.needs_input_grad[1]:
            first, second = gradient, x
            if operands.by_dimension:
                first, second = operands.gradients(gradient, 0), operands.inputs(x, 0)
            of_weight = (
                first.t() @ second if ctx.how is None else grad.conv2d_weight(second, weight.shape, first, *ctx.how)
            )
        return of_x, of_weight, None, None


def replace_layers(model: nn.Module, make: Callable[[nn.Module], nn.Module | None], keep: Collection[str] = ()) -> int:
    """Put another layer in the place of each that `make` returns one for; return how many.

    make: a module → its replacement, or None to leave it
    keep: names of modules that stay as they are, such as the first and the last: "head", "blocks.0.up"
    Raises ValueError for a name in `keep` that no module has.
    Example: replace_layers(model, lambda m: Fp8Linear.from_linear(m) if isinstance(m, nn.Linear) else None, keep=["head"])
    """
    modules = dict(model.named_modules())
    unknown = sorted(set(keep) - set(modules))
    if unknown:
        raise ValueError(f"no module is called {', '.join(unknown)}: choose names from model.named_modules()")
    count = 0
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        made = make(module) if name and name not in keep else None
        if made is not None:
            setattr(modules[parent], child, made)
            count += 1
    return count
