"""Measure whether an update reaches the weights: how many of them differ after a recipe's first
step that was not skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amp_course.kit.memory import masters_of
from amp_course.loop.recipe import AnyRecipe
from amp_course.loop.stepper import LossFn, MakeOptimizer
from amp_course.recipes.measuring.table import until_a_step_counts


@dataclass(frozen=True)
class Reach:
    """Shares, 0 to 1, of what one step did.

    weights: of the model's weights, those that are another finite number after the step
    masters: of the optimizer's own copies of them, likewise; None for a recipe without
    broken:  of the model's weights, those that are inf or NaN after it
    skipped: steps that the scaler skipped before this one
    """

    weights: float
    masters: float | None
    broken: float
    skipped: int


def reach(
    recipe: AnyRecipe,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss_fn: LossFn = nn.functional.cross_entropy,
    make_optimizer: MakeOptimizer = torch.optim.Adam,
) -> Reach:
    """Train a copy of the model under a recipe until a step is not skipped, and compare the weights
    before and after it.

    Raises RuntimeError if every one of the first steps was skipped.
    Example: reach(PURE_BF16(), model, x, y, make_optimizer=lambda params: SGD(params,
             lr=1e-3)).weights → 0.2
    """
    session = recipe.prepare(copy.deepcopy(model), make_optimizer, loss_fn)
    weights = list(session.model.parameters())
    masters = masters_of(session.model, session.optimizer)
    before, masters_before = _copies(weights), _copies(masters)
    with recipe.precision():
        until_a_step_counts(session, inputs, targets)  # a skipped step leaves the weights alone
    total = sum(weight.numel() for weight in weights)
    return Reach(
        weights=_changed(before, weights),
        masters=_changed(masters_before, masters) if masters else None,
        broken=sum(int((~weight.detach().isfinite()).sum()) for weight in weights) / total,
        skipped=session.skipped,
    )


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _changed(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    pairs = [(old, new.detach()) for old, new in zip(before, after, strict=True)]
    changed = sum(int(((old != new) & new.isfinite()).sum()) for old, new in pairs)
    return changed / sum(tensor.numel() for tensor in before)
