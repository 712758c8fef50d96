"""What the experiments share: recipes, sizes, and steps that start from the same weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from amp_course.kit.measure import best_seconds
from amp_course.kit.models import SimpleNet
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32, Recipe
from amp_course.loop.stepper import LossFn, MakeOptimizer

SGD = functools.partial(torch.optim.SGD, lr=1e-3)
SLOW = 1.5  # a format whose matmuls take this many times fp32's time has no fast units


def low_recipe(device: torch.device) -> Recipe:
    """Return AMP for a device: in bf16, or in fp16 on GPUs without bf16 arithmetic."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return AMP_FP16
    return AMP_BF16


def both_recipes(device: torch.device) -> dict[str, Recipe]:
    """Return fp32 and `low_recipe`, by the names that the experiments use."""
    return {"fp32": FP32, "AMP": low_recipe(device)}


def low_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of `low_recipe`."""
    dtype = low_recipe(device).dtype
    assert dtype is not None
    return dtype


@functools.cache
def is_slow(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if matmuls in `dtype` are clearly slower than in fp32; they are timed once."""
    size = 256 if device.type == "cpu" else 2048
    with one_thread(), torch.no_grad(), torch.autocast(device.type, enabled=False):
        source = drawn(size, size, device=device)
        fp32, low = (
            best_seconds(functools.partial(torch.matmul, matrix, matrix), device, least=6)
            for matrix in (source, source.to(dtype))
        )
        return low > SLOW * fp32


def pick_size(device: torch.device, *, cpu: int, slow: int, gpu: int) -> int:
    """Return the size for a device: `slow` for a CPU without fast units for 16 bits."""
    if device.type != "cpu":
        return gpu
    return slow if is_slow(device, low_dtype(device)) else cpu


def seeded(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """Build a model from a fixed seed; the global random state is left alone."""
    with same_random_state():
        torch.manual_seed(0)
        return make().to(device)


def drawn(*shape: int, device: torch.device, seed: int = 1) -> Tensor:
    """Return normal random numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def training(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    recipe: Recipe = FP32,
    loss_fn: LossFn = nn.functional.mse_loss,
    make_optimizer: MakeOptimizer = SGD,
) -> Callable[[], Tensor]:
    """Return a function that trains a copy of `model` by one step and returns the loss."""
    stepper = recipe.prepare(copy.deepcopy(model), make_optimizer, loss_fn)
    return lambda: stepper.step(inputs, targets)


def three_layers(
    width: int, batch: int, device: torch.device, recipe: Recipe = FP32
) -> Callable[[], Tensor]:
    """Return the same for a `SimpleNet` on random numbers."""
    x, y = (drawn(batch, width, device=device, seed=seed) for seed in (1, 2))
    return training(seeded(lambda: SimpleNet(width), device), x, y, recipe)
