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
              "kahan":      a second bf16 number for each weight carries what the sums rounded away,
              2 bytes more
                            (Zamirai et al. 2020, "Revisiting BFloat16 Training", arXiv:2010.06192)
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
        super().__init__(params, defaults)
        self.rounding = rounding
        self._generator = torch.Generator().manual_seed(seed)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "rounding": self.rounding,
            "draws": self._generator.get_state(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        draws = state.pop("draws", None)
        super().__setstate__(state)
        self._generator = torch.Generator()
        if draws is not None:
            self._generator.set_state(draws)

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
        """Compute the update, and add it in the way of `rounding`."""
        self._add(weight, self.update(weight, gradient, state, group), state)

    def _add(self, weight: Tensor, update: Tensor, state: dict[str, Any]) -> None:
        if weight.dtype != torch.bfloat16:
            weight.add_(update)
        elif self.rounding == "nearest":
            weight.copy_(weight.float() + update)
        elif self.rounding == "stochastic":
            weight.copy_(stochastic_round(weight.float() + update, BF16, self._generator))
        else:
            wanted = update + state.setdefault("compensation", torch.zeros_like(weight)).float()
            before = weight.float()
            weight.copy_(before + wanted)
            # what this sum rounded away
            state["compensation"].copy_(wanted - (weight.float() - before))

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state, and where the draws stand."""
        return {**super().state_dict(), "draws": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, with the draws that would have come next."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "draws"})
        if "draws" in state_dict:
            self._generator.set_state(state_dict["draws"].cpu())


class Bf16SGD(Bf16Optimizer):
    """SGD with momentum for bf16 weights; see `Bf16Optimizer`."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        rounding: UpdateRounding = "kahan",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, rounding, seed
        )

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor:
        """Return the update of torch's SGD."""
        direction = gradient.add(weight.float(), alpha=group["weight_decay"])
        if group["momentum"]:
            if "momentum_buffer" in state:
                direction = state["momentum_buffer"].float() * group["momentum"] + direction
            state["momentum_buffer"] = direction.to(state_dtype(weight))
        return direction * -group["lr"]


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
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
            rounding,
            seed,
        )

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor:
        """Return the update of torch's AdamW."""
        first, second = adam_means(
            gradient, state.get("exp_avg"), state.get("exp_avg_sq"), group["betas"]
        )
        state["exp_avg"], state["exp_avg_sq"] = (
            first.to(state_dtype(weight)),
            second.to(state_dtype(weight)),
        )
        state["step"] = state.get("step", 0) + 1
        return adamw_update(weight.float(), first, second, state["step"], group)


def state_dtype(weight: Tensor) -> torch.dtype:
    """Return bf16 for bf16 weights, float32 for others:
    in fp16, a mean of squares would underflow.
    """
    return torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
