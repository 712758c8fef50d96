"""Round tensors into any format: the fast twin of `scalar.encode` followed by `scalar.decode`.

The result is stored in float32 or float64, so that formats without a torch dtype, or without
arithmetic in torch, can be tried on real tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import FP32, FloatFormat

# the integer dtype to view a float as, and the mask of its exponent bits
_EXPONENT_BITS = {
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
}


def round_to(x: Tensor, fmt: FloatFormat) -> Tensor:
    """Round each element to the nearest value of a format, ties to even: 2049 in fp16 → 2048.

    x:       any shape, any floating dtype
    returns: the same shape, in float32; in float64 if x is float64 or the format needs it

    Gradients pass straight through, as if nothing had been rounded (Bengio et al. 2013,
    arXiv:1308.3432).

    Raises TypeError for a tensor of integers, ValueError for NaN in a format that has none.
    """
    dtype = work_dtype(x, fmt)
    rounded: Tensor = _StraightThrough.apply(x.to(dtype), fmt)
    return rounded


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: FloatFormat) -> Tensor:
        unit = binade(x, fmt)
        steps = (x / unit).mul_(2.0**fmt.significand_bits).round_()  # torch rounds half to even
        return overflow_(steps.mul_(fmt.eps).mul_(unit), fmt)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def work_dtype(x: Tensor, fmt: FloatFormat) -> torch.dtype:
    """Return float32, or float64 if x or the format needs it to be rounded exactly.

    Raises TypeError unless x is a tensor of real floating-point numbers.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor, not a {type(x).__name__}: wrap it in torch.tensor(…)")
    if not x.is_floating_point():
        raise TypeError(
            f"only floating-point tensors are rounded, and this one is {x.dtype}: convert it with "
            f".float()"
        )
    wide = (
        fmt.significand_bits > FP32.significand_bits
        or fmt.max_exponent > FP32.max_exponent
        or fmt.min_exponent < FP32.min_exponent
    )
    return torch.float64 if wide or x.dtype == torch.float64 else torch.float32


def binade(x: Tensor, fmt: FloatFormat) -> Tensor:
    """Return the power of two at or below each |x|, clamped to the format's exponents: 3.0 → 2.0.

    x is float32 or float64. Times `fmt.eps` it is the spacing of the format at x.
    """
    integer, exponent = _EXPONENT_BITS[x.dtype]
    # clear the significand: 1.1011 · 2^e → 2^e
    power = (x.view(integer) & exponent).view(x.dtype)
    return power.clamp_(fmt.smallest_normal, 2.0**fmt.max_exponent)


def overflow_(rounded: Tensor, fmt: FloatFormat) -> Tensor:
    """Replace, in place, what is past the largest number by inf, or by that number without inf.

    Raises ValueError for NaN in a format that has none.
    """
    if fmt.specials == "finite" and rounded.isnan().any():
        raise ValueError(
            f"{fmt.name} has no NaN, but the tensor does: find it with x.isnan() before rounding"
        )
    if fmt.specials != "ieee":
        return rounded.clamp_(-fmt.max, fmt.max)  # which leaves NaN as it is
    if rounded.numel() == 0:
        return rounded
    # a cheap test first, as `where` is rarely needed; both are NaN if any element is
    least, largest = rounded.aminmax()
    if -fmt.max <= least and largest <= fmt.max:
        return rounded
    return torch.where(rounded.abs() > fmt.max, rounded.sign() * torch.inf, rounded, out=rounded)
