"""Answers to `stochastic_rounding`, written without a look at its table of mistakes."""

import numpy as np
import torch


def with_noise(make, rounds=torch.floor):
    return lambda x, spacing, generator: (
        rounds(x / spacing + make(x.shape, generator=generator)) * spacing
    )


def bernoulli_of_sizes(x, spacing, generator):
    steps = x.abs() / spacing
    return (steps.floor() + torch.bernoulli(steps.frac(), generator=generator)) * spacing * x.sign()


RIGHT = {
    "noise and floor": with_noise(torch.rand),
    "bernoulli of sizes": bernoulli_of_sizes,
    "noise around 0": with_noise(
        lambda shape, generator: torch.rand(shape, generator=generator) - 0.5, torch.round
    ),
}
WRONG = {
    "numpy's": (
        with_noise(lambda shape, generator: torch.tensor(np.random.rand(*shape))),
        "draws from elsewhere",
    ),
    "a coin": (
        with_noise(lambda shape, generator: torch.randint(2, shape, generator=generator)),
        "tosses a coin",
    ),
    "not multiplied": (
        lambda x, s, g: with_noise(torch.rand)(x, s, g).div(s).long(),
        "not multiplied back",
    ),
    "noise on x itself": (
        lambda x, s, g: ((x + torch.rand(x.shape, generator=g)) / s).floor() * s,
        "noise of another width",
    ),
    "round of the sum": (with_noise(torch.rand, torch.round), "noise, then to nearest"),
    "ceil of the sum": (with_noise(torch.rand, torch.ceil), "one spacing too high"),
    "trunc and frac": (
        lambda x, s, g: ((x / s).trunc() + (torch.rand(x.shape, generator=g) < (x / s).frac())) * s,
        "a negative fraction",
    ),
    "trunc and the size of frac": (
        lambda x, s, g: ((x / s).trunc() + torch.bernoulli((x / s).frac().abs(), generator=g)) * s,
        "goes up from above",
    ),
    "a draw for each column": (
        with_noise(lambda shape, generator: torch.rand(shape[-1], generator=generator)),
        None,
    ),
    "mean of four": (
        lambda *given: sum(with_noise(torch.rand)(*given) for _ in range(4)) / 4,
        None,
    ),
}
