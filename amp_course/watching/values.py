"""The values of a tensor: their range in one quick pass, and what is not finite among them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INF, MINUS_INF, NAN = "inf", "-inf", "NaN"


@dataclass(frozen=True)
class Values:
    """What a tensor holds.

    dtype:   "float16"
    largest: the largest magnitude among the finite elements; NaN if there is none
    holds:   what is not finite: those of INF, MINUS_INF and NAN that occur
    share:   of the elements that are not finite
    least:   the smallest magnitude among the finite elements; NaN if there is none
    """

    dtype: str
    shape: tuple[int, ...]
    largest: float
    holds: frozenset[str] = frozenset()
    share: float = 0.0
    least: float = math.nan

    @property
    def finite(self) -> bool:
        return not self.holds

    def __str__(self) -> str:
        """Describe them: "float16 up to 11.9", "float16 with inf (3.1 % of it)"."""
        if 0 in self.shape:
            return f"{self.dtype} without elements"
        if self.finite:
            up_to = "" if math.isnan(self.largest) else f" up to {self.largest:.4g}"
            return self.dtype + up_to
        kinds = " and ".join(kind for kind in (INF, MINUS_INF, NAN) if kind in self.holds)
        share = f"{100 * self.share:.2g} %" if self.share < 1 else "all"
        return f"{self.dtype} with {kinds} ({share} of it)"


def extremes(tensor: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the largest element, NaN if there is one; None without a value.

    Integers, bools, fake and meta tensors have no value here, and count as finite.
    """
    values = _plain(tensor)
    if values is None or not values.numel():
        return None
    low, high = torch.aminmax(values)
    return low.item(), high.item()


def is_finite(tensor: Tensor) -> bool:
    """Return True if all elements are finite, or no value can be read."""
    return all(map(math.isfinite, extremes(tensor) or ()))


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if all elements of some tensors are finite."""
    strided = all(one.layout is torch.strided and one.is_floating_point() for one in tensors)
    if tensors and strided:
        norms = torch._foreach_norm(list(tensors))
        if math.isfinite(sum(one.item() for one in norms)):
            return True
    # The squares of finite numbers may overflow.
    return all(bool(one.isfinite().all()) for one in tensors)


def skips(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a scaler has told a fused optimizer of an inf: its step changes nothing."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and bool(found_inf.item())


def inspect_values(tensor: Tensor) -> Values:
    """Return everything about a tensor's values; slower than `extremes`."""
    values = _plain(tensor)
    if values is None or not values.numel():
        return _values(tensor, math.nan)
    finite = values.isfinite()
    kinds = {INF: values == math.inf, MINUS_INF: values == -math.inf, NAN: values.isnan()}
    holds = frozenset(kind for kind, there in kinds.items() if bool(there.any()))
    sizes = values[finite].abs()
    largest, least = (float(sizes.max()), float(sizes.min())) if len(sizes) else (math.nan,) * 2
    return _values(tensor, largest, holds, 1.0 - float(finite.double().mean()), least)


def finite_values(tensor: Tensor, found: tuple[float, float]) -> Values:
    """Make the values of a finite tensor from its `extremes`."""
    return _values(tensor, max(map(abs, found)))


def _values(tensor: Tensor, largest: float, *more: Any) -> Values:
    return Values(str(tensor.dtype)[6:], tuple(tensor.shape), largest, *more)


def infinite_constants(values: Iterable[Any]) -> bool:
    """Return True if a number among an op's arguments is inf or NaN, as in masked_fill(m, -inf)."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if isinstance(value, (tuple, list)) and infinite_constants(value):
            return True
    return False


def mentions_values(error: BaseException) -> bool:
    """Return True if the message of an exception is about inf or NaN.

    A GradScaler's "No inf checks were recorded" is not.
    """
    words = r"\b(nans?|infs?(?! checks)|infinite|infinity|non-?finite|finite)\b"
    return bool(re.search(words, str(error), re.IGNORECASE))


def _plain(tensor: Tensor) -> Tensor | None:
    """Return a tensor's values as real floats that any kernel can compare, or None."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    usual = type(tensor) in _PLAIN and tensor.dtype in _FLOATS and not wrapped
    if usual and tensor.layout is torch.strided:
        return None if tensor.is_meta or tensor._is_zerotensor() else tensor.detach()
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor: this rank's part
    while isinstance(local, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(local):
        local = torch._C._functorch.get_unwrapped(local)  # vmap's cannot be read
    if not isinstance(local, Tensor) or not (local.is_floating_point() or local.is_complex()):
        return None
    if local.is_meta or hasattr(local, "fake_mode") or local.is_quantized:
        return None
    if local._is_zerotensor():  # the tangent of what forward-mode differentiation holds constant
        return None
    if local.layout is torch.sparse_coo:
        local = local._values()
    elif local.is_nested or local.layout is not torch.strided:
        local = local.values()
    if local.is_complex():
        local = torch.view_as_real(local.resolve_conj())
    return local.detach().float() if local.element_size() == 1 else local.detach()
