"""Round at random, so that on average nothing is lost."""

from __future__ import annotations

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.bits.rounding import binade, overflow_, work_dtype


@torch.no_grad()
def stochastic_round(
    x: Tensor, fmt: FloatFormat, generator: torch.Generator | None = None
) -> Tensor:
    """Round each element at random to one of its two neighbours, so that the mean stays x.

    x:         any shape, any floating dtype
    generator: torch's; it draws on its own device. By default the global one of x's device
    returns:   the same shape, in float32; in float64 if x is float64 or the format needs it

    A number a third of the way from one neighbour to the next goes up once in three times. The
    format's own numbers stay. Probabilities are exact to 2^−53. A number past the largest
    overflows, as in `round_to`, and so may one on the last step before it: no rounding is unbiased
    where the upper neighbour is inf.

    Raises TypeError for a tensor of integers, ValueError for NaN in a format that has none.
    Example: stochastic_round(torch.full((1000,), 2049.0), FP16).unique() → tensor([2048., 2050.])
    Source: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision" (arXiv:1502.02551).
    """
    x = x.to(work_dtype(x, fmt))
    # subtle: sizes are rounded, so that both signs are treated alike and `left` is exact
    size = x.abs()
    unit = binade(size, fmt)
    steps = (size / unit).mul_(2.0**fmt.significand_bits)
    below = steps.floor()
    # the distance from `below`, 0 to 1; NaN for inf, and no draw is smaller than NaN
    left = steps - below
    device = x.device if generator is None else generator.device
    draw = torch.rand(x.shape, dtype=torch.float64, device=device, generator=generator).to(x.device)
    rounded = below.add_(draw < left).mul_(fmt.eps).mul_(unit)
    return overflow_(torch.copysign(rounded, x), fmt)
