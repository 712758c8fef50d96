"""SGD and AdamW for bf16 weights without fp32 copies:
updates rounded to nearest, at random, or compensated after Kahan.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from amp_course.bits import BF16
from amp_course.frontiers.per_parameter import PerParameterOptimizer, adam_means, adamw_update
from amp_course.underflow.stochastic import stochastic_round

UpdateRounding = Literal["nearest", "stochastic", "kahan"]


class Bf16Optimizer(PerParameterOptimizer):
    """Computes each update in fp32, one parameter at a time, and adds it to a bf16 weight.

    rounding: "nearest":    the sum is rounded: an update below half an ulp is lost
              "stochastic": the sum is rounded at random, right on average (Gupta et al. 2015,
                            arXiv:1502.02551)
              "kahan":      a second bf16 number for each weight, 2 bytes more, carries what the
                            sums rounded away (Zamirai et al. 2020, arXiv:2010.06192)
    seed:     of the draws of stochastic rounding; where they stand is saved by `state_dict`
    The state of bf16 weights is kept in bf16, that of others in fp32; those are added to as usual.
    Raises ValueError for an unknown rounding, and what `PerParameterOptimizer` raises.
    """

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], rounding: UpdateRounding, seed: int
    ) -> None:
        if rounding not in get_args(UpdateRounding):
            raise ValueError(
                f"unknown rounding {rounding!r}: choose “nearest”, “stochastic” or “kahan”"
            )
        super().__init__(params, {**defaults, "rounding": rounding})
        self._generator = torch.Generator().manual_seed(seed)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_generator": self._generator}  # for copies

    @abstractmethod
    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor:
        """Return what is to be added to a weight, in float32 as its gradient is,
        and bring its state up to date.
        """

    def step_one(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        update = self.update(weight, gradient, state, group)
        if weight.dtype != torch.bfloat16:
            weight.add_(update)
        elif group["rounding"] == "nearest":
            weight.copy_(weight.float() + update)
        elif group["rounding"] == "stochastic":
            weight.copy_(stochastic_round(weight.float() + update, BF16, self._generator))
        else:
            wanted = update + state.setdefault("compensation", torch.zeros_like(weight)).float()
            before = weight.float()
            weight.copy_(before + wanted)
            # what this sum rounded away
            state["compensation"].copy_(wanted - (weight.float() - before))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "draws": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
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

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor:
        return gradient * -group["lr"]


class Bf16AdamW(Bf16Optimizer):
    """AdamW for bf16 weights; see `Bf16Optimizer`.

    Its beta2 is 0.95 and not 0.999: in bf16, a mean of squares that keeps 99.9 % of itself cannot
    fall, as the step down is less than half an ulp.
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

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor:
        old = state.get("exp_avg"), state.get("exp_avg_sq")
        first, second = adam_means(gradient, *old, group["betas"])
        # in fp16, a mean of squares would underflow
        kept = torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
        state["exp_avg"], state["exp_avg_sq"] = first.to(kept), second.to(kept)
        state["step"] = state.get("step", 0) + 1
        return adamw_update(weight.float(), first, second, state["step"], group)
