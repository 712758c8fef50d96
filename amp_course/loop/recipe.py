"""The recipes of a loop: the dtype of autocast, and with or without a scaler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from amp_course.loop.stepper import LossFn, MakeOptimizer, Stepper, device_of


class AnyRecipe(Protocol):
    """What the loop needs of a recipe: one of those below, or of chapter 08."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def low_dtype(self) -> torch.dtype | None:
        """The 16-bit dtype that matmuls run in; None for fp32."""

    def precision(self) -> AbstractContextManager[None]:
        """Set what fp32 means on CUDA while the body runs."""

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        """Make a model ready and return what steps it."""


@dataclass(frozen=True)
class Recipe:
    """How one training step computes.

    name:   "fp32", "tf32", "amp_fp16" or "amp_bf16"
    label:  how figures and tables write it
    dtype:  what autocast casts to; None leaves autocast off
    scaled: let `torch.amp.GradScaler` scale the loss
    tf32:   let fp32 matmuls and convolutions round their inputs to TF32 (CUDA only)
    """

    name: str
    label: str
    dtype: torch.dtype | None
    scaled: bool
    tf32: bool = False

    @property
    def low_dtype(self) -> torch.dtype | None:
        """What autocast casts to."""
        return self.dtype

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Set what fp32 means on CUDA while the body runs: TF32 if the recipe says so, else fp32.

        By default cuDNN's convolutions use TF32.
        """
        matmul, conv = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = conv

    def new_scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """Return a new scaler, or None if the recipe scales nothing."""
        return torch.amp.GradScaler(device.type) if self.scaled else None

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        """Return what steps the model; ValueError for a model without parameters."""
        device = device_of(model)
        optimizer = make_optimizer(list(model.parameters()))
        return Stepper(model, optimizer, loss_fn, dtype=self.dtype, scaler=self.new_scaler(device))


FP32 = Recipe("fp32", "fp32", None, scaled=False)
TF32 = Recipe("tf32", "tf32", None, scaled=False, tf32=True)
AMP_FP16 = Recipe("amp_fp16", "AMP fp16", torch.float16, scaled=True)
AMP_BF16 = Recipe("amp_bf16", "AMP bf16", torch.bfloat16, scaled=False)

RECIPES = {recipe.name: recipe for recipe in (FP32, TF32, AMP_FP16, AMP_BF16)}


def find_recipe(recipe: Recipe | str) -> Recipe:
    """Return a recipe, given itself or its name: "amp-fp16" → AMP_FP16; ValueError if unknown."""
    if isinstance(recipe, Recipe):
        return recipe
    name = str(recipe).lower().replace("-", "_").replace(" ", "_")
    if name not in RECIPES:
        raise ValueError(
            f"unknown recipe {recipe!r}: choose one of {', '.join(RECIPES)}, or hand over a Recipe"
        )
    return RECIPES[name]


def recipes_for(device: torch.device) -> tuple[Recipe, ...]:
    """Return the recipes that mean something on a device: TF32 is a mode of NVIDIA's units only."""
    return tuple(recipe for recipe in RECIPES.values() if device.type == "cuda" or not recipe.tf32)
