"""The base of this chapter's optimizers, which step one parameter at a time, in fp32, and choose
their state's dtype; and Adam's formulas.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

State = dict[str, Any]  # of a parameter, a parameter group or an optimizer


class PerParameterOptimizer(Optimizer):
    """Steps each parameter on its own, with its gradient in float32.

    Raises ValueError for a learning rate below 0.
    """

    def __init__(self, params: ParamsT, defaults: State) -> None:
        if not defaults["lr"] >= 0:
            raise ValueError(f"the learning rate is {defaults['lr']}: it has to be 0 or more")
        super().__init__(params, defaults)

    @abstractmethod
    def step_one(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        """Update a weight and its state. The gradient is float32."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.step_one(parameter, parameter.grad.float(), self.state[parameter], group)
        return loss

    def load_state_dict(self, state_dict: State) -> None:
        """Load a saved state bit for bit; torch would cast it to the dtype of the weights."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)  # a state of torch's AdamW lacks some of ours
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, saved in state_dict["state"].items():
            device = parameters[number].device
            self.state[parameters[number]] = {
                name: value.to(device, copy=True) if isinstance(value, Tensor) else value
                for name, value in saved.items()
            }


def adam_means(
    gradient: Tensor, first: Tensor | None, second: Tensor | None, betas: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return Adam's running means of gradient and squared gradient, in float32; None means 0."""
    zero = torch.zeros_like(gradient)
    first = zero if first is None else first.float()
    second = zero if second is None else second.float()
    return first.lerp(gradient, 1 - betas[0]), second.lerp(gradient.square(), 1 - betas[1])


def adamw_update(weight: Tensor, first: Tensor, second: Tensor, step: int, group: State) -> Tensor:
    """Return what AdamW adds to a weight, all in float32, from means without bias correction.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv:1711.05101).
    """
    beta1, beta2 = group["betas"]
    denominator = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    update = (first / (1 - beta1**step)) / denominator * -group["lr"]
    return update.sub_(weight, alpha=group["lr"] * group["weight_decay"])
