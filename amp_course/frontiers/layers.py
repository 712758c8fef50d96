"""Linear layers and convolutions whose operands are rounded in all three products:
forward, for the input, for the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional, grad

from amp_course.frontiers.operands import Operand, scaling_of


@dataclass(frozen=True)
class Operands:
    """How the operands of a layer are rounded.

    by_dimension: whether that depends on the dimension that a product sums over, as with blocks
                  along it. Each tensor is then rounded twice, from the original; otherwise once,
                  and the backward pass keeps the result
    """

    inputs: Operand
    weights: Operand
    gradients: Operand
    by_dimension: bool = True

    def scalings(self) -> nn.ModuleList:
        """Return the modules that scale, so that a layer moves and saves them."""
        return nn.ModuleList(
            found
            for one in (self.inputs, self.weights, self.gradients)
            if (found := scaling_of(one))
        )


class RoundedLinear(nn.Module):
    """A linear layer in fp32 arithmetic, on operands that were rounded.
    It shares the parameters of the one it replaces.
    """

    def __init__(self, linear: nn.Linear, operands: Operands) -> None:
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(
                f"only an nn.Linear becomes a RoundedLinear, and this is a {type(linear).__name__}"
            )
        self.weight, self.bias, self.operands = linear.weight, linear.bias, operands
        self.scalings = operands.scalings()

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias` for x of [..., in_features]."""
        rows: Tensor = _Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self.operands, None)
        result = rows.view(*x.shape[:-1], self.weight.shape[0])
        return (result if self.bias is None else result + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        """Say its sizes."""
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"


class RoundedConv2d(nn.Module):
    """A convolution in fp32 arithmetic, on operands that were rounded along channels, and for the
    weight along the batch.

    Raises TypeError for anything but an `nn.Conv2d`; ValueError for groups, and for padding by a
    name or by anything but zeros.
    """

    def __init__(self, convolution: nn.Conv2d, operands: Operands) -> None:
        super().__init__()
        if not isinstance(convolution, nn.Conv2d):
            raise TypeError(
                f"only an nn.Conv2d becomes a RoundedConv2d, and this is a "
                f"{type(convolution).__name__}"
            )
        if (
            convolution.groups != 1
            or convolution.padding_mode != "zeros"
            or isinstance(convolution.padding, str)
        ):
            raise ValueError(
                "only convolutions of one group, padded by a number of zeros, can be rounded here"
            )
        self.weight, self.bias, self.operands = convolution.weight, convolution.bias, operands
        self.scalings = operands.scalings()
        self.geometry = (convolution.stride, convolution.padding, convolution.dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x, [batch, channels, height, width];
        ValueError for another number of dimensions.
        """
        if x.dim() != 4:
            raise ValueError(
                f"x has {x.dim()} dimensions, and a batch of pictures has 4: use x[None] for a "
                f"single one"
            )
        result: Tensor = _Product.apply(x, self.weight, self.operands, self.geometry)
        return (result if self.bias is None else result + self.bias[:, None, None]).to(x.dtype)

    def extra_repr(self) -> str:
        """Say its sizes."""
        return (
            f"{self.weight.shape[1]}, {self.weight.shape[0]}, "
            f"kernel_size={tuple(self.weight.shape[2:])}"
        )


class _Product(torch.autograd.Function):
    """Inputs [batch, in, …] times weights [out, in, …]: a matmul, or a convolution if there is a
    geometry (stride and so on).

    Forward sums over `in`, dimension 1 of both; the input's gradient over `out`, dimension 1 of the
    gradient and 0 of the weight; the weight's gradient over the batch, dimension 0 of both.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, operands: Operands, geometry: tuple[Any, ...] | None
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # which is on in here, too
            rounded_x, rounded_weight = operands.inputs(x, 1), operands.weights(weight, 1)
            ctx.save_for_backward(
                *((x, weight) if operands.by_dimension else (rounded_x, rounded_weight))
            )
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
            of_x = (
                first @ second
                if geometry is None
                else grad.conv2d_input(x.shape, second, first, *geometry)
            )
            of_x = of_x.to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            first, second = gradient, x
            if operands.by_dimension:
                first, second = operands.gradients(gradient, 0), operands.inputs(x, 0)
            of_weight = (
                first.t() @ second
                if geometry is None
                else grad.conv2d_weight(second, weight.shape, first, *geometry)
            ).to(ctx.dtypes[1])
        return of_x, of_weight, None, None


def replace_layers(
    model: nn.Module, make: Callable[[nn.Module], nn.Module | None], keep: Collection[str] = ()
) -> int:
    """Put another layer in the place of each that `make` returns one for; return how many layers
    that were.

    make: a module → its replacement, or None to leave it; asked once for a layer that is used in
          several places
    keep: names of modules that stay as they are, with all that is in them, such as the first and
          the last: "head", "blocks.0"
    Replacing has no effect where another module reads a layer's weight itself, as
    `nn.MultiheadAttention` does with `out_proj`. Raises ValueError for a name in `keep` that no
    module has, and for a model that would have to be replaced itself; TypeError for a string as
    `keep`.
    Example: replace_layers(model, lambda m: Fp8Linear.from_linear(m) if isinstance(m, nn.Linear)
             else None, keep=["head"])
    """
    if isinstance(keep, str):
        raise TypeError(f"keep is a string: write keep=[{keep!r}]")
    modules = dict(model.named_modules(remove_duplicate=False))
    unknown = sorted(set(keep) - set(modules))
    if unknown:
        raise ValueError(
            f"no module is called {', '.join(unknown)}: choose names from model.named_modules()"
        )
    if "" not in keep and make(model) is not None:
        raise ValueError(
            f"the model is a {type(model).__name__} itself, and nothing holds it: call what `make` "
            f"calls"
        )
    made: dict[nn.Module, nn.Module | None] = {}
    for name, module in modules.items():
        if not name or any(name == one or name.startswith(f"{one}.") for one in keep):
            continue
        if module not in made:
            made[module] = make(module)
        parent, _, child = name.rpartition(".")
        if (new := made[module]) is not None:
            setattr(modules[parent], child, new)
    return sum(one is not None for one in made.values())
