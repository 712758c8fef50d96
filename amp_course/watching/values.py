"""Look at the values of tensors: their range in one quick pass, and what is not finite among them."""

from __future__ import annotations

import math
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
    shape:   of the tensor
    largest: the largest magnitude among the finite elements; NaN if there is none
    holds:   what is not finite: those of INF, MINUS_INF and NAN that occur
    share:   of the elements that are not finite
    least:   the smallest magnitude among the finite elements; NaN if there is none
    """

    dtype: str
    shape: tuple[int, ...]
    largest: float
    holds: frozenset[str]
    share: float
    least: float = math.nan

    @property
    def finite(self) -> bool:
        """Whether all elements are finite."""
        return not self.holds

    def __str__(self) -> str:
        """Describe them in a few words. Example: → "float16 up to 11.9", "float16 with inf (3.1 % of it)" """
        if 0 in self.shape:
            return f"{self.dtype} without elements"
        if self.finite:
            return self.dtype if math.isnan(self.largest) else f"{self.dtype} up to {self.largest:.4g}"
        kinds = " and ".join(kind for kind in (INF, MINUS_INF, NAN) if kind in self.holds)
        return f"{self.dtype} with {kinds} ({_percent(self.share)} of it)"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else "all"


def extremes(tensor: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the largest element, in one pass; both NaN if there is a NaN, None if there is no value to see.

    Integers and bools are always finite, and have none to see here; so have fake and meta tensors.
    """
    values = _plain(tensor)
    if values is None or not values.numel():
        return None
    low, high = torch.aminmax(values)
    return low.item(), high.item()


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all elements are finite, or none can be seen."""
    found = extremes(tensor)
    return found is None or (math.isfinite(found[0]) and math.isfinite(found[1]))


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if all elements of some tensors are finite."""
    strided = tensors and all(one.layout is torch.strided and one.is_floating_point() for one in tensors)
    if strided and math.isfinite(sum(one.item() for one in torch._foreach_norm(list(tensors)))):
        return True
    return all(bool(one.isfinite().all()) for one in tensors)  # the squares of finite numbers may overflow


def skips(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer's step, which has begun, will change nothing: a scaler tells a fused one what it has found."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and bool(found_inf.item())


def look_at(tensor: Tensor) -> Values:
    """Return everything about a tensor's values; slower than `extremes`."""
    name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    values = _plain(tensor)
    if values is None or not values.numel():
        return Values(name, shape, math.nan, frozenset(), 0.0)
    finite = values.isfinite()
    kinds = {
        INF: bool((values == math.inf).any()),
        MINUS_INF: bool((values == -math.inf).any()),
        NAN: bool(values.isnan().any()),
    }
    left = values[finite]
    sizes = left.abs()
    largest, least = (float(sizes.max()), float(sizes.min())) if left.numel() else (math.nan, math.nan)
    holds = frozenset(kind for kind, there in kinds.items() if there)
    return Values(name, shape, largest, holds, 1.0 - float(finite.double().mean()), least)


def within(tensor: Tensor, found: tuple[float, float]) -> Values:
    """Make the values of a finite tensor from its `extremes`."""
    largest = max(map(abs, found))
    return Values(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), largest, frozenset(), 0.0)


def infinite_constants(values: Iterable[Any]) -> bool:
    """Tell whether a plain number among an op's arguments is not finite: `x.masked_fill(mask, float("-inf"))` has one."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if isinstance(value, (tuple, list)) and infinite_constants(value):
            return True
    return False


def _plain(tensor: Tensor) -> Tensor | None:
    """Return a tensor's values as real floats that any kernel can compare, or None."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if type(tensor) in _PLAIN and tensor.dtype in _FLOATS and tensor.layout is torch.strided and not wrapped:
        return None if tensor.is_meta else tensor.detach()
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor: this rank's part
    while isinstance(local, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(local):
        local = torch._C._functorch.get_unwrapped(local)  # vmap's cannot be read
    if not isinstance(local, Tensor) or not (local.is_floating_point() or local.is_complex()):
        return None
    if local.is_meta or hasattr(local, "fake_mode") or local.is_quantized:
        return None
    if local.layout is torch.sparse_coo:
        local = local._values()
    elif local.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc) or local.is_nested:
        local = local.values()
    elif local.layout is not torch.strided:
        return None
    if local.is_complex():
        local = torch.view_as_real(local.resolve_conj())
    return local.detach().float() if local.element_size() == 1 else local.detach()
