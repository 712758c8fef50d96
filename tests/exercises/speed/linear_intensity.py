"""Answers to `linear_intensity`, written without a look at its table of mistakes."""

from fractions import Fraction

import numpy as np
import torch
from torch.nn.functional import linear

from amp_course.speed.counting import MATMUL, count_ops, fake_tensors, totals

DTYPES = {1: torch.float8_e5m2, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def counted(batch, inputs, outputs, itemsize):
    """Counts the ops that PyTorch calls."""
    with fake_tensors():
        x, weight = (
            torch.empty(rows, inputs, dtype=DTYPES[itemsize], requires_grad=True)
            for rows in (batch, outputs)
        )
        with count_ops() as forward:
            y = linear(x, weight)
        grad_y = torch.empty_like(y)
        with count_ops() as backward:
            y.backward(grad_y)
    counts = [totals(counter.calls, MATMUL) for counter in (forward, backward)]
    return [(count.flops, count.bytes, count.flops / count.bytes) for count in counts]


def matmuls(m, k, n, size, count):
    flops, moved = count * 2 * m * k * n, count * size * (m * k + k * n + m * n)
    return flops, moved, Fraction(flops, moved)


def nested(batch, inputs, outputs, itemsize):
    return matmuls(batch, inputs, outputs, itemsize, 1), matmuls(
        batch, inputs, outputs, itemsize, 2
    )


def with_numpy(batch, inputs, outputs, itemsize):
    sizes = np.prod([[batch, inputs], [outputs, inputs], [batch, outputs]], axis=1)
    forward = np.array([2 * batch * inputs * outputs, itemsize * sizes.sum()], dtype=np.float64)
    return [np.append(one, one[0] / one[1]) for one in (forward, 2 * forward)]


def with_tensors(batch, inputs, outputs, itemsize):
    x, weight, y = (
        torch.empty(batch, inputs),
        torch.empty(outputs, inputs),
        torch.empty(batch, outputs),
    )
    flops, moved = 2 * inputs * y.numel(), itemsize * sum(one.numel() for one in (x, weight, y))
    return torch.tensor(
        [[flops, moved, flops / moved], [2 * flops, 2 * moved, flops / moved]]
    ).tolist()


def perfect_cache(batch, inputs, outputs, itemsize):
    forward, (flops, moved, _) = nested(batch, inputs, outputs, itemsize)
    moved -= itemsize * batch * outputs
    return forward, (flops, moved, flops / moved)


RIGHT = {
    "the ops that PyTorch calls": counted,
    "matmul by matmul": nested,
    "numpy arrays": with_numpy,
    "lists, from tensors": with_tensors,
}


def whole(*sizes):
    return [(flops, moved, int(share)) for flops, moved, share in nested(*sizes)]


WRONG = {
    "numbers, not bytes": (
        lambda *sizes: [(*one[:2], one[2] * sizes[-1]) for one in nested(*sizes)],
        "FLOPs per element",
    ),
    "no parentheses": (
        lambda b, i, o, s: [
            (n * 2 * b * i * o, n * (s * b * i + i * o + b * o), 1) for n in (1, 2)
        ],
        "itemsize of x",
    ),
    "whole numbers": (whole, "whole division"),
    "grad_y kept in a cache": (perfect_cache, "grad_y read once"),
    "in thousands": (
        lambda *sizes: [[n / 1000 for n in one[:2]] + [one[2]] for one in nested(*sizes)],
        None,
    ),
    "the intensities alone": (lambda *sizes: tuple(one[2] for one in nested(*sizes)), None),
    "multiplications, in one pass": (
        lambda b, i, o, s: (matmuls(b, i, o, s, Fraction(1, 2)),) * 2,
        "counts multiplications only",
    ),
}
