"""Judge rounding at random: by the neighbours, by the mean of many draws, by whose generator it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Wrong
from amp_course.checking.values import fresh, tensor_like


def judge(answer: Callable[..., Any]) -> None:
    """`stochastic_round(x, spacing, generator)` → multiples of the spacing, x on average.

    The mean of 20,000 draws has to be within 5 standard errors of x, for each of the drawn numbers.
    """
    draws, generator = 20_000, fresh()
    up = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 0.0])
    up[:5] += (torch.rand(5, generator=generator) - 0.5) * 0.1  # how far each number is from its lower neighbour
    up = (up * 2**12).round() / 2**12  # so that every number below is exact in float32
    whole = torch.randint(1, 50, (len(up),), generator=generator).float()
    spacing = 2.0 ** torch.randint(-12, 3, (len(up),), generator=generator)
    spacing = torch.cat([spacing, spacing]).unsqueeze(1).expand(-1, draws)
    sizes = whole + up
    x = (torch.cat([sizes, -sizes]).unsqueeze(1) * spacing).contiguous()
    seed = int(torch.randint(2**31, (), generator=generator))

    def play(seed: int, columns: int = draws) -> Tensor:
        part, unit = x[:, :columns].clone(), spacing[:, :columns].clone()
        got = answer(part, unit.clone(), torch.Generator().manual_seed(seed))
        return tensor_like(got, part.shape, "the rounded tensor").double() / unit.double()

    first, second = play(seed), play(seed)
    exact = x.double() / spacing.double()
    _only_neighbours(first, exact, spacing)
    if bool((first == first[:, :1]).all()):
        few = torch.cat([play(seed + number, columns=1) for number in range(1, 30)], dim=1)
        _is_not_random(first, exact, few)
    _is_unbiased(first, exact, draws)
    if not torch.equal(first, second):
        raise Wrong(
            "twice the same generator, twice another result: hand it on, `torch.rand(x.shape, generator=generator)`, so that "
            "a training can be repeated"
        )


def _only_neighbours(got: Tensor, exact: Tensor, spacing: Tensor) -> None:
    below, above = exact.floor(), exact.ceil()
    fine = (got == below) | (got == above)
    # subtle: floor(x + noise) is a right answer, and in float32 its sum reaches the next whole number once in 10⁵ draws.
    fine |= (~fine).sum(dim=1, keepdim=True) <= got.shape[1] // 2000
    if fine.all():
        return
    stray = got[~fine][0].item(), exact[~fine][0].item()
    if not got.isfinite().all():
        raise Wrong("the result holds inf or NaN, and the numbers that went in do not")
    values = got * spacing
    if (got != got.round()).any() or bool((values == values.round()).all()):
        raise Wrong(
            f"a result is {stray[0]:g} spacings, and only whole ones are numbers of the format: divide by the spacing, round "
            "to a whole number, multiply by it again"
        )
    if bool((exact[~fine] < 0).all()) and bool((got > exact)[~fine].all()):
        raise Wrong(
            f"{stray[1]:.3f} spacings became {stray[0]:g}. Noise from 0 to 1 asks for rounding **down**, and truncation "
            "(`.trunc()`, `.int()`) takes negative numbers towards zero, which is up: use `torch.floor`"
        )
    exactly = (exact == exact.round())[~fine]
    if exactly.any() and ((got - exact)[~fine].abs() <= 1).all():
        raise Wrong("a number that the format holds exactly came out as another one: its chance to move is 0")
    raise Wrong(
        f"{stray[1]:.3f} spacings became {stray[0]:g}, and only the two neighbours, {exact[~fine][0].floor():g} and "
        f"{exact[~fine][0].ceil():g}, are allowed: the noise reaches too far. It is uniform, one spacing wide"
    )


def _is_not_random(got: Tensor, exact: Tensor, few: Tensor) -> None:
    """Say why equal numbers all went the same way; `few`: one column for each of some other seeds."""
    if bool((few != few[:, :1]).any()):
        raise Wrong(
            "equal numbers in one tensor all went the same way: draw for each element, `torch.rand(x.shape, …)`, not once "
            "for all"
        )
    if torch.equal(got, exact.round()):
        raise Wrong("this rounds to nearest, always the same way: a tenth of a step is lost every time")
    raise Wrong("equal numbers always go the same way, whatever the generator: nothing is drawn")


def _is_unbiased(got: Tensor, exact: Tensor, draws: int) -> None:
    value, mean = exact[:, 0], got.mean(dim=1)
    chance = value - value.floor()
    error = (mean - value) / ((chance * (1 - chance)).sqrt() / draws**0.5).clamp_min(1e-12)
    wrong = (error.abs() > 5) & (chance > 0)  # whether exact numbers stay was looked at before
    if not wrong.any():
        return
    row = int(wrong.nonzero()[0])
    seen, wanted = float(mean[row] - value[row].floor()), float(chance[row])
    told = f"a number {wanted:.3f} of the way up goes up in {seen:.3f} of {draws:,} draws: "
    ups = mean - value.floor()
    between = chance > 0
    if bool(((ups - 0.5).abs() < 0.05)[between].all()):
        raise Wrong(told + "both neighbours are drawn alike. The nearer one has to come up more often")
    if bool(((ups - (1 - chance)).abs() < 0.05)[between].all()):
        raise Wrong(
            told + "that is the chance of the other neighbour: go up if the draw is **below** what is left over"
        )
    if bool(wrong[value < 0].any()) and not bool(wrong[value > 0].any()):
        raise Wrong(
            told
            + "positive numbers are right and negative ones are not. `%` and `trunc` treat signs differently: take what "
            "is left over from `torch.floor`, which rounds down for both"
        )
    raise Wrong(told + "the chance to go up is how far it is from the lower neighbour, in spacings")
