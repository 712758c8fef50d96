"""What this chapter's optimizers share: one parameter at a time, in fp32,
with a state of its own dtype; and Adam's formulas.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


class PerParameterOptimizer(Optimizer):
    """Steps each parameter alone, on its gradient in float32, and loads a saved state bit for bit.

    Raises ValueError for a learning rate below 0.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if not defaults["lr"] >= 0:
            raise ValueError(f"the learning rate is {defaults['lr']}: it has to be 0 or more")
        super().__init__(params, defaults)

    @abstractmethod
    def step_one(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Update a weight and its state. The gradient is float32."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.step_one(parameter, parameter.grad.float(), self.state[parameter], group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit: torch's own loading turns all of it to the dtype
        of the weights.
        """
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)  # a state of torch's own AdamW has not all of ours
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
    """Return Adam's running means of the gradient and of its square, in float32;
    None stands for zeros.
    """
    zero = torch.zeros_like(gradient)
    first = zero if first is None else first.float()
    second = zero if second is None else second.float()
    return first.lerp(gradient, 1 - betas[0]), second.lerp(gradient.square(), 1 - betas[1])


def adamw_update(
    weight: Tensor, first: Tensor, second: Tensor, step: int, group: dict[str, Any]
) -> Tensor:
    """Return what AdamW adds to a weight, all in float32; the means are not yet corrected for
    starting at 0.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv:1711.05101).
    """
    beta1, beta2 = group["betas"]
    denominator = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    update = (first / (1 - beta1**step)) / denominator * -group["lr"]
    return update.sub_(weight, alpha=group["lr"] * group["weight_decay"])
