"""Round tensors to block formats and back, and return the stored elements and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from amp_course.bits import round_to
from amp_course.bits.rounding import work_dtype
from amp_course.frontiers.block_formats import LARGEST_SCALE, LEAST_SCALE, BlockFormat
from amp_course.underflow.stochastic import stochastic_round

ElementRounding = Literal["nearest", "stochastic"]


def quantize(
    tensor: Tensor,
    block_format: BlockFormat,
    dim: int = -1,
    *,
    rounding: ElementRounding = "nearest",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Round a tensor to a block format and back.

    tensor:    any shape, any floating dtype
    dim:       along which blocks lie; where the size is no multiple of a block, the last block is
               shorter
    rounding:  of the elements: to nearest, ties to even, or up or down at random, which is right on
               average unless a number is clipped: the largest of a block may be if the scale was
               rounded down, as in the formats' rule and in NVFP4
    generator: of the random numbers
    returns:   the same shape, in float32, or in float64 if the tensor is

    A block with inf or NaN becomes all NaN, as its scale does (OCP MX v1.0 has a NaN scale for
    that). For inf this is one of several choices: gfloat keeps it in its place. Gradients pass
    straight through, as with `round_to`.

    Raises TypeError for a tensor of integers, IndexError for a dimension that does not exist.
    Example: quantize(torch.tensor([6.0, 0.4]), MXFP4) → tensor([6.0000, 0.5000])
    """
    if isinstance(tensor, Tensor) and not tensor.dim():
        return quantize(tensor[None], block_format, rounding=rounding, generator=generator)[0]
    options = {"rounding": rounding, "generator": generator}
    result: Tensor = _StraightThrough.apply(tensor, block_format, dim, options)
    return result


@dataclass(frozen=True)
class Blocks:
    """The stored parts of a tensor.

    elements:     [..., blocks, size], float32 or float64; the last block is padded with zeros
    scales:       [..., blocks], a block's scale times the tensor's; NaN for a block with inf or NaN
    tensor_scale: 1.0 for formats without one
    """

    elements: Tensor
    scales: Tensor
    tensor_scale: float


def blocks_of(
    tensor: Tensor,
    block_format: BlockFormat,
    dim: int = -1,
    *,
    rounding: ElementRounding = "nearest",
    generator: torch.Generator | None = None,
) -> Blocks:
    """Return the factors in `quantize`'s result, with the dimension of the blocks last."""
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(
            f"unknown rounding {rounding!r} of the elements: choose “nearest” or “stochastic”; for "
            f"the scale's, see `BlockFormat.rounding_scale`"
        )
    element = block_format.element
    dtype = work_dtype(tensor, element)
    if block_format.scale is not None:
        dtype = torch.float64  # so that a quotient is rounded only once
    values = _in_blocks(tensor.detach().to(dtype), block_format.size, dim)
    amax = values.abs().amax(dim=-1)
    amax = torch.where(amax.isfinite(), amax, torch.nan)
    tensor_scale = 1.0
    if block_format.scale is None:
        one = torch.ones_like(amax, dtype=torch.float64)
        powers = torch.ldexp(one, _exponents(amax, block_format))
        scales = powers.to(dtype).masked_fill(amax.isnan(), torch.nan)
    else:
        tensor_scale = _tensor_scale(amax, block_format)
        block_scales = round_to(amax / (element.max * tensor_scale), block_format.scale)
        scales = block_scales.to(dtype) * tensor_scale
    divisors = torch.where(scales > 0, scales, 1.0)[..., None]  # a scale of 0 or NaN wins anyway
    scaled = torch.nan_to_num(values, posinf=0.0, neginf=0.0) / divisors
    scaled = scaled.clamp(-element.max, element.max)
    if rounding == "nearest":
        elements = round_to(scaled, element)
    else:
        elements = stochastic_round(scaled, element, generator)
    return Blocks(elements, scales, tensor_scale)


def _tensor_scale(amax: Tensor, block_format: BlockFormat) -> float:
    """Return the fp32 scale of a whole tensor, by which the largest block scale fits its format."""
    finite = amax[amax.isfinite()]
    if block_format.scale is None or not block_format.two_level or not finite.numel():
        return 1.0
    room = block_format.element.max * block_format.scale.max
    scale = torch.tensor(float(finite.max()) / room, dtype=torch.float32).item()
    return scale if 0 < scale < math.inf else 1.0


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, block_format: BlockFormat, dim: int, options: Any
    ) -> Tensor:
        parts = blocks_of(tensor, block_format, dim, **options)
        ctx.dtype = tensor.dtype
        values = (parts.elements * parts.scales[..., None]).flatten(-2)
        whole = values[..., : tensor.shape[dim]].movedim(-1, dim)
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        return whole.to(wide).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].to(ctx.dtype), None, None, None


def _in_blocks(values: Tensor, size: int, dim: int) -> Tensor:
    """Return [..., blocks, size], with `dim` last, padded with zeros."""
    last = values.movedim(dim, -1)
    blocks = -(-last.shape[-1] // size)
    return pad(last, (0, blocks * size - last.shape[-1])).unflatten(-1, (blocks, size))


def _exponents(amax: Tensor, block_format: BlockFormat) -> Tensor:
    """Return the exponents of power-of-two scales, int32."""
    element = block_format.element
    largest = torch.where(amax > 0, amax, 1.0).double()  # float64 has all exponents that may occur
    if block_format.rounding == "nearest":
        largest = _to_bits(largest, element.significand_bits)
    exponents = torch.frexp(largest).exponent - 1 - element.max_exponent
    if block_format.rounding == "up":
        exponents = exponents + (torch.ldexp(largest, -exponents) > element.max)
    return torch.where(amax > 0, exponents.clamp(LEAST_SCALE, LARGEST_SCALE), LEAST_SCALE)


def _to_bits(values: Tensor, bits: int) -> Tensor:
    """Round positive numbers to `bits` significand bits, ties to even."""
    significand, exponent = torch.frexp(values)  # from 0.5 to 1
    return torch.ldexp((significand * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent)
