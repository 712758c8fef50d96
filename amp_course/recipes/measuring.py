"""Measure a recipe in a live step: the bytes it keeps, by dtype, and if its update takes effect.

Nothing in the table is written by hand.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.kit.colours import KEPT
from amp_course.kit.memory import bytes_text, masters_of, tensor_bytes
from amp_course.kit.report import Block, Page, Table
from amp_course.kit.tensors import short
from amp_course.kit.watch import Saved, StepWatch, storages
from amp_course.loop.recipe import AnyRecipe
from amp_course.loop.stepper import LossFn, MakeOptimizer, Stepper
from amp_course.recipes.training.steppers import StaticScaler

Bytes = Mapping[str, int]  # by format: {"fp16": 153600, "fp32": 2560}
_MOST_STEPS = 30  # until one is not skipped: a scale that starts too high skips some


@dataclass(frozen=True)
class Measured:
    """What one recipe kept in one step: bytes by format, for each kind of tensor.

    parameters:  how many numbers the model learns
    at_step:     most bytes of weights, masters, gradients and state while the optimizer steps
    cast_copies: bytes of low-precision weights that autocast made and kept
    skipped:     steps that the scaler skipped before the measured one
    """

    name: str
    label: str
    parameters: int
    weights: Bytes
    master: Bytes
    gradients: Bytes
    optimizer_state: Bytes
    batch_norm: Bytes
    activations: Bytes
    cast_copies: int
    at_step: int
    scaling: str
    skipped: int

    @property
    def kept(self) -> int:
        """Bytes of weights, masters, gradients and optimizer state at the end of backward."""
        return sum(sum(getattr(self, kind).values()) for kind in KEPT)

    @property
    def bytes_per_parameter(self) -> float:
        """`kept` over the number of parameters: 16.0 for fp32 with Adam."""
        return self.kept / self.parameters

    def bytes_of_each(self, kind: str) -> float:
        """Return one of the `KEPT` kinds over the number of parameters: "weights" → 4.0."""
        return sum(getattr(self, kind).values()) / self.parameters

    @property
    def activation_bytes(self) -> int:
        """Bytes that autograd saved for the backward pass."""
        return sum(self.activations.values())

    def cells(self) -> list[str]:
        """Return the row as text, in the order of `RecipeTable.HEAD`."""
        kinds = [getattr(self, kind) for kind in KEPT]
        return [
            self.label,
            *map(formats_text, [*kinds, self.batch_norm]),
            f"{bytes_text(self.activation_bytes)}: {formats_text(self.activations)}",
            f"{self.bytes_per_parameter:.1f}",
            self.scaling,
        ]


@dataclass(frozen=True, repr=False)
class RecipeTable(Page):
    """Several recipes' rows, as a table."""

    HEAD = (
        "recipe|weights|master|gradients|optimizer state|batch norm|activations|"
        "bytes per parameter|loss scale"
    )
    rows: tuple[Measured, ...]

    def __getitem__(self, name: str) -> Measured:
        known = {row.name: row for row in self.rows}
        if name not in known:
            raise KeyError(f"{name!r} was not measured: choose one of {', '.join(known)}")
        return known[name]

    def cells(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        return [self.HEAD.split("|"), *(row.cells() for row in self.rows)]

    def blocks(self) -> Iterator[Block]:
        yield Table(self.cells())


def measure(
    recipe: AnyRecipe,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss_fn: LossFn = nn.functional.cross_entropy,
    make_optimizer: MakeOptimizer = torch.optim.Adam,
) -> Measured:
    """Train a copy of the model under a recipe, and measure a step that is not the first.

    Gradients are counted as autograd accumulates them; activations are what autograd saves, except
    weights and their cast copies. The optimizer's step counters are left out.

    Raises RuntimeError if all of the first steps were skipped.
    Example: measure(O2(), DigitsResNet(32), x, y).gradients → {"fp16": …, "fp32": …}
    """
    session, weights, masters = _prepared(recipe, model, make_optimizer, loss_fn)
    gradients: Counter[str] = Counter()
    at_step = 0

    def note_gradient(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradients[short(parameter.grad.dtype)] += tensor_bytes([parameter.grad])

    def note_step(*_: Any) -> None:
        nonlocal at_step
        kept = [*weights, *masters]
        kept += [tensor.grad for tensor in kept if tensor.grad is not None]
        at_step = max(at_step, tensor_bytes([*kept, *_state(session)]))

    with recipe.precision(), ExitStack() as stack:
        _step_until_not_skipped(session, inputs, targets)
        skipped = session.skipped
        watch = _DtypeWatch(session.model, [*_state(session), inputs, targets])
        for weight in weights:
            if weight.requires_grad:
                stack.callback(weight.register_post_accumulate_grad_hook(note_gradient).remove)
        stack.callback(session.optimizer.register_step_pre_hook(note_step).remove)
        stack.enter_context(watch)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack))
        session.step(inputs, targets)
    norms = [module for module in session.model.modules() if isinstance(module, _BatchNorm)]
    statistics = [b for norm in norms for b in norm.buffers() if b.is_floating_point()]
    return Measured(
        name=recipe.name,
        label=recipe.label,
        parameters=sum(weight.numel() for weight in weights),
        weights=by_format(weights),
        master=by_format(masters),
        gradients=dict(gradients),
        optimizer_state=by_format(_state(session)),
        batch_norm=by_format(statistics),
        activations=watch.by_format(),
        cast_copies=watch.cast_copies.peak,
        at_step=at_step,
        scaling=_scaling(session),
        skipped=skipped,
    )


def measure_all(
    recipes: Iterable[AnyRecipe], model: nn.Module, *batch: Tensor, **options: Any
) -> RecipeTable:
    """Measure several recipes on copies of the same model and the same batch."""
    return RecipeTable(tuple(measure(recipe, model, *batch, **options) for recipe in recipes))


def by_format(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return bytes by format, most first: [fp16 of 3, fp32 of 1] → {"fp16": 6, "fp32": 4}."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(short(tensor.dtype), []).append(tensor)
    return _largest_first({name: tensor_bytes(group) for name, group in groups.items()})


def formats_text(kind: Bytes) -> str:
    """Write which formats a kind has: {"fp16": 90, "fp32": 10} → "fp16 + fp32"."""
    return " + ".join(kind) or "–"


def _largest_first(sizes: dict[str, int]) -> dict[str, int]:
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _state(session: Stepper) -> list[Tensor]:
    values = (value for state in session.optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor) and value.dim() > 0]


def _scaling(session: Stepper) -> str:
    if session.scaler is None:
        return "none"
    kind = "static" if isinstance(session.scaler, StaticScaler) else "dynamic"
    return f"{kind}, {session.scale:,g}"


def _prepared(
    recipe: AnyRecipe, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn
) -> tuple[Stepper, list[nn.Parameter], list[Tensor]]:
    """Return a session of a copy of the model, its weights, and the optimizer's masters."""
    session = recipe.prepare(copy.deepcopy(model), make_optimizer, loss_fn)
    masters = masters_of(session.model, session.optimizer)
    return session, list(session.model.parameters()), masters


def _step_until_not_skipped(session: Stepper, inputs: Tensor, targets: Tensor) -> None:
    for done in range(1, _MOST_STEPS + 1):
        session.step(inputs, targets)
        if session.skipped < done:
            return
    raise RuntimeError(
        f"the scaler skipped the first {_MOST_STEPS} steps, so there is no step to measure: the "
        f"loss or a gradient is inf or NaN at any scale. Look at one batch in fp32 first"
    )


class _DtypeWatch(StepWatch):
    """A `StepWatch` that notes the bytes that autograd saves, by format."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._sizes: dict[tuple[str, int], int] = {}

    def pack(self, tensor: Tensor) -> Saved:
        saved = super().pack(tensor)
        if saved[1]:
            for storage in storages([tensor]):
                self._sizes[short(tensor.dtype), storage._cdata] = storage.nbytes()
        return saved

    def by_format(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for (name, _), size in self._sizes.items():
            sizes[name] += size
        return _largest_first(sizes)


@dataclass(frozen=True)
class UpdateReach:
    """What one step changed, in shares from 0 to 1.

    weights: the model's weights that are another finite number after the step
    masters: the same of the optimizer's own copies; None for a recipe without them
    broken:  the model's weights that are inf or NaN after the step
    skipped: how many steps the scaler skipped before this one
    """

    weights: float
    masters: float | None
    broken: float
    skipped: int


def update_reach(
    recipe: AnyRecipe,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss_fn: LossFn = nn.functional.cross_entropy,
    make_optimizer: MakeOptimizer = torch.optim.Adam,
) -> UpdateReach:
    """Train a copy of the model until a step is not skipped; compare the weights before and after.

    Raises RuntimeError if all of the first steps were skipped.
    Example: update_reach(PURE_BF16(), model, x, y, make_optimizer=make_sgd).weights → 0.2
    """
    session, weights, masters = _prepared(recipe, model, make_optimizer, loss_fn)
    before, masters_before = _flat(weights), _flat(masters) if masters else None
    with recipe.precision():  # a skipped step leaves the weights alone
        _step_until_not_skipped(session, inputs, targets)
    after = _flat(weights)
    return UpdateReach(
        weights=_changed(before, after),
        masters=None if masters_before is None else _changed(masters_before, _flat(masters)),
        broken=(~after.isfinite()).double().mean().item(),
        skipped=session.skipped,
    )


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def _changed(before: Tensor, after: Tensor) -> float:
    return ((before != after) & after.isfinite()).double().mean().item()
