"""What a half model changes in the loop: its casts, its master weights,
its stochastically rounded update.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.bits.formats import BF16
from amp_course.loop.stepper import LossFn, MakeOptimizer, Scaler, Stepper, device_of
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

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs, the listed ops in their own precision."""
        with self.lists:
            return super().forward(inputs)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, the listed ops in their own precision there too."""
        outputs = self.forward(inputs)
        with self.lists:
            return self.loss_fn(outputs, targets)


class HalfStepper(Stepper):
    """A model in 16 bits, inputs cast to them, no autocast.

    model:               as `to_half` left it
    low:                 the 16-bit dtype
    fp32_outputs:        cast outputs to float32 before the loss, as Apex does; else the loss is
                         computed in 16 bits
    fp32_ops:            ops that run in float32 regardless, their results cast back
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        *,
        low: torch.dtype,
        fp32_outputs: bool,
        fp32_ops: tuple[str, ...] = (),
        scaler: Scaler | None = None,
        save_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, optimizer, loss_fn, scaler=scaler, save_dtype=save_dtype)
        self.low, self.fp32_outputs = low, fp32_outputs
        self.lists = OpLists(fp32_ops, (), self.device.type, low, back=True) if fp32_ops else None

    def region(self) -> AbstractContextManager[Any]:
        """Return the op lists, if there are any."""
        return self.lists or nullcontext()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the model for inputs of any floating dtype; ids stay ids."""
        outputs = self.model(inputs.to(self.low) if inputs.is_floating_point() else inputs)
        return outputs.float() if self.fp32_outputs else outputs

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss in the dtype of the outputs."""
        outputs = self.forward(inputs)
        return self.loss_fn(
            outputs, targets.to(outputs.dtype) if targets.is_floating_point() else targets
        )


class MasterStepper(HalfStepper):
    """A half model whose optimizer works on float32 copies of the weights, the masters.

    Gradients are cast to float32 and then divided by the loss scale. (Paddle divides them in fp16,
    unless `master_grad=True`.)

    pairs: (16-bit parameter, its master); parameters that are float32 already are their own masters

    Source: the steps of Apex O2, apex/amp/_process_optimizer.py; Micikevicius et al. 2018
            (arXiv:1710.03740), section 3.1.
    """

    def __init__(
        self, *parts: Any, pairs: list[tuple[nn.Parameter, nn.Parameter]], **options: Any
    ) -> None:
        super().__init__(*parts, **options)
        self.pairs = pairs

    def update(self) -> None:
        """Hand the gradients to the masters, step them, and copy them back into the model."""
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                # freed one by one: never all twice
                master.grad, parameter.grad = (parameter.grad.float(), None)
        self.step_optimizer()
        self.optimizer.zero_grad()
        self._copy_back()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for parameter, master in self.pairs:
            # the only rounding, and it is not what the next step starts from
            parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Return the base's state, and {"masters": [float32 tensors,
        in the order of the model's 16-bit parameters]}.
        """
        return {
            **super().state_dict(),
            "masters": [master.detach().clone() for _, master in self.pairs],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state, the masters bit for bit as they were;
        ValueError for a state without them.
        """
        masters = state_dict.get("masters")
        if masters is None or [tuple(m.shape) for m in masters] != [
            tuple(m.shape) for _, m in self.pairs
        ]:
            found = (
                "none"
                if masters is None
                else f"{len(masters)} of other shapes or in another number"
            )
            raise ValueError(
                f"{len(self.pairs)} master weights are needed, and this state has {found}: load "
                f"what the state_dict() of a "
                "session with master weights, of the same model, gave"
            )
        super().load_state_dict(state_dict)
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, masters, strict=True):
                master.copy_(saved)
        self._copy_back()


class StochasticStepper(HalfStepper):
    """A bf16 model whose update is computed in float32 and rounded back stochastically, one
    parameter at a time.

    The optimizer's state is kept in bf16 too, rounded to nearest.
    Source: torchao/optim/adam.py with bf16_stochastic_round=True, without the 8-bit and 4-bit
            states of its optimizers; chapter
    02 has the rounding.
    """

    def __init__(self, *parts: Any, seed: int, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @torch.no_grad()
    def step_optimizer(self) -> None:
        """Step the optimizer on each parameter alone, in float32,
        so that only one is wide at a time.
        """
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
        """Return the base's state, and where the draws of the rounding stand."""
        return {**super().state_dict(), "rounding": self.generator.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state, with the draws that would have come next."""
        super().load_state_dict(state_dict)
        if "rounding" in state_dict:
            self.generator.set_state(state_dict["rounding"].cpu())


def require_fp32_model(model: nn.Module) -> None:
    """Raise ValueError for a model that no recipe can start from:
    no parameters, two devices, not in float32.
    """
    device_of(model)
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"the model's parameters are on {' and '.join(devices)}: a recipe trains on one "
            f"device. Call model.to(device) "
            "before you prepare it"
        )
    for name, parameter in model.named_parameters():
        if parameter.dtype is not torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"{name} is {dtype} already, and a recipe starts from float32 weights and makes "
                f"its own 16-bit ones: hand "
                "over the model before half() or bfloat16(), or call model.float() (which does not "
                "bring back the bits that were rounded away)"
            )


def to_half(model: nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool) -> None:
    """Turn a model's floating parameters and buffers to a 16-bit dtype in place, batch norm's only
    if it is not kept.

    A batch norm in float32 takes the half input as it is, computes its statistics in float32 and
    gives half back: torch's kernels, on CPU and GPU, allow this mixture for batch norm.
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
    """Return what an optimizer is to own (masters, and what is float32 already), and the pairs
    (parameter, master).

    A master starts at its parameter's rounded value, as in Apex and Paddle. A frozen parameter
    needs none.
    """
    owned, pairs = [], []
    for parameter in model.parameters():
        if parameter.dtype is dtype and parameter.requires_grad:
            master = nn.Parameter(parameter.detach().clone().float())
            pairs.append((parameter, master))
            owned.append(master)
        else:
            owned.append(parameter)
    return owned, pairs


def made_optimizer(
    make_optimizer: MakeOptimizer, params: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer for these parameters; ValueError for one that owns others."""
    optimizer = make_optimizer(params)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"the second argument made a {type(optimizer).__name__}: hand over a function that "
            f"makes an optimizer, as in "
            "lambda params: torch.optim.SGD(params, lr=0.1)"
        )
    known = {id(parameter) for parameter in params}
    if any(
        id(parameter) not in known
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        raise ValueError(
            "the optimizer owns parameters that it was not given: make it from the function's "
            "argument, not from model.parameters(). Under a recipe with master weights these are "
            "not the same"
        )
    return optimizer
