"""Matmuls of fp8 tensors with one scale each, by torch's `scaled_mm` where it works, and ways to
choose the scales.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.bits import FP32, FloatFormat
from amp_course.bits.formats import find_format

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def fp8_format(dtype: torch.dtype) -> FloatFormat:
    """Return the format of an fp8 dtype; ValueError for any other dtype, the fnuz variants too."""
    if dtype not in (E4M3, E5M2):
        raise ValueError(
            f"{dtype} is not an fp8 dtype of this chapter: choose torch.float8_e4m3fn or "
            f"torch.float8_e5m2"
        )
    return find_format(dtype)


def to_fp8(tensor: Tensor, scale: Tensor, dtype: torch.dtype = E4M3) -> Tensor:
    """Store `tensor / scale` in fp8, rounded to nearest; too large finite numbers are clipped.

    tensor: any shape, any floating dtype
    scale:  one number, or one that broadcasts
    returns: the same shape, in `dtype`. NaN stays NaN; inf stays inf in E5M2 and becomes NaN in
             E4M3, which has no inf
    Raises TypeError for a tensor of integers.
    Example: to_fp8(torch.tensor([1.0, 500.0]), torch.tensor(1.0)).float() → tensor([1., 448.])
    """
    fmt = fp8_format(dtype)
    if not tensor.is_floating_point():
        raise TypeError(
            f"only floating-point tensors are stored in fp8, and this one is {tensor.dtype}: "
            f"convert it with .float()"
        )
    scaled = tensor.detach().float() / scale
    # explicit, as versions of torch cast inf in different ways
    infinite = scaled if fmt.specials == "ieee" else torch.nan
    return torch.where(tensor.detach().isinf(), infinite, scaled.clamp(-fmt.max, fmt.max)).to(dtype)


def scale_for(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale that makes `amax` the largest number of the dtype; 1 for an amax of 0, inf
    or NaN.

    amax: one or more numbers, float32. Below about 1e-36 the scale stays at the smallest normal
          number of fp32.
    Source: for 0, inf and NaN, Transformer Engine's `compute_scale_from_amax`,
            common/recipe/recipe_common.cuh.
    """
    amax = amax.float()
    scale = (amax / fp8_format(dtype).max).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where((amax > 0) & amax.isfinite(), scale, 1.0)


class CurrentScaling(nn.Module):
    """Takes the scale from the tensor itself: always right, but it reads the tensor once more."""

    @torch.no_grad()
    def forward(self, tensor: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
        """Return the tensor in fp8, and the scale to multiply its numbers by."""
        scale = scale_for(tensor.abs().amax(), dtype)
        return to_fp8(tensor, scale, dtype), scale


class DelayedScaling(nn.Module):
    """Takes the scale from the largest amax of the last `window` tensors.

    The tensor is read once, and its own amax counts from the next tensor on. So a tensor larger
    than all in the window is clipped, and the first is stored with a scale of 1. An amax of inf or
    NaN is not recorded. In evaluation mode the history does not change.

    history: float32, [window], the latest first, zeros at first; it is saved with the model
    clipped: how many finite numbers were clipped so far
    Raises ValueError for a window below 1.
    Not for layers inside `torch.utils.checkpoint`, which when recomputed would take another scale.
    Source: the `DelayedScaling` recipe of Transformer Engine, with amax_compute_algo="max" and
            margin 0. There a window of zeros, or with an inf, keeps the previous scale, and a
            window is 1,024 long by default.
    """

    history: Tensor
    clipped: Tensor

    def __init__(self, window: int = 16) -> None:
        super().__init__()
        if type(window) is not int or window < 1:
            raise ValueError(f"window is {window!r}: the history holds at least 1 amax")
        self.register_buffer("history", torch.zeros(window))
        self.register_buffer("clipped", torch.zeros((), dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(self, tensor: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
        """Return the tensor in fp8, and the scale to multiply its numbers by."""
        scale, size = scale_for(self.history.max(), dtype), tensor.abs()
        if self.training and bool(size.isfinite().all()):
            self.history = self.history.roll(1)
            self.history[0] = size.amax()
        self.clipped += ((size > fp8_format(dtype).max * scale) & size.isfinite()).sum()
        return to_fp8(tensor, scale, dtype), scale

    def _apply(self, fn: Any, recurse: bool = True) -> DelayedScaling:
        super()._apply(fn, recurse)
        self.history = self.history.float()
        return self


Scaling = CurrentScaling | DelayedScaling


def multiply(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Return `(a * scale_a) @ (b * scale_b)` in float32, of fp8 matrices [m, k] and [k, n] with one
    scale each.

    By `torch.nn.functional.scaled_mm` if `simulated_because` returns "", else by an fp32 matmul of
    the same numbers. Products of two fp8 numbers are exact in fp32; only their sum is rounded.
    """
    if simulated_because(a.device.type, *a.shape, b.shape[1]):
        # autocast must not run this matmul in 16 bits
        with torch.autocast(a.device.type, enabled=False):
            return (a.float() @ b.float()) * (scale_a * scale_b)
    return _scaled_mm(a, b, scale_a, scale_b)


def _scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    functional = torch.nn.functional
    whole = functional.ScalingType.TensorWise
    by_columns = b.t().contiguous().t()  # how GPUs want the second matrix
    result: Tensor = functional.scaled_mm(
        a.contiguous(), by_columns, scale_a, whole, scale_b, whole, output_dtype=torch.float32
    )
    return result


def simulated_because(device: str = "cpu", *sizes: int) -> str:
    """Say why fp8 matmuls are simulated here; "" where they are torch's.

    device: "cpu" or "cuda"
    sizes:  of the matrices; a GPU needs multiples of 16
    """
    if device != "cpu" and any(size % 16 for size in sizes):
        return "on a GPU, scaled_mm takes sizes that are multiples of 16"
    return _problem(device)


@functools.cache
def _problem(device: str) -> str:
    """Try `scaled_mm` once with each pair of dtypes that training needs, on an exact product."""
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return f"torch {torch.__version__} has no torch.nn.functional.scaled_mm"
    whole = torch.arange(256.0, device=device).view(16, 16).remainder(7) - 3
    one = torch.ones((), device=device)
    for first, second in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
        try:
            got = _scaled_mm(whole.to(first), whole.to(second), one * 2, one)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return f"scaled_mm does not run on this {device}: {str(error).splitlines()[0]}"
        if not torch.equal(got, 2 * (whole @ whole)):
            return f"scaled_mm gives wrong products on this {device}"
    return ""


def product_error_bound(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Bound, element by element, how far `multiply` is from the exact product, in float64.

    A sum of k numbers in fp32, in any order, is off by at most (k - 1)u / (1 - (k - 1)u) times the
    sum of their magnitudes, with u = 2^-24; the two scales add three roundings, and a subnormal
    result a last one. It holds where sums are in fp32, as on a CPU; the tensor cores of Hopper GPUs
    accumulate with about 14 bits (DeepSeek-V3's report, section 3.3.2).
    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.2.
    """
    unit, k = FP32.eps / 2, a.shape[1]
    magnitude = (a.double().abs() @ b.double().abs()) * (scale_a.double() * scale_b.double()).abs()
    roundings = k - 1 + 3
    return magnitude * (roundings * unit / (1 - roundings * unit)) + FP32.smallest_subnormal
