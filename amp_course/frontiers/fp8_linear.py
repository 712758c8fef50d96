"""A linear layer whose three matmuls run in fp8: E4M3 forward, E5M2 for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from amp_course.frontiers.fp8 import E4M3, E5M2, CurrentScaling, Scaling, multiply


class Fp8Linear(nn.Linear):
    """`nn.Linear` that multiplies inputs, weights and output gradients in fp8, each tensor with one
    scale. The stored weights keep their dtype.

    scaling: makes the scaling of each of the three tensors: `CurrentScaling` or `DelayedScaling`

    For the backward pass it keeps the inputs in fp8, 1 byte per number. The bias and its gradient
    are not in fp8. The result has the dtype of the input; the sums are in fp32. Where torch has no
    `scaled_mm`, see `amp_course.frontiers.fp8.simulated_because`.
    Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv:2209.05433): E4M3
            forward, E5M2 for gradients.
    Example: Fp8Linear(64, 32)(torch.randn(8, 64)).shape → (8, 32)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scaling: Callable[[], Scaling] = CurrentScaling,
        device: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device)
        self.input_scaling, self.weight_scaling, self.gradient_scaling = (
            scaling() for _ in range(3)
        )

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Fp8Linear:
        """Return an fp8 layer that shares the weight and bias of a linear layer."""
        sizes = linear.in_features, linear.out_features, linear.bias is not None
        layer = cls(*sizes, device="meta", **options)  # draws no numbers
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.to(linear.weight.device).train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Fp8Product.apply(x, self.weight, self)
        return result if self.bias is None else result + self.bias.to(result.dtype)


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Fp8Linear) -> Tensor:
        x8, x_scale = layer.input_scaling(x.reshape(-1, x.shape[-1]), E4M3)
        w8, w_scale = layer.weight_scaling(weight, E4M3)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        ctx.layer, ctx.shape, ctx.dtypes = layer, x.shape, (x.dtype, weight.dtype)
        result = multiply(x8, w8.t(), x_scale, w_scale).to(x.dtype)
        return result.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        g8, g_scale = ctx.layer.gradient_scaling(gradient, E5M2)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = multiply(g8, w8, g_scale, w_scale).to(ctx.dtypes[0]).view(ctx.shape)
        if ctx.needs_input_grad[1]:
            of_weight = multiply(g8.t(), x8, g_scale, x_scale).to(ctx.dtypes[1])
        return of_x, of_weight, None
