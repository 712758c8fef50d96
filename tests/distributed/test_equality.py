"""Two ranks and one process: to the last bit where the order of additions is the same,
else within the bound.
"""

import pytest
import torch
from torch import nn

from amp_course.distributed.equality import compare, gradient_bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_ranks_equal_one_process(dtype, seed):
    found = compare(dtype, seed=seed, steps=8)
    assert found.same_bits
    assert found.difference <= found.bound < 0.1 * found.largest
    if dtype != torch.float32:
        assert 0 < found.difference > found.bound / 100  # the bound is not useless


def drawn_gradient(x, y, layer, unit, generator):
    """The weight gradient in fp64, with each 16-bit rounding pushed by one `unit`,
    up or down at random.
    """

    def pushed(values, units):
        sign = torch.randint(2, values.shape, generator=generator) * 2 - 1
        return values * (1 + units * unit * sign)

    logits = pushed((x @ layer.weight.T + layer.bias).detach().double(), 2)
    errors = pushed(logits.softmax(1) - nn.functional.one_hot(y, 4), 2)
    return pushed(errors.T @ x.double() / len(x), 1).float()


def test_the_bound_holds_for_roundings_that_are_drawn():
    generator, unit = torch.Generator().manual_seed(3), torch.finfo(torch.float16).eps / 2
    ratios = []
    for _ in range(50):
        x, y = torch.rand(32, 12, generator=generator), torch.randint(4, (32,), generator=generator)
        layer = nn.Linear(12, 4)
        layer.weight.data *= 8  # large logits, whose roundings move the errors
        whole = drawn_gradient(x, y, layer, 0.0, generator)
        halves = [
            drawn_gradient(x[rows], y[rows], layer, unit, generator)
            for rows in (slice(16), slice(16, None))
        ]
        bound = gradient_bound(x, y, layer, halves, whole, torch.float16)
        ratios.append((((halves[0] + halves[1]) / 2 - whole).abs() / bound).max().item())
    assert 0.05 < max(ratios) <= 1
