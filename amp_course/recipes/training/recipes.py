"""The recipes: one small class each over the loop of chapter 06, with the options of the originals.

What a recipe keeps in which dtype is not written here: `amp_course.recipes.measuring.measure` looks
at a live step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amp_course.loop.stepper import LossFn, MakeOptimizer, Scaler, Stepper
from amp_course.recipes.training.base import BaseRecipe, LossScale
from amp_course.recipes.training.scalers import HalfGradScaler, StaticScaler
from amp_course.recipes.training.steppers import (
    HalfStepper,
    ListedStepper,
    MasterStepper,
    StochasticStepper,
    made_optimizer,
    make_masters,
    to_half,
)


@dataclass(frozen=True, kw_only=True)
class O0(BaseRecipe):
    """Plain fp32: the baseline. Apex O0."""

    name = "o0"
    label = "O0"

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        optimizer = made_optimizer(make_optimizer, list(model.parameters()))
        return Stepper(model, optimizer, loss_fn, save_dtype=self.save_dtype)


@dataclass(frozen=True, kw_only=True)
class _Autocast(BaseRecipe):
    """fp32 weights; autocast chooses each op's dtype. What O1 and AMP_BF16 share.

    fp32_ops:  names of ops that run in float32 whatever autocast would do (Paddle's
               custom_black_list)
    lower_ops: names of ops that run in the low dtype (Paddle's custom_white_list)
    """

    fp32_ops: tuple[str, ...] = ()
    lower_ops: tuple[str, ...] = ()

    def _autocast(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        loss_fn: LossFn,
        scaler: Scaler | None,
    ) -> Stepper:
        optimizer = made_optimizer(make_optimizer, list(model.parameters()))
        options: dict[str, Any] = {
            "dtype": self.low_dtype,
            "scaler": scaler,
            "save_dtype": self.save_dtype,
        }
        if self.fp32_ops or self.lower_ops:
            return ListedStepper(
                model,
                optimizer,
                loss_fn,
                fp32_ops=self.fp32_ops,
                lower_ops=self.lower_ops,
                **options,
            )
        return Stepper(model, optimizer, loss_fn, **options)


@dataclass(frozen=True, kw_only=True)
class O1(_Autocast):
    """fp32 weights, autocast to fp16, dynamic loss scale: torch AMP, Apex O1, Paddle O1,
    Colossal-AI 'fp16'.

    The scaler is torch's. Apex's is the same, except that its scale never exceeds 2**24
    (apex/amp/scaler.py, tag 25.05).

    dtype:      what autocast casts to, torch.float16 or torch.bfloat16
    loss_scale: "dynamic", a number that stays, or None
    """

    name = "o1"
    label = "O1"

    dtype: torch.dtype = torch.float16
    loss_scale: LossScale = "dynamic"

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        scaler = _scaler(self.loss_scale, model, torch.amp.GradScaler)
        return self._autocast(model, make_optimizer, loss_fn, scaler)


@dataclass(frozen=True, kw_only=True)
class AMP_BF16(_Autocast):
    """fp32 weights, autocast to bf16, no scaling."""

    name = "amp_bf16"
    label = "AMP bf16"
    _low = torch.bfloat16

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        return self._autocast(model, make_optimizer, loss_fn, None)


@dataclass(frozen=True, kw_only=True)
class _Half(BaseRecipe):
    """A model in 16 bits. What O2, O3 and the hand-made recipes share.

    fp32_ops: names of ops that run in float32 regardless, their results cast back (Paddle O2's
              custom_black_list)
    """

    fp32_ops: tuple[str, ...] = ()

    def _half(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        loss_fn: LossFn,
        *,
        keep_batchnorm_fp32: bool,
        master_weights: bool = False,
        loss_scale: LossScale = None,
        fp32_outputs: bool = False,
        seed: int | None = None,
    ) -> Stepper:
        low = self.low_dtype
        assert low is not None
        to_half(model, low, keep_batchnorm_fp32)
        owned, pairs = (
            make_masters(model, low) if master_weights else (list(model.parameters()), [])
        )
        optimizer = made_optimizer(make_optimizer, owned)
        options: dict[str, Any] = {
            "low": low,
            "fp32_outputs": fp32_outputs,
            "fp32_ops": self.fp32_ops,
            "scaler": _scaler(loss_scale, model, HalfGradScaler),
            "save_dtype": self.save_dtype,
        }
        if master_weights:
            return MasterStepper(model, optimizer, loss_fn, pairs=pairs, **options)
        if seed is not None:
            return StochasticStepper(model, optimizer, loss_fn, seed=seed, **options)
        return HalfStepper(model, optimizer, loss_fn, **options)


@dataclass(frozen=True, kw_only=True)
class _Level(_Half):
    """An Apex level with a half model: its options, and the casts that Apex puts around the model's
    forward.

    dtype:               torch.float16 or torch.bfloat16
    keep_batchnorm_fp32: leave batch norm's weights and statistics in float32
    master_weights:      let the optimizer work on float32 copies of the 16-bit weights (Paddle's
                         decorate(master_weight=…))
    loss_scale:          "dynamic", a number that stays, or None
    """

    dtype: torch.dtype = torch.float16
    keep_batchnorm_fp32: bool = True
    master_weights: bool = True
    loss_scale: LossScale = "dynamic"

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        return self._half(
            model,
            make_optimizer,
            loss_fn,
            keep_batchnorm_fp32=self.keep_batchnorm_fp32,
            master_weights=self.master_weights,
            loss_scale=self.loss_scale,
            fp32_outputs=True,
        )


@dataclass(frozen=True, kw_only=True)
class O2(_Level):
    """fp16 model, fp32 batch norm, fp32 master weights, dynamic loss scale: Apex O2, tag 25.05.

    Relatives that differ in details which are not modelled here:
    Paddle's fp16 O2 also keeps LayerNorm and InstanceNorm in fp32, runs an op in fp32 if one of its
    inputs is (`auto_cast(use_promote=True)`), and divides fp16 gradients by the scale in fp16,
    unless `decorate(master_grad=True)` (python/paddle/amp: `need_keep_fp32`, `amp_guard`,
    `AmpScaler._unscale`). Colossal-AI's naive is O2(keep_batchnorm_fp32=False) with a scaler that
    doubles after 1,000 good steps and halves only from the second overflow on
    (colossalai/amp/naive_amp, tag v0.5.0: `growth_interval=1000`, `hysteresis=2`).
    """

    name = "o2"
    label = "O2"


@dataclass(frozen=True, kw_only=True)
class O3(_Level):
    """fp16 everywhere, no master weights, loss scale 1:
    Apex O3, which saves its weights in fp32 (here: save_dtype).
    """

    name = "o3"
    label = "O3"

    keep_batchnorm_fp32: bool = False
    master_weights: bool = False
    loss_scale: LossScale = 1.0


@dataclass(frozen=True, kw_only=True)
class HALF_BN32(_Half):
    """fp16 model, fp32 batch norm, loss in fp16, nothing scaled:
    `model.half()` by hand, as many wrote it.
    """

    name = "half_bn32"
    label = "half + BN fp32"
    _low = torch.float16

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        return self._half(model, make_optimizer, loss_fn, keep_batchnorm_fp32=True)


@dataclass(frozen=True, kw_only=True)
class PURE_BF16(_Half):
    """bf16 everywhere, the loss too: `model.bfloat16()` by hand."""

    name = "pure_bf16"
    label = "pure bf16"
    _low = torch.bfloat16

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        return self._half(model, make_optimizer, loss_fn, keep_batchnorm_fp32=False)


@dataclass(frozen=True, kw_only=True)
class PURE_BF16_SR(_Half):
    """bf16 everywhere, the update computed in fp32 and rounded stochastically.

    torchao's optimizers do so with `bf16_stochastic_round=True`; its Adam8bit, Adam4bit and AdamFp8
    compress their state as well (torchao/optim/adam.py, version 0.19), which is not done here.

    seed: of the draws that the rounding takes
    """

    name = "pure_bf16_sr"
    label = "pure bf16 + SR"
    _low = torch.bfloat16

    seed: int = 0

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        return self._half(model, make_optimizer, loss_fn, keep_batchnorm_fp32=False, seed=self.seed)


def find(name: str | BaseRecipe, **options: Any) -> BaseRecipe:
    """Return a recipe by its name, with options: find("o2", keep_batchnorm_fp32=False) →
    O2(keep_batchnorm_fp32=False).

    Raises ValueError for a name or an option that there is not, naming those that there are.
    """
    if isinstance(name, BaseRecipe):
        return name
    wanted = str(name).lower().replace("-", "_").replace(" ", "_")
    for recipe in ALL:
        if recipe.name == wanted:
            return type(recipe)(**options)
    raise ValueError(
        f"unknown recipe {name!r}: choose one of {', '.join(recipe.name for recipe in ALL)}"
    )


def _scaler(
    loss_scale: LossScale, model: nn.Module, dynamic: type[torch.amp.GradScaler]
) -> Scaler | None:
    if loss_scale is None:
        return None
    return (
        dynamic(next(model.parameters()).device.type)
        if loss_scale == "dynamic"
        else StaticScaler(loss_scale)
    )


ALL: tuple[BaseRecipe, ...] = (
    O0(),
    O1(),
    O2(),
    O3(),
    HALF_BN32(),
    AMP_BF16(),
    PURE_BF16(),
    PURE_BF16_SR(),
)
