"""Faults that make an inf or a NaN where the weights are changed."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.planted_nonfinite.steps import Planted, Setup, training


def adam_without_epsilon() -> Setup:
    return training(
        lambda x: x * 0,
        optimizer=lambda weights: torch.optim.Adam(weights, lr=0.1, eps=0.0, foreach=False),
    )


def adam_without_epsilon_foreach() -> Setup:
    return training(
        lambda x: x * 0,
        optimizer=lambda weights: torch.optim.Adam(weights, lr=0.1, eps=0.0, foreach=True),
    )


def a_learning_rate_that_overflows() -> Setup:
    return training(
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e38),
        loss=lambda output: output.square().sum() * 1e3,
    )


def clipping_by_a_norm_of_zero() -> Setup:
    def clip(model: nn.Module) -> None:
        weight = model.get_parameter("first.weight")
        assert weight.grad is not None
        weight.grad = weight.grad * (1 / weight.grad.norm())  # here

    return training(lambda x: x * 0, before_step=clip)


def weights_divided_by_their_range() -> Setup:
    def normalise(model: nn.Module) -> None:
        bias = model.get_parameter("last.bias")
        with torch.no_grad():
            bias.zero_()
            bias.div_(bias.max() - bias.min())  # here

    return training(before_step=normalise)


STEPPING = (
    Planted(adam_without_epsilon, ("addcdiv_",), module="", phase="optimizer"),
    Planted(adam_without_epsilon_foreach, ("_foreach_addcdiv_",), module="", phase="optimizer"),
    Planted(
        a_learning_rate_that_overflows, ("_foreach_add_", "add_"), module="", phase="optimizer"
    ),
    Planted(clipping_by_a_norm_of_zero, ("reciprocal", "div", "mul"), module=""),
    Planted(weights_divided_by_their_range, ("div_",), module=""),
)
