"""Train weights of few bits with a float32 copy of each, its master weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

MASTER = "master"


class MasterSGD(torch.optim.Optimizer):
    """SGD that keeps its weights in float32, and gives the model a rounded copy after each step.

    params: parameters of any floating dtype, mostly fp16 or bf16; the master copy of each number
            takes 4 more bytes
    lr:     the learning rate, above 0

    Raises ValueError for a learning rate that is not positive.
    Example: 100 steps of 1e-4 from 1.0 leave fp16 at 1.0 with torch.optim.SGD, and reach 0.99 with
             this
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.1 (arXiv:1710.03740).
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        if not lr > 0:
            raise ValueError(f"the learning rate is {lr}: it has to be above 0")
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each master that has a gradient, and its parameter; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                master = self.master(parameter)
                master.add_(parameter.grad.float(), alpha=-group["lr"])
                parameter.copy_(master)  # rounded, but the next step starts from the master
        return loss

    def master(self, parameter: Tensor) -> Tensor:
        """Return a parameter's float32 copy, made from it the first time."""
        state = self.state[parameter]
        if MASTER not in state:
            state[MASTER] = parameter.detach().clone().float()
        master: Tensor = state[MASTER]
        return master

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state with the masters in float32.

        On loading, torch casts an optimizer's state to its parameter's dtype, which would round the
        masters.
        """
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            if number in state_dict["state"]:
                saved = state_dict["state"][number][MASTER]
                self.state[parameter][MASTER] = saved.to(parameter.device, torch.float32, copy=True)
