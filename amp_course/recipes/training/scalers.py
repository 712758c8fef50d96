"""The two scalers that the recipes need besides `torch.amp.GradScaler`:
one that is static, one that takes fp16 gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class StaticScaler:
    """Multiply the loss by one number and divide the gradients by it; look for nothing, skip
    nothing.

    Source: Apex's LossScaler, which skips a step only when it is dynamic.
    """

    def __init__(self, scale: float) -> None:
        self._scale = float(scale)

    def scale(self, outputs: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return outputs * self._scale

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Divide every gradient that the optimizer will use by the scale, in its own dtype;
        step.
        """
        if self._scale != 1.0:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self._scale)
        return optimizer.step()

    def update(self) -> None:
        """Leave the scale as it is."""

    def get_scale(self) -> float:
        """Return the scale."""
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        """Return {"scale": …}."""
        return {"scale": self._scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the scale of a saved state."""
        self._scale = float(state_dict["scale"])


class HalfGradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` that unscales fp16 gradients too, which torch's refuses to.

    A half model without master weights has no others. Dividing in fp16 rounds once more, and can
    lose what scaling saved: that is why torch refuses, and one of the things that O3 shows.
    Source: Apex, whose scaler does so for O3; Paddle, for O2 without `master_grad`; torch's own
            ShardedGradScaler, which also
    allows it.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
