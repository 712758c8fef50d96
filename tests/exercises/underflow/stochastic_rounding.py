"""Answers to `stochastic_rounding`, written without a look at its table of mistakes."""

import numpy as np
import torch


def with_noise(make, rounds=torch.floor):
    return lambda x, spacing, generator: rounds(x / spacing + make(x.shape, generator=generator)) * spacing


def bernoulli_of_sizes(x, spacing, generator):
    steps = x.abs() / spacing
    return (steps.floor() + torch.bernoulli(steps.frac(), generator=generator)) * spacing * x.sign()


def by_remainders(x, spacing, generator):
    left = torch.remainder(x, spacing)
    return x - left + spacing * (torch.randint(0, 2**24, x.shape, generator=generator) / 2**24 * spacing < left)


def mirrored(shape, generator):
    half = torch.rand(shape.numel() // 2, generator=generator)
    return torch.stack([half, 1 - half]).view(shape)


RIGHT = {
    "noise and floor": with_noise(torch.rand),
    "bernoulli of sizes": bernoulli_of_sizes,
    "remainders and integers": by_remainders,
}
WRONG = {
    "numpy's": (with_noise(lambda shape, generator: torch.tensor(np.random.rand(*shape))), "draws from elsewhere"),
    "a coin": (with_noise(lambda shape, generator: torch.randint(2, shape, generator=generator)), "tosses a coin"),
    "64 levels": (with_noise(lambda shape, generator: torch.randint(64, shape, generator=generator) / 64), None),
    "mirrored": (with_noise(mirrored), "mirrored draws"),
    "mean of four": (lambda *given: sum(with_noise(torch.rand)(*given) for _ in range(4)) / 4, None),
}
