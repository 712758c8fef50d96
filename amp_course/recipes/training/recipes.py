"""The recipes: a small class each over the loop of chapter 06, with the options of the originals.

What a recipe keeps in which dtype is not written here: `recipes.measuring` measures a live step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from amp_course.loop.stepper import LossFn, MakeOptimizer, Scaler, Stepper
from amp_course.recipes.training.base import BaseRecipe, LossScale
from amp_course.recipes.training.steppers import (
    HalfGradScaler,
    HalfStepper,
    ListedStepper,
    MasterStepper,
    StaticScaler,
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
    """fp32 weights; autocast chooses each op's dtype: what O1 and AMP_BF16 share.

    fp32_ops:  names of ops that always run in float32 (Paddle's custom_black_list)
    lower_ops: names of ops that always run in the low dtype (Paddle's custom_white_list)
    """

    fp32_ops: tuple[str, ...] = ()
    lower_ops: tuple[str, ...] = ()

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        optimizer = made_optimizer(make_optimizer, list(model.parameters()))
        scaler = _scaler(self, model, torch.amp.GradScaler)
        options: dict[str, Any] = {"scaler": scaler, "save_dtype": self.save_dtype}
        parts = (model, optimizer, loss_fn)
        if not self.fp32_ops and not self.lower_ops:
            return Stepper(*parts, dtype=self.low_dtype, **options)
        options |= {"fp32_ops": self.fp32_ops, "lower_ops": self.lower_ops}
        return ListedStepper(*parts, dtype=self.low_dtype, **options)


@dataclass(frozen=True, kw_only=True)
class O1(_Autocast):
    """fp32 weights, autocast to fp16, dynamic loss scale: torch AMP, Apex O1, Paddle O1,
    Colossal-AI 'fp16'.

    The scaler is torch's. Apex's is the same, except that its scale never exceeds 2**24
    (apex/amp/scaler.py, tag 25.05).

    dtype:      what autocast casts to, torch.float16 or torch.bfloat16
    loss_scale: "dynamic", a constant, or None
    """

    name = "o1"
    label = "O1"

    dtype: torch.dtype = torch.float16
    loss_scale: LossScale = "dynamic"


@dataclass(frozen=True, kw_only=True)
class AMP_BF16(_Autocast):
    """fp32 weights, autocast to bf16, no scaling."""

    name = "amp_bf16"
    label = "AMP bf16"
    _low = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class _Half(BaseRecipe):
    """A model in 16 bits: O2, O3 and the hand-made recipes. An option that a recipe lacks is off.

    fp32_ops: names of ops that always run in float32, their results cast back (Paddle O2's
              custom_black_list)
    """

    fp32_ops: tuple[str, ...] = ()
    _norm_fp32: ClassVar[bool] = False  # batch norm, of a recipe without that option
    _loss_fp32: ClassVar[bool] = False

    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        low = self.low_dtype
        assert low is not None
        to_half(model, low, getattr(self, "keep_batchnorm_fp32", self._norm_fp32))
        has_masters, seed = getattr(self, "master_weights", False), getattr(self, "seed", None)
        owned = list(model.parameters())
        if has_masters:
            owned, pairs = make_masters(model, low)
        parts = (model, made_optimizer(make_optimizer, owned), loss_fn)
        options: dict[str, Any] = {
            "low": low,
            "fp32_outputs": self._loss_fp32,
            "fp32_ops": self.fp32_ops,
            "scaler": _scaler(self, model, HalfGradScaler),
            "save_dtype": self.save_dtype,
        }
        if has_masters:
            return MasterStepper(*parts, pairs=pairs, **options)
        if seed is not None:
            return StochasticStepper(*parts, seed=seed, **options)
        return HalfStepper(*parts, **options)


@dataclass(frozen=True, kw_only=True)
class _Level(_Half):
    """An Apex level with a half model: its options, and Apex's casts around the model's forward.

    dtype:               torch.float16 or torch.bfloat16
    keep_batchnorm_fp32: leave batch norm's weights and statistics in float32
    master_weights:      let the optimizer update float32 copies of the 16-bit weights (Paddle's
                         decorate(master_weight=…))
    loss_scale:          "dynamic", a constant, or None
    """

    _loss_fp32 = True

    dtype: torch.dtype = torch.float16
    keep_batchnorm_fp32: bool = True
    master_weights: bool = True
    loss_scale: LossScale = "dynamic"


@dataclass(frozen=True, kw_only=True)
class O2(_Level):
    """fp16 model, fp32 batch norm, fp32 master weights, dynamic loss scale: Apex O2, tag 25.05.

    Other versions differ in details that are not modelled here. Paddle's fp16 O2 also keeps
    LayerNorm and InstanceNorm in fp32, runs an op in fp32 if one of its inputs is
    (`auto_cast(use_promote=True)`), and divides fp16 gradients by the scale in fp16, unless
    `decorate(master_grad=True)` (python/paddle/amp: `need_keep_fp32`, `amp_guard`,
    `AmpScaler._unscale`). Colossal-AI's naive is O2(keep_batchnorm_fp32=False) with a scaler that
    doubles after 1,000 good steps and halves only from the second overflow on
    (colossalai/amp/naive_amp, tag v0.5.0: `growth_interval=1000`, `hysteresis=2`).
    """

    name = "o2"
    label = "O2"


@dataclass(frozen=True, kw_only=True)
class O3(_Level):
    """fp16 everywhere, no master weights, loss scale 1: Apex O3.

    Apex saves its weights in fp32 (here: save_dtype).
    """

    name = "o3"
    label = "O3"

    keep_batchnorm_fp32: bool = False
    master_weights: bool = False
    loss_scale: LossScale = 1.0


@dataclass(frozen=True, kw_only=True)
class HALF_BN32(_Half):
    """fp16 model, fp32 batch norm, loss in fp16, no loss scale: `model.half()` by hand."""

    name = "half_bn32"
    label = "half + BN fp32"
    _low = torch.float16
    _norm_fp32 = True


@dataclass(frozen=True, kw_only=True)
class PURE_BF16(_Half):
    """bf16 everywhere, the loss too: `model.bfloat16()` by hand."""

    name = "pure_bf16"
    label = "pure bf16"
    _low = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class PURE_BF16_SR(_Half):
    """bf16 everywhere, the update computed in fp32 and rounded stochastically.

    As torchao's optimizers with `bf16_stochastic_round=True` (torchao/optim/adam.py, version 0.19),
    of which Adam8bit, Adam4bit and AdamFp8 also compress their state.

    seed: of the rounding's random numbers
    """

    name = "pure_bf16_sr"
    label = "pure bf16 + SR"
    _low = torch.bfloat16

    seed: int = 0


def find(name: str, **options: Any) -> BaseRecipe:
    """Return a recipe by its name, with options: find("o2", dtype=torch.bfloat16).

    Raises ValueError, listing the known ones, for an unknown name or option.
    """
    known = {recipe.name: type(recipe) for recipe in ALL}
    wanted = str(name).lower().replace("-", "_").replace(" ", "_")
    if wanted not in known:
        raise ValueError(f"unknown recipe {name!r}: choose one of {', '.join(known)}")
    return known[wanted](**options)


def _scaler(
    recipe: BaseRecipe, model: nn.Module, dynamic: type[torch.amp.GradScaler]
) -> Scaler | None:
    loss_scale: LossScale = getattr(recipe, "loss_scale", None)
    if loss_scale == "dynamic":
        return dynamic(next(model.parameters()).device.type)
    return None if loss_scale is None else StaticScaler(loss_scale)


_CLASSES = (O0, O1, O2, O3, HALF_BN32, AMP_BF16, PURE_BF16, PURE_BF16_SR)
ALL: tuple[BaseRecipe, ...] = tuple(make() for make in _CLASSES)
