"""Faults that make an inf or a NaN in the forward pass, at a line that ends in `# here`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.planted_nonfinite.steps import INF, Planted, Setup, training


def exp_overflows() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (100 + x).exp()  # here

    return training(function)


def log_of_a_negative_number() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x.log()  # here

    return training(function)


def log_of_zero_in_a_loss() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x.relu().log()  # here

    return training(function)


def root_of_a_negative_number() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x - 5).sqrt()  # here

    return training(function)


def zero_by_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        count = (x > 100).float().sum(1, keepdim=True)
        return (x * (x > 100)) / count  # here

    return training(function)


def one_by_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        return 1.0 / x.relu()  # here

    return training(function)


def matmul_overflows_in_fp16() -> Setup:
    weight = torch.full((8, 8), 100.0)

    def function(x: Tensor) -> Tensor:
        return x @ weight  # here

    return training(function, scale=3000.0, dtype=torch.float16)


def a_cast_to_fp16_overflows() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x.half().float()  # here

    return training(function, scale=1e6)


def a_square_in_fp16() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x**2  # here

    return training(lambda x: function(x.half()).float(), scale=1000.0)


def softmax_without_its_maximum() -> Setup:
    def function(x: Tensor) -> Tensor:
        powers = x.exp()  # here
        return powers / powers.sum(-1, keepdim=True)

    return training(function, scale=300.0)


def a_row_that_is_masked_whole() -> Setup:
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[2] = True

    def function(x: Tensor) -> Tensor:
        return x.masked_fill(mask, -INF).softmax(-1)  # here

    return training(function)


def zero_times_minus_inf() -> Setup:
    mask = torch.ones(4, 8).triu(1)

    def function(x: Tensor) -> Tensor:
        penalty = mask * -INF  # here
        return (x + penalty).softmax(-1)

    return training(function)


def inf_minus_inf() -> Setup:
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[1] = True

    def function(x: Tensor) -> Tensor:
        x = x.masked_fill(mask, -INF)
        return x - x.amax(-1, keepdim=True)  # here

    return training(function)


def the_norm_of_a_zero_vector() -> Setup:
    def function(x: Tensor) -> Tensor:
        x = x * torch.tensor([[1.0], [0.0], [1.0], [1.0]])
        return x / x.norm(dim=-1, keepdim=True)  # here

    return training(function)


def the_deviation_of_one_sample() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x - x[:1].mean(0)) / x[:1].std(0)  # here

    return training(function)


def the_mean_of_nothing() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x + x[x > 100].mean()  # here

    return training(function)


def a_power_of_a_negative_number() -> Setup:
    def function(x: Tensor) -> Tensor:
        return x.pow(1.5)  # here

    return training(function)


def arc_cosine_of_a_little_more_than_one() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x / x.abs() * (1 + 1e-6)).acos()  # here

    return training(function)


def cross_entropy_by_hand() -> Setup:
    def loss(output: Tensor) -> Tensor:
        chance = torch.sigmoid(output)
        return -(1 - chance).log().mean()  # here

    setup = training(scale=1.0, loss=lambda output: loss(output * 1000))
    return setup


def a_cumulative_product() -> Setup:
    def function(x: Tensor) -> Tensor:
        return (x.abs() + 1e6).cumprod(-1)  # here

    return training(function)


def a_sum_in_fp16() -> Setup:
    def function(x: Tensor) -> Tensor:
        total = x.sum(-1, keepdim=True)  # here
        return total.expand(-1, 8)

    return training(lambda x: function((x.abs() + 10_000).half()).float())


def in_place_division_by_zero() -> Setup:
    def function(x: Tensor) -> Tensor:
        x = x * 2
        x.div_(x.detach().relu())  # here
        return x

    return training(function)


def a_buffer_in_place() -> Setup:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.seen: Tensor
            self.seen.log_()  # here
            return x + self.seen

    return training(body=Scaled())


def an_autograd_function() -> Setup:
    class Reciprocal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return 1 / x.relu()  # here

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0]

    return training(Reciprocal.apply)


def a_checkpointed_module() -> Setup:
    def inner(x: Tensor) -> Tensor:
        return (x - 5).log()  # here

    return training(lambda x: checkpoint(inner, x, use_reentrant=False))


def under_no_grad() -> Setup:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = 1 / x.relu()  # here
        return x * weight

    return training(function)


def a_hook_on_the_output() -> Setup:
    setup = training()

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output / output.detach().relu()  # here

    setup.model.get_submodule("body").register_forward_hook(hook)
    return setup


FORWARD = (
    Planted(exp_overflows, ("exp",)),
    Planted(log_of_a_negative_number, ("log",)),
    Planted(log_of_zero_in_a_loss, ("log",)),
    Planted(root_of_a_negative_number, ("sqrt",)),
    Planted(zero_by_zero, ("div",)),
    Planted(one_by_zero, ("reciprocal", "div")),
    Planted(matmul_overflows_in_fp16, ("mm", "addmm", "matmul")),
    Planted(a_cast_to_fp16_overflows, ("_to_copy",)),
    Planted(a_square_in_fp16, ("pow",)),
    Planted(softmax_without_its_maximum, ("exp",)),
    Planted(a_row_that_is_masked_whole, ("_softmax",)),
    Planted(zero_times_minus_inf, ("mul",)),
    Planted(inf_minus_inf, ("sub",)),
    Planted(the_norm_of_a_zero_vector, ("div",)),
    Planted(the_deviation_of_one_sample, ("std",)),
    Planted(the_mean_of_nothing, ("mean",)),
    Planted(a_power_of_a_negative_number, ("pow",)),
    Planted(arc_cosine_of_a_little_more_than_one, ("acos",)),
    Planted(cross_entropy_by_hand, ("log",), module=""),
    Planted(a_cumulative_product, ("cumprod",)),
    Planted(a_sum_in_fp16, ("sum",)),
    Planted(in_place_division_by_zero, ("div_",)),
    Planted(a_buffer_in_place, ("log_",)),
    Planted(an_autograd_function, ("reciprocal", "div")),
    Planted(a_checkpointed_module, ("log",)),
    Planted(under_no_grad, ("reciprocal", "div")),
    Planted(a_hook_on_the_output, ("div",), module=""),  # it runs after the module
)
