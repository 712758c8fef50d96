from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from amp_course.diagnosis.compare import along, mixture, near


@given(st.integers(0, 2**31), st.floats(0.01, 100))
def test_along_is_the_projection(seed: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference, noise = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    values = factor * reference + 0.1 * noise
    found, distance = along(values, reference)
    solved, *_ = np.linalg.lstsq(reference[:, None].numpy(), values.numpy(), rcond=None)
    assert math.isclose(found, solved[0], rel_tol=1e-9)
    left = values - found * reference
    assert math.isclose(distance, (left.norm() / values.norm()).item(), rel_tol=1e-9)


def test_zeros_are_like_zeros_and_like_nothing_else() -> None:
    zero, one = torch.zeros(3), torch.ones(3)
    assert along(zero, zero) == (1.0, 0.0)
    assert along(zero, one) == (0.0, math.inf)
    assert along(one, zero)[1] == along(one, torch.tensor([1.0, math.inf, 0.0]))[1] == math.inf


@given(st.integers(0, 2**31), st.lists(st.floats(0.1, 10), min_size=2, max_size=5))
def test_a_mixture_gives_its_weights_back(seed: int, weights: list[float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(200, generator=generator) * 10.0**n for n, _ in enumerate(weights)]
    found, distance = mixture(sum(w * part for w, part in zip(weights, parts, strict=True)), parts)
    assert distance < 1e-4 and all(
        near(a, b, 1e-3) or abs(a - b) < 1e-3 for a, b in zip(found, weights, strict=True)
    )


def test_parts_that_are_alike_cannot_be_told_apart() -> None:
    part = torch.randn(20)
    assert all(map(math.isnan, mixture(part, [part, 2 * part])[0]))
