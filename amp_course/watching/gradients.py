"""All gradients of an optimizer as one flat vector, and what they are in short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_MOST = 2**24  # numbers in a vector; of a larger model every second one is kept, or every third, …


class Layout:
    """How gradients lie in one flat float32 vector: every number, or a sample of a large model's.

    slices: where each parameter lies
    stride: 1 if every number is kept, n for every n-th
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.shapes = [p.shape for p in self.parameters]
        self.stride = max(1, math.ceil(sum(p.numel() for p in self.parameters) / _MOST))
        self.slices: list[slice] = []
        self.size = 0
        for p in self.parameters:
            begin, self.size = self.size, self.size + math.ceil(p.numel() / self.stride)
            self.slices.append(slice(begin, self.size))

    def flat(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Lay tensors out, one for each parameter; None gives zeros."""
        devices = {t.device for t in tensors if t is not None}
        if self.stride == 1 == len(devices) and all(map(_is_plain, tensors)):
            return torch.cat([t.detach().reshape(-1) for t in tensors if t is not None])
        device = self.parameters[0].device if self.parameters else "cpu"
        flat = torch.zeros(self.size, device=device)
        for tensor, place in zip(tensors, self.slices, strict=True):
            if tensor is not None:
                flat[place] = _dense(tensor).reshape(-1)[:: self.stride].float()
        return flat

    def gradient(self, tensors: Sequence[Tensor | None]) -> Gradient:
        norms = None
        if self.stride > 1:
            each = [0.0 if t is None else float(_dense(t).float().norm()) for t in tensors]
            norms = torch.tensor(each, device="cpu")
        return Gradient(self, self.flat(tensors), tuple(t is not None for t in tensors), norms)

    def current(self) -> Gradient:
        """Return what lies in `.grad` now."""
        return self.gradient([p.grad for p in self.parameters])

    def copies(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype == torch.float32 and tensor.layout == torch.strided


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradients of one optimizer: `values` is flat, float32, 0 for a parameter without one.

    present: for each parameter, is there a gradient?
    """

    layout: Layout
    values: Tensor
    present: tuple[bool, ...]
    _norms: Tensor | None = None  # of each parameter, where `values` is only a sample

    @cached_property
    def empty(self) -> bool:
        """No gradient at all, or zeros only."""
        return not bool(self.norms.any())

    @cached_property
    def finite(self) -> bool:
        return bool(self.values.isfinite().all()) and bool(self.norms.isfinite().all())

    @cached_property
    def norms(self) -> Tensor:
        if self._norms is not None:
            return self._norms
        parts = [self.values[place] for place in self.layout.slices]
        if not parts:
            return torch.zeros(0, device="cpu")
        return torch.stack(torch._foreach_norm(parts)).cpu() * math.sqrt(self.layout.stride)

    @cached_property
    def norm(self) -> float:
        return self.norms.double().norm().item()

    def replaced(self, other: Gradient, which: Sequence[bool]) -> Gradient:
        """Return these gradients, with those of some parameters from another record."""
        chosen = [n for n, wanted in enumerate(which) if wanted]
        values, norms, present = self.values.clone(), None, list(self.present)
        for n in chosen:
            values[self.layout.slices[n]] = other.values[self.layout.slices[n]]
            present[n] = other.present[n]
        if self._norms is not None and other._norms is not None:
            norms = self._norms.clone()
            norms[chosen] = other._norms[chosen]
        return Gradient(self.layout, values, tuple(present), norms)

    def __mul__(self, factor: float) -> Gradient:
        norms = None if self._norms is None else self._norms * factor
        return Gradient(self.layout, self.values * factor, self.present, norms)


@dataclass(frozen=True)
class GradSummary:
    """What lay in the gradients of one slot at a moment, in short."""

    empty: bool = True
    finite: bool = True
    norm: float = 0.0
