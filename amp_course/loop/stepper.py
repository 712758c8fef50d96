"""The training step that all recipes share: the loop of chapter 06.

The recipes of chapter 08 override the parts that they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

LossFn = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Scaler(Protocol):
    """What a step needs of a scaler, such as `torch.amp.GradScaler`."""

    def scale(self, outputs: Any) -> Any: ...
    def step(self, optimizer: torch.optim.Optimizer) -> Any: ...
    def update(self) -> None: ...
    def get_scale(self) -> float: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Stepper:
    """One training under autocast or in plain fp32: `step(inputs, targets)` runs one step of it.

    model:      on one device; trained in place
    optimizer:  owns what is updated: the model's parameters
    loss_fn:    (outputs, targets) → a loss with one element
    dtype:      what autocast casts to; None leaves autocast off
    scaler:     a `torch.amp.GradScaler`, or None for a loss that is not scaled
    save_dtype: what `state_dict` writes the model's floats in; None keeps their own dtype. The
                optimizer's are not touched.

    Example: Stepper(model, optimizer, cross_entropy, dtype=torch.bfloat16).step(x, y) → tensor(2.3)
    Source: the loop of PyTorch's "Automatic Mixed Precision examples".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        *,
        dtype: torch.dtype | None = None,
        scaler: Scaler | None = None,
        save_dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.dtype, self.scaler, self.save_dtype = dtype, scaler, save_dtype
        self.device = device_of(model)
        self._scale = 1.0 if scaler is None else scaler.get_scale()
        self._skipped = 0
        self._settled = True

    def region(self) -> AbstractContextManager[Any]:
        """Return the context under which the forward pass and the loss run."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs; call it inside `region()`."""
        outputs: Tensor = self.model(inputs)
        return outputs

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch; call it inside `region()`."""
        return self.loss_fn(self.forward(inputs), targets)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on a batch; return its loss, unscaled, detached, in float32, on the device.

        Raises ValueError for a loss that is not one number.
        """
        self._settle()
        with self.region():
            loss = self.loss(inputs, targets)
        _require_one_number(loss)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.update()
        self._settled = False
        return loss.detach().float()

    def update(self) -> None:
        """Turn the gradients into new weights, and clear them."""
        self.step_optimizer()
        self.optimizer.zero_grad()

    def step_optimizer(self) -> None:
        """Step the optimizer, through the scaler if there is one."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def scale(self) -> float:
        """The loss scale of the next step, or 1.0. On a GPU, reading it waits for the last step."""
        self._settle()
        return self._scale

    @property
    def skipped(self) -> int:
        """How many steps the scaler has skipped so far."""
        self._settle()
        return self._skipped

    def _settle(self) -> None:
        """Count a skip once after each step: only a skip lowers the scale."""
        if self.scaler is not None:
            scale = self.scaler.get_scale()
            self._skipped += scale < self._scale and not self._settled
            self._scale, self._settled = scale, True

    def accuracy(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the share of right answers, 0 to 1, of the model in eval mode under the recipe.

        inputs (n, …), targets (n,). The model's mode is restored.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), self.region():
                return (self.forward(inputs).argmax(dim=-1) == targets).float().mean().item()
        finally:
            self.model.train(was_training)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: {"model": …, "optimizer": …, "scaler": … or None}."""
        model = {name: self._as_saved(tensor) for name, tensor in self.model.state_dict().items()}
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {"model": model, "optimizer": self.optimizer.state_dict(), "scaler": scaler}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of the same recipe; ValueError if it lacks the scaler's."""
        if self.scaler is not None and state_dict.get("scaler") is None:
            raise ValueError(
                "this state has no scaler, and the recipe scales its loss: it was saved under a "
                "recipe without one. Load its model with "
                'session.model.load_state_dict(state["model"]) and let the scale find its level '
                "again"
            )
        self.model.load_state_dict(state_dict["model"])
        self.optimizer.load_state_dict(state_dict["optimizer"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state_dict["scaler"])
            self._settled = True

    def _as_saved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.save_dtype or tensor.dtype) if tensor.is_floating_point() else tensor


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; ValueError for a model without parameters."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError(
            f"{type(model).__name__} has no parameters, so there is nothing to train: register its "
            "layers as attributes or in an nn.ModuleList (a plain list hides them)"
        )
    return parameter.device


def _require_one_number(loss: Tensor) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(
            f"the loss must be one number to call backward() on it, and loss_fn gave {got}: let it "
            'reduce, as nn.functional.cross_entropy does with reduction="mean"'
        )
