"""Faults that make an inf or a NaN in the backward pass;
`# here` is the line of the forward op, or of the hook.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.planted_nonfinite.steps import Planted, Setup, training


def the_root_of_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x * 0).sqrt()  # here

    return training(function)


def where_does_not_protect_log() -> Setup:
    def function(x: Tensor) -> Tensor:
        x = x * (x > 0)
        return torch.where(x > 0, x.log(), x)  # here

    return training(function)


def where_does_not_protect_exp() -> Setup:
    def function(x: Tensor) -> Tensor:
        return torch.where(x < 1, x.exp(), x)  # here

    return training(function, scale=300.0)


def the_norm_by_hand_at_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x / ((x * 0).square().sum(-1, keepdim=True).sqrt() + 1)  # here

    return training(function)


def the_backward_of_an_autograd_function() -> Setup:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grads[0] / (x * 0)  # here

    return training(Rounded.apply)


def a_hook_on_a_gradient() -> Setup:
    def hook(grad: Tensor) -> Tensor:
        return grad / (grad.abs() > 1e3)  # here

    def function(x: Tensor) -> Tensor:
        x.register_hook(hook)
        return x * 1

    return training(function)


def a_fixed_loss_scale_in_fp16() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x.half().tanh().float()  # here

    return training(function, loss=lambda output: output.square().mean() * 2.0**24)


def a_checkpointed_module_backward() -> Setup:
    def inner(x: Tensor) -> Tensor:
        return (x * 0).sqrt()  # here

    return training(lambda x: checkpoint(inner, x, use_reentrant=False))


def a_power_at_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x * (x > 0)).pow(0.5)  # here

    return training(function)


BACKWARD = (
    Planted(the_root_of_zero, ("div",), phase="backward"),
    Planted(where_does_not_protect_log, ("div",), phase="backward"),
    Planted(where_does_not_protect_exp, ("exp",)),
    Planted(the_norm_by_hand_at_zero, ("div",), phase="backward"),
    Planted(the_backward_of_an_autograd_function, ("div",), phase="backward"),
    Planted(
        a_hook_on_a_gradient, ("div",), module="first", phase="backward"
    ),  # of what `first` gave
    Planted(a_fixed_loss_scale_in_fp16, ("_to_copy",), phase="backward"),
    Planted(a_checkpointed_module_backward, ("div",), phase="backward"),
    Planted(a_power_at_zero, ("pow", "mul"), phase="backward"),
)
