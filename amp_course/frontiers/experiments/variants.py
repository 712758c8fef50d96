"""What a training rounds, and how: the operands of all its matmuls and convolutions,
or the activations that it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.bits import BF16, FP8_E4M3, FP8_E5M2
from amp_course.frontiers.activations import CompressedActivations
from amp_course.frontiers.bf16_optimizers import Bf16AdamW, UpdateRounding
from amp_course.frontiers.block_formats import MXFP4, MXFP8_E4M3, NVFP4, BlockFormat
from amp_course.frontiers.eight_bit import AdamW8bit
from amp_course.frontiers.fp8 import E4M3, E5M2, CurrentScaling, DelayedScaling, Scaling
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.layers import Operands, RoundedConv2d, RoundedLinear, replace_layers
from amp_course.frontiers.operands import ByBlocks, OneScale, Rotated, Unscaled

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeOperands = Callable[[int], Operands]  # from a seed, for the draws of stochastic rounding


@dataclass(frozen=True)
class Stepping:
    """An optimizer, for its schedule, and the call that makes a step of it."""

    optimizer: torch.optim.Optimizer
    step: Callable[[], Any]


@dataclass(frozen=True)
class Variant:
    """One way to round the operands of every linear layer and convolution, in all three products.

    bits:     of a stored number, its share of the scale included
    operands: made for each layer; None leaves the model as it is
    scaling:  of the fp8 layers of torch's own arithmetic, which linear layers become; convolutions
              are simulated
    """

    name: str
    bits: float
    operands: MakeOperands | None = None
    scaling: Callable[[], Scaling] | None = None

    def convert(self, model: nn.Module, seed: int = 0) -> None:
        """Replace the layers of a model, in place; each draws numbers of its own."""
        if self.operands is None:
            return
        made = 0

        def make(module: nn.Module) -> nn.Module | None:
            nonlocal made
            if not isinstance(module, nn.Linear | nn.Conv2d):
                return None
            made += 1
            if isinstance(module, nn.Linear) and self.scaling is not None:
                return Fp8Linear.from_linear(module, scaling=self.scaling)
            assert self.operands is not None
            operands = self.operands(1000 * seed + made)
            return (
                RoundedLinear(module, operands)
                if isinstance(module, nn.Linear)
                else RoundedConv2d(module, operands)
            )

        replace_layers(model, make)

    def saving(self, seed: int = 0) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        return nullcontext()

    def stepping(self, model: nn.Module, make_optimizer: MakeOptimizer, seed: int = 0) -> Stepping:
        """Return what updates the model, once a step."""
        optimizer = make_optimizer(list(model.parameters()))
        # looked up late: a schedule replaces it
        return Stepping(optimizer, lambda: optimizer.step())


@dataclass(frozen=True)
class CompressedVariant(Variant):
    """fp32 arithmetic; what autograd keeps for the backward pass is kept in few bits,
    `group` numbers to a scale.
    """

    name: str = field(init=False)
    bits: float = 2
    group: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.bits}-bit activations, groups of {self.group}")

    def saving(self, seed: int = 0) -> CompressedActivations:
        """Return the hooks."""
        return CompressedActivations(
            int(self.bits), self.group, generator=torch.Generator().manual_seed(seed)
        )


@dataclass(frozen=True)
class OptimizerVariant(Variant):
    """fp32 arithmetic in the layers; another optimizer, on weights in bf16 or in fp32.

    make: (parameters, learning rate, seed) → the optimizer
    low:  whether weights and gradients are in bf16; the layers read them in fp32, so only updates
          are rounded
    """

    make: Callable[[list[nn.Parameter], float, int], torch.optim.Optimizer] = field(kw_only=True)
    low: bool = field(kw_only=True)

    def stepping(self, model: nn.Module, make_optimizer: MakeOptimizer, seed: int = 0) -> Stepping:
        """Return a step of this optimizer, at the learning rate of the one that was asked for."""
        whole = list(model.parameters())
        rate = make_optimizer(whole).defaults["lr"]
        if not self.low:
            optimizer = self.make(whole, rate, seed)
            # looked up late: a schedule replaces it
            return Stepping(optimizer, lambda: optimizer.step())
        low = [nn.Parameter(parameter.detach().bfloat16()) for parameter in whole]
        optimizer = self.make(low, rate, seed)

        @torch.no_grad()
        def step() -> None:
            for parameter, stored in zip(whole, low, strict=True):
                stored.grad = None if parameter.grad is None else parameter.grad.bfloat16()
                parameter.grad = None
            optimizer.step()
            read()

        @torch.no_grad()
        def read() -> None:
            for parameter, stored in zip(whole, low, strict=True):
                parameter.copy_(stored)

        read()
        return Stepping(optimizer, step)


def _unscaled(_: int, *, forward: Any = BF16, backward: Any = BF16) -> Operands:
    return Operands(Unscaled(forward), Unscaled(forward), Unscaled(backward), by_dimension=False)


def _one_scale(_: int, *, scaling: Callable[[], Scaling]) -> Operands:
    return Operands(
        OneScale(E4M3, scaling()),
        OneScale(E4M3, scaling()),
        OneScale(E5M2, scaling()),
        by_dimension=False,
    )


def _by_blocks(
    seed: int,
    *,
    block_format: BlockFormat,
    stochastic: bool = False,
    rotated: bool = False,
    gradients_only: bool = False,
) -> Operands:
    nearest = ByBlocks(block_format)
    gradients = ByBlocks(block_format, "stochastic", seed) if stochastic else nearest
    if gradients_only:
        return Operands(_exact, _exact, gradients)
    if rotated:
        return Operands(Rotated(nearest), Rotated(nearest), Rotated(gradients))
    return Operands(nearest, nearest, gradients)


def _exact(tensor: Tensor, dim: int) -> Tensor:
    return tensor


def _blocks(name: str, block_format: BlockFormat, **how: bool) -> Variant:
    return Variant(
        name, float(block_format.bits), partial(_by_blocks, block_format=block_format, **how)
    )


def _bf16_adamw(
    parameters: list[nn.Parameter], rate: float, seed: int, *, rounding: UpdateRounding
) -> Bf16AdamW:
    return Bf16AdamW(parameters, rate, BETAS, rounding=rounding, seed=seed)


BETAS = (0.9, 0.95)
# Stochastic rounding is for gradients alone, as in NVIDIA's recipe (arXiv:2509.25149). It is right
# on average only where nothing is clipped, and a scale that is rounded down clips the largest
# numbers of a block.
VARIANTS = (
    Variant("fp32", 32),
    Variant("bf16", 16, _unscaled),
    Variant("fp8, no scale", 8, partial(_unscaled, forward=FP8_E4M3, backward=FP8_E5M2)),
    Variant("fp8, current scale", 8, partial(_one_scale, scaling=CurrentScaling), CurrentScaling),
    Variant("fp8, delayed scale", 8, partial(_one_scale, scaling=DelayedScaling), DelayedScaling),
    _blocks("MXFP8, scale down", MXFP8_E4M3),
    _blocks("MXFP8, scale up", MXFP8_E4M3.rounding_scale("up")),
    _blocks("MXFP4, scale down", MXFP4),
    _blocks("MXFP4, scale up", MXFP4.rounding_scale("up")),
    _blocks("MXFP4, scale down, stochastic", MXFP4, stochastic=True),
    _blocks("MXFP4, scale up, stochastic", MXFP4.rounding_scale("up"), stochastic=True),
    _blocks(
        "MXFP4, scale up, stochastic, rotated",
        MXFP4.rounding_scale("up"),
        stochastic=True,
        rotated=True,
    ),
    _blocks("NVFP4", NVFP4),
    _blocks("NVFP4, stochastic", NVFP4, stochastic=True),
    _blocks("NVFP4, stochastic, rotated", NVFP4, stochastic=True, rotated=True),
)

# For `gradient_errors`: the backward pass alone.
GRADIENTS_ONLY = (
    _blocks("only gradients in MXFP4, scale down", MXFP4, gradients_only=True),
    _blocks(
        "only gradients in MXFP4, scale down, stochastic",
        MXFP4,
        stochastic=True,
        gradients_only=True,
    ),
    _blocks("only gradients in MXFP4, scale up", MXFP4.rounding_scale("up"), gradients_only=True),
    _blocks(
        "only gradients in MXFP4, scale up, stochastic",
        MXFP4.rounding_scale("up"),
        stochastic=True,
        gradients_only=True,
    ),
)
OPTIMIZERS = (
    OptimizerVariant(
        "AdamW, all in fp32",
        96,
        make=lambda p, rate, _: torch.optim.AdamW(p, rate, betas=BETAS),
        low=False,
    ),
    OptimizerVariant(
        "AdamW, 8-bit states", 48.25, make=lambda p, rate, _: AdamW8bit(p, rate, BETAS), low=False
    ),
    OptimizerVariant(
        "bf16 AdamW, nearest", 48, make=partial(_bf16_adamw, rounding="nearest"), low=True
    ),
    OptimizerVariant(
        "bf16 AdamW, stochastic", 48, make=partial(_bf16_adamw, rounding="stochastic"), low=True
    ),
    OptimizerVariant(
        "bf16 AdamW, Kahan", 64, make=partial(_bf16_adamw, rounding="kahan"), low=True
    ),
)


def find_variant(name: str) -> Variant:
    """Return a variant by its name; ValueError for an unknown one."""
    for variant in (*VARIANTS, *OPTIMIZERS):
        if variant.name == name:
            return variant
    raise ValueError(
        f"no variant is called {name!r}: choose one of "
        f"{'; '.join(one.name for one in (*VARIANTS, *OPTIMIZERS))}"
    )
