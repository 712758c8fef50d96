"""What half models change in the loop: casts, master weights, stochastic rounding, and scalers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.bits.formats import BF16
from amp_course.loop.stepper import MakeOptimizer, Stepper, device_of
from amp_course.recipes.training.op_lists import OpLists
from amp_course.underflow.stochastic import stochastic_round


class ListedStepper(Stepper):
    """Autocast, with some ops moved to fp32 or to the low dtype by name."""

    def __init__(
        self, *parts: Any, fp32_ops: tuple[str, ...], lower_ops: tuple[str, ...], **options: Any
    ) -> None:
        super().__init__(*parts, **options)
        assert self.dtype is not None
        self.lists = OpLists(fp32_ops, lower_ops, self.device.type, self.dtype)

    @contextmanager
    def region(self) -> Iterator[None]:
        """Run under autocast, the listed ops in their own precision."""
        with super().region(), self.lists:
            yield


class HalfStepper(Stepper):
    """A model in 16 bits, inputs cast to them, no autocast.

    model:        converted by `to_half`
    low:          the 16-bit dtype
    fp32_outputs: cast outputs to float32 before the loss, as Apex does; else the loss is computed
                  in 16 bits
    fp32_ops:     ops that always run in float32, their results cast back
    """

    def __init__(
        self,
        *parts: Any,
        low: torch.dtype,
        fp32_outputs: bool,
        fp32_ops: tuple[str, ...],
        **options: Any,
    ) -> None:
        super().__init__(*parts, **options)
        self.low, self.fp32_outputs = low, fp32_outputs
        self.lists = OpLists(fp32_ops, (), self.device.type, low, back=True) if fp32_ops else None

    def region(self) -> AbstractContextManager[Any]:
        return self.lists or nullcontext()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.model(inputs.to(self.low) if inputs.is_floating_point() else inputs)
        return outputs.float() if self.fp32_outputs else outputs

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self.forward(inputs)
        if targets.is_floating_point():
            targets = targets.to(outputs.dtype)
        return self.loss_fn(outputs, targets)


class MasterStepper(HalfStepper):
    """A half model whose optimizer updates float32 copies of the weights, the masters.

    Gradients are cast to float32 and then divided by the loss scale. (Paddle divides them in fp16,
    unless `master_grad=True`.)

    pairs: (16-bit parameter, its master); parameters in float32 are their own masters

    Source: the steps of Apex O2, apex/amp/_process_optimizer.py; Micikevicius et al. 2018
            (arXiv:1710.03740), section 3.1.
    """

    def __init__(
        self, *parts: Any, pairs: list[tuple[nn.Parameter, nn.Parameter]], **options: Any
    ) -> None:
        super().__init__(*parts, **options)
        self.pairs = pairs

    def update(self) -> None:
        """Move the gradients to the masters, step them, and copy them back into the model."""
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                # freed one by one, so that all gradients never exist twice
                master.grad, parameter.grad = parameter.grad.float(), None
        self.step_optimizer()
        self.optimizer.zero_grad()
        self._copy_back()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for parameter, master in self.pairs:
            parameter.copy_(master)  # rounded, but the next step starts from the master

    def state_dict(self) -> dict[str, Any]:
        """Return the base's state, and "masters": a list in the order of the 16-bit parameters."""
        masters = [master.detach().clone() for _, master in self.pairs]
        return {**super().state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        masters = state_dict.get("masters", [])
        if [m.shape for m in masters] != [m.shape for _, m in self.pairs]:
            found = f"{len(masters)} of other shapes or in another number" if masters else "none"
            raise ValueError(
                f"{len(self.pairs)} master weights are needed, and this state has {found}: load "
                "what the state_dict() of a session with master weights, of the same model, gave"
            )
        super().load_state_dict(state_dict)
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, masters, strict=True):
                master.copy_(saved)
        self._copy_back()


class StochasticStepper(HalfStepper):
    """A bf16 model whose parameters are updated one by one in float32 and rounded stochastically.

    The optimizer's state is in bf16 too, rounded to nearest.
    Source: torchao/optim/adam.py with bf16_stochastic_round=True, without the 8-bit and 4-bit
            states of its optimizers; the rounding is that of chapter 02.
    """

    def __init__(self, *parts: Any, seed: int, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @torch.no_grad()
    def step_optimizer(self) -> None:
        """Step the optimizer on each parameter alone, so that only one at a time is in float32."""
        groups = self.optimizer.param_groups
        try:
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.optimizer.param_groups = [{**group, "params": [parameter]}]
                        self._step_one(parameter)
        finally:
            self.optimizer.param_groups = groups

    def _step_one(self, parameter: nn.Parameter) -> None:
        low, gradient = parameter.data, parameter.grad
        if low.dtype is not self.low:  # a float32 parameter needs no rounding
            self.optimizer.step()
            return
        assert gradient is not None
        parameter.grad, parameter.data = None, low.float()
        parameter.grad = gradient.float()
        self._cast_state(parameter, torch.float32)
        self.optimizer.step()
        low.copy_(stochastic_round(parameter.data, BF16, self.generator))
        parameter.grad, parameter.data = None, low
        self._cast_state(parameter, self.low)

    def _cast_state(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        state = self.optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0:
                state[key] = value.to(dtype)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rounding": self.generator.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if "rounding" in state_dict:
            self.generator.set_state(state_dict["rounding"].cpu())


class StaticScaler:
    """Multiply the loss by a constant and divide the gradients by it; never skip a step.

    Source: Apex's LossScaler, which skips a step only if it is dynamic.
    """

    def __init__(self, scale: float) -> None:
        self._scale = float(scale)

    def scale(self, outputs: Tensor) -> Tensor:
        return outputs * self._scale

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Divide the optimizer's gradients by the scale, in their own dtype, and step."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(self._scale)
        return optimizer.step()

    def update(self) -> None:
        """Leave the scale as it is."""

    def get_scale(self) -> float:
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scale = float(state_dict["scale"])


class HalfGradScaler(torch.amp.GradScaler):
    """A `torch.amp.GradScaler` that also unscales fp16 gradients, as Apex does for O3.

    A half model without master weights has no others. Dividing in fp16 rounds once more, and can
    lose what scaling saved: that is why torch refuses, and one of the things that O3 shows.
    Source: Apex; Paddle does so for O2 without `master_grad`, and torch in its ShardedGradScaler.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)


def require_fp32_model(model: nn.Module) -> None:
    """Raise ValueError for a model without parameters, or with some that are not float32."""
    device_of(model)
    for name, parameter in model.named_parameters():
        if parameter.dtype is not torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"{name} is {dtype} already, and a recipe starts from float32 weights and makes "
                "its own 16-bit ones: hand over the model before half() or bfloat16(), or call "
                "model.float() (which does not bring back the bits that were rounded away)"
            )


def to_half(model: nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool) -> None:
    """Convert a model's floating parameters and buffers to a 16-bit dtype in place.

    A batch norm that stays in float32 takes half inputs, computes its statistics in float32 and
    returns half: torch's kernels, on CPU and GPU, allow this mixture for batch norm.
    Source: convert_network of Apex, apex/fp16_utils/fp16util.py.
    """
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(dtype))


def make_masters(
    model: nn.Module, dtype: torch.dtype
) -> tuple[list[nn.Parameter], list[tuple[nn.Parameter, nn.Parameter]]]:
    """Return an optimizer's parameters (masters or float32), and the pairs (parameter, master).

    A master starts at its parameter's rounded value, as in Apex and Paddle. A frozen parameter
    has none.
    """
    owned, pairs = [], []
    for parameter in model.parameters():
        master = parameter
        if parameter.dtype is dtype and parameter.requires_grad:
            master = nn.Parameter(parameter.detach().float())
            pairs.append((parameter, master))
        owned.append(master)
    return owned, pairs


def made_optimizer(
    make_optimizer: MakeOptimizer, params: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer for these parameters; ValueError for one that owns others."""
    optimizer = make_optimizer(params)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"the second argument made a {type(optimizer).__name__}: hand over a function that "
            f"makes an optimizer, as in lambda params: torch.optim.SGD(params, lr=0.1)"
        )
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not owned <= set(map(id, params)):
        raise ValueError(
            "the optimizer owns parameters that it was not given: make it from the function's "
            "argument, not from model.parameters(). Under a recipe with master weights these are "
            "not the same"
        )
    return optimizer
