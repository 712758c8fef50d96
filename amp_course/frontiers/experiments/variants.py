"""What a training rounds, and how: the operands of all matmuls and convolutions, or the activations
that it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from amp_course.bits import BF16, FP8_E4M3, FP8_E5M2, FloatFormat
from amp_course.frontiers.activations import CompressedActivations
from amp_course.frontiers.bf16_optimizers import Bf16AdamW, UpdateRounding
from amp_course.frontiers.block_formats import MXFP4, MXFP8_E4M3, NVFP4, BlockFormat
from amp_course.frontiers.eight_bit import AdamW8bit
from amp_course.frontiers.fp8 import E4M3, E5M2, CurrentScaling, DelayedScaling, Scaling
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.layers import (
    ByBlocks,
    OneScale,
    Operands,
    Rotated,
    Rounded,
    Unscaled,
    replace_layers,
)

MakeOperands = Callable[[int], Operands]  # from a seed, for the draws of stochastic rounding
# (parameters, learning rate, seed) → the optimizer
MakeOptimizer = Callable[[list[nn.Parameter], float, int], torch.optim.Optimizer]


@dataclass(frozen=True)
class Variant:
    """One way to round the operands of every linear layer and convolution, in all three products.

    bits:     of a stored number, its share of the scale included
    operands: made for each layer; None leaves the model unchanged
    scaling:  turns linear layers into `Fp8Linear`, with torch's fp8 arithmetic; convolutions are
              simulated
    """

    name: str
    bits: float
    operands: MakeOperands | None = None
    scaling: Callable[[], Scaling] | None = None

    def convert(self, model: nn.Module, seed: int = 0) -> None:
        """Replace the layers of a model, in place; each draws different numbers."""
        make_operands, seeds = self.operands, count(1000 * seed + 1)
        if make_operands is None:
            return

        def make(layer: nn.Linear | nn.Conv2d) -> nn.Module:
            if isinstance(layer, nn.Linear) and self.scaling is not None:
                return Fp8Linear.from_linear(layer, scaling=self.scaling)
            return Rounded(layer, make_operands(next(seeds)))

        replace_layers(model, make)

    def saving(self, seed: int = 0) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        return nullcontext()

    def optimizer(self, usual: torch.optim.Optimizer, seed: int = 0) -> torch.optim.Optimizer:
        """Return what updates the model: its usual optimizer, or another in its place."""
        return usual


@dataclass(frozen=True)
class CompressedVariant(Variant):
    """fp32 arithmetic; what autograd saves is kept in few bits, `group` numbers to a scale."""

    name: str = field(init=False)
    bits: float = 2
    group: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.bits}-bit activations, groups of {self.group}")

    def saving(self, seed: int = 0) -> CompressedActivations:
        return CompressedActivations(
            int(self.bits), self.group, generator=torch.Generator().manual_seed(seed)
        )


@dataclass(frozen=True)
class OptimizerVariant(Variant):
    """fp32 arithmetic in the layers; another optimizer, on weights in bf16 or in fp32.

    low:  whether the optimizer has weights and gradients in bf16; the layers have fp32 copies, so
          only updates are rounded
    """

    make: MakeOptimizer = field(kw_only=True)
    low: bool = field(kw_only=True)

    def optimizer(self, usual: torch.optim.Optimizer, seed: int = 0) -> torch.optim.Optimizer:
        whole, rate = usual.param_groups[0]["params"], usual.defaults["lr"]
        if not self.low:
            return self.make(whole, rate, seed)
        low = [nn.Parameter(parameter.detach().bfloat16()) for parameter in whole]
        optimizer = self.make(low, rate, seed)

        def hand_over(*_: Any) -> None:
            for parameter, stored in zip(whole, low, strict=True):
                stored.grad = None if parameter.grad is None else parameter.grad.bfloat16()

        @torch.no_grad()
        def read(*_: Any) -> None:
            for parameter, stored in zip(whole, low, strict=True):
                parameter.copy_(stored)

        optimizer.register_step_pre_hook(hand_over)
        optimizer.register_step_post_hook(read)
        read()
        return optimizer


def _unscaled(forward: FloatFormat, backward: FloatFormat) -> MakeOperands:
    operands = Unscaled(forward), Unscaled(forward), Unscaled(backward)
    return lambda _: Operands(*operands, by_dimension=False)


def _one_scale(name: str, scaling: Callable[[], Scaling]) -> Variant:
    def operands(_: int) -> Operands:
        inputs, weights, gradients = (OneScale(dtype, scaling()) for dtype in (E4M3, E4M3, E5M2))
        return Operands(inputs, weights, gradients, by_dimension=False)

    return Variant(name, 8, operands, scaling)


def _blocks(
    name: str,
    block_format: BlockFormat,
    *,
    stochastic: bool = False,
    rotated: bool = False,
    gradients_only: bool = False,
) -> Variant:
    def operands(seed: int) -> Operands:
        nearest = ByBlocks(block_format)
        gradients = ByBlocks(block_format, "stochastic", seed) if stochastic else nearest
        if gradients_only:
            return Operands(_exact, _exact, gradients)
        if rotated:
            return Operands(Rotated(nearest), Rotated(nearest), Rotated(gradients))
        return Operands(nearest, nearest, gradients)

    return Variant(name, float(block_format.bits), operands)


def _exact(tensor: Tensor, dim: int) -> Tensor:
    return tensor


BETAS = (0.9, 0.95)
MXFP4_UP = MXFP4.rounding_scale("up")
# Stochastic rounding is for gradients alone, as in NVIDIA's recipe (arXiv:2509.25149). It is right
# on average only if nothing is clipped, and a scale rounded down clips a block's largest numbers.
VARIANTS = (
    Variant("fp32", 32),
    Variant("bf16", 16, _unscaled(BF16, BF16)),
    Variant("fp8, no scale", 8, _unscaled(FP8_E4M3, FP8_E5M2)),
    _one_scale("fp8, current scale", CurrentScaling),
    _one_scale("fp8, delayed scale", DelayedScaling),
    _blocks("MXFP8, scale down", MXFP8_E4M3),
    _blocks("MXFP8, scale up", MXFP8_E4M3.rounding_scale("up")),
    _blocks("MXFP4, scale down", MXFP4),
    _blocks("MXFP4, scale up", MXFP4_UP),
    _blocks("MXFP4, scale down, stochastic", MXFP4, stochastic=True),
    _blocks("MXFP4, scale up, stochastic", MXFP4_UP, stochastic=True),
    _blocks("MXFP4, scale up, stochastic, rotated", MXFP4_UP, stochastic=True, rotated=True),
    _blocks("NVFP4", NVFP4),
    _blocks("NVFP4, stochastic", NVFP4, stochastic=True),
    _blocks("NVFP4, stochastic, rotated", NVFP4, stochastic=True, rotated=True),
)

# for `gradient_errors`: only the backward pass is rounded
GRADIENTS_ONLY = tuple(
    _blocks(
        f"only gradients in MXFP4, scale {fmt.rounding}{', stochastic' if stochastic else ''}",
        fmt,
        stochastic=stochastic,
        gradients_only=True,
    )
    for fmt in (MXFP4, MXFP4_UP)
    for stochastic in (False, True)
)


def _bf16(rounding: UpdateRounding) -> MakeOptimizer:
    return lambda parameters, rate, seed: Bf16AdamW(
        parameters, rate, BETAS, rounding=rounding, seed=seed
    )


OPTIMIZERS = (
    OptimizerVariant("AdamW, all in fp32", 96, make=lambda p, r, _: AdamW(p, r, BETAS), low=False),
    OptimizerVariant(
        "AdamW, 8-bit states", 48.25, make=lambda p, r, _: AdamW8bit(p, r, BETAS), low=False
    ),
    OptimizerVariant("bf16 AdamW, nearest", 48, make=_bf16("nearest"), low=True),
    OptimizerVariant("bf16 AdamW, stochastic", 48, make=_bf16("stochastic"), low=True),
    OptimizerVariant("bf16 AdamW, Kahan", 64, make=_bf16("kahan"), low=True),
)


def find_variant(name: str) -> Variant:
    """Return a variant by its name; ValueError for an unknown one."""
    known = {variant.name: variant for variant in (*VARIANTS, *OPTIMIZERS)}
    if name not in known:
        raise ValueError(f"no variant is called {name!r}: choose one of {'; '.join(known)}")
    return known[name]
