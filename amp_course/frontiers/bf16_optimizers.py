"""SGD and AdamW for bf16 weights without fp32 copies: updates are rounded to nearest, at random, or
with Kahan's compensation.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from amp_course.bits import BF16
from amp_course.frontiers.per_parameter import (
    PerParameterOptimizer,
    State,
    adam_means,
    adamw_update,
)
from amp_course.underflow.stochastic import stochastic_round

UpdateRounding = Literal["nearest", "stochastic", "kahan"]


class Bf16Optimizer(PerParameterOptimizer):
    """Computes each update in fp32, one parameter at a time, and adds it to a bf16 weight.

    rounding: "nearest":    an update below half an ulp is lost
              "stochastic": the sum is rounded at random, right on average (Gupta et al. 2015,
                            arXiv:1502.02551)
              "kahan":      a second bf16 number for each weight, 2 bytes more, carries what the
                            sums rounded away (Zamirai et al. 2020, arXiv:2010.06192)
    seed:     of the draws of stochastic rounding, whose state is in `state_dict`
    The state of bf16 weights is kept in bf16. Other weights are updated as usual, with an fp32
    state. Raises ValueError for an unknown rounding, and what `PerParameterOptimizer` raises.
    """

    def __init__(
        self, params: ParamsT, defaults: State, rounding: UpdateRounding, seed: int
    ) -> None:
        if rounding not in get_args(UpdateRounding):
            raise ValueError(
                f"unknown rounding {rounding!r}: choose “nearest”, “stochastic” or “kahan”"
            )
        super().__init__(params, {**defaults, "rounding": rounding})
        self._generator = torch.Generator().manual_seed(seed)

    def __getstate__(self) -> State:
        return {**super().__getstate__(), "_generator": self._generator}  # for copies

    @abstractmethod
    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> Tensor:
        """Return what to add to a weight, in float32 like its gradient, and update its state."""

    def step_one(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        update = self.update(weight, gradient, state, group)
        if weight.dtype != torch.bfloat16:
            weight.add_(update)
        elif group["rounding"] == "nearest":
            weight.copy_(weight.float() + update)
        elif group["rounding"] == "stochastic":
            weight.copy_(stochastic_round(weight.float() + update, BF16, self._generator))
        else:
            compensation = state.setdefault("compensation", torch.zeros_like(weight))
            before, wanted = weight.float(), update + compensation.float()
            weight.copy_(before + wanted)
            compensation.copy_(wanted - (weight.float() - before))  # what this sum rounded away

    def state_dict(self) -> State:
        return {**super().state_dict(), "draws": self._generator.get_state()}

    def load_state_dict(self, state_dict: State) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "draws"})
        if "draws" in state_dict:
            self._generator.set_state(state_dict["draws"].cpu())


class Bf16SGD(Bf16Optimizer):
    """Plain SGD for bf16 weights; see `Bf16Optimizer`."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        rounding: UpdateRounding = "kahan",
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr}, rounding, seed)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> Tensor:
        return gradient * -group["lr"]


class Bf16AdamW(Bf16Optimizer):
    """AdamW for bf16 weights; see `Bf16Optimizer`.

    Its beta2 is 0.95, not 0.999: in bf16, a mean of squares that keeps 99.9 % of itself cannot
    fall, because its step down is below half an ulp.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        rounding: UpdateRounding = "kahan",
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, rounding, seed)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> Tensor:
        old = state.get("exp_avg"), state.get("exp_avg_sq")
        first, second = adam_means(gradient, *old, group["betas"])
        # in fp16, a mean of squares would underflow
        dtype = torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
        state["exp_avg"], state["exp_avg_sq"] = first.to(dtype), second.to(dtype)
        state["step"] = state.get("step", 0) + 1
        return adamw_update(weight.float(), first, second, state["step"], group)
