"""Compare gradients as vectors: is one a multiple of another, or a mixture of several?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

CLOSE = 0.02  # relative: by how much rounding may change the norm of a gradient


def along(gradient: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return (factor, distance): gradient ≈ factor · reference, and its relative distance.

    If only one of them is zero, or one is not finite, the distance is inf and the factor 0 or NaN.
    """
    gradient, reference = _double(gradient), _double(reference)
    square, size = (reference @ reference).item(), gradient.norm().item()
    if square == 0 or size == 0 or not math.isfinite(size) or not math.isfinite(square):
        return (1.0, 0.0) if size == square == 0 else (0.0 if size == 0 else math.nan, math.inf)
    factor = (gradient @ reference).item() / square
    return factor, ((gradient - factor * reference).norm() / size).item()


def near(factor: float, wanted: float, close: float = CLOSE) -> bool:
    """Return True if two factors are the same up to rounding."""
    return math.isclose(factor, wanted, rel_tol=close)


def mixture(gradient: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float]:
    """Return (weights, distance): gradient ≈ Σ weight · part, and its relative distance.

    If the parts are too much alike to tell their weights, these are NaN.
    """
    sizes = [_double(part).norm().item() for part in parts]
    size = _double(gradient).norm().item()
    if not all(sizes) or not size or not all(map(math.isfinite, [*sizes, size])):
        return [math.nan] * len(parts), math.inf
    matrix = torch.stack([_double(part) / s for part, s in zip(parts, sizes, strict=True)], 1)
    gram = matrix.T @ matrix
    smallest = torch.linalg.eigvalsh(gram)[0].item()
    if smallest < 1e-3:
        return [math.nan] * len(parts), math.inf
    solved = torch.linalg.solve(gram, matrix.T @ _double(gradient))
    distance = ((_double(gradient) - matrix @ solved).norm() / size).item()
    return [(w / s).item() for w, s in zip(solved, sizes, strict=True)], distance


def _double(tensor: Tensor) -> Tensor:
    # Apple's GPUs have no float64.
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
