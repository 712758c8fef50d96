"""Measure what a recipe keeps in which dtype, from a live training step:
nothing in the table is written by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.bits.formats import find_format
from amp_course.kit.memory import bytes_text, masters_of, tensor_bytes
from amp_course.kit.report import Block, Page, Table
from amp_course.kit.watch import Saved, StepWatch, storages
from amp_course.loop.recipe import AnyRecipe
from amp_course.loop.stepper import LossFn, MakeOptimizer, Stepper
from amp_course.recipes.training.scalers import StaticScaler

# of a kind of tensors, by the name of their format: {"fp16": 153600, "fp32": 2560}
Bytes = Mapping[str, int]
_MOST_STEPS = (
    30  # before the optimizer must have made its state: a scale that starts too high skips some
)


@dataclass(frozen=True)
class Measured:
    """What one recipe held in one step: bytes by format, for each kind of tensor.

    parameters:   how many numbers the model learns
    at_step:      the most bytes of weights, masters, gradients and state together as the optimizer
                  steps
    cast_copies:  bytes of low-precision weights that autocast made and kept
    skipped:      steps that the scaler skipped before one went through
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
    def held(self) -> int:
        """Bytes of weights, masters, gradients and optimizer state,
        when backward has just ended.
        """
        return sum(
            sum(kind.values())
            for kind in (self.weights, self.master, self.gradients, self.optimizer_state)
        )

    @property
    def bytes_per_parameter(self) -> float:
        """`held` over the number of parameters: 16.0 for fp32 with Adam."""
        return self.held / self.parameters

    @property
    def activation_bytes(self) -> int:
        """Bytes that autograd saved for the backward pass."""
        return sum(self.activations.values())

    def cells(self) -> list[str]:
        """Return the row as text, in the order of `RecipeTable.HEAD`."""
        kinds = (self.weights, self.master, self.gradients, self.optimizer_state, self.batch_norm)
        return [
            self.label,
            *map(formats_text, kinds),
            f"{bytes_text(self.activation_bytes)}: {formats_text(self.activations)}",
            f"{self.bytes_per_parameter:.1f}",
            self.scaling,
        ]


@dataclass(frozen=True, repr=False)
class RecipeTable(Page):
    """Several recipes' rows, as a table."""

    HEAD = (
        "recipe",
        "weights",
        "master",
        "gradients",
        "optimizer state",
        "batch norm",
        "activations",
        "bytes per parameter",
        "loss scale",
    )
    rows: tuple[Measured, ...]

    def __getitem__(self, name: str) -> Measured:
        """Return the row of a recipe: table["o2"]."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"{name!r} was not measured: choose one of {', '.join(row.name for row in self.rows)}"
        )

    def cells(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        return [list(self.HEAD), *(row.cells() for row in self.rows)]

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
    """Train a copy of the model under a recipe, and look at a step that is neither the first nor
    skipped.

    How it counts: gradients when autograd has accumulated them; activations are what autograd
    saves, but for weights and their cast copies; the optimizer's counters of steps, a number for
    each tensor, are left out.

    Raises RuntimeError if every one of the first steps was skipped.
    Example: measure(O2(), DigitsResNet(32), x, y).gradients → {"fp16": …, "fp32": …}
    """
    session = recipe.prepare(copy.deepcopy(model), make_optimizer, loss_fn)
    with recipe.precision():
        until_a_step_counts(session, inputs, targets)
        seen = _Seen(session, [inputs, targets])
        skipped = session.skipped
        with seen.watching():
            session.step(inputs, targets)
    norms = [module for module in session.model.modules() if isinstance(module, _BatchNorm)]
    statistics = [b for norm in norms for b in norm.buffers() if b.is_floating_point()]
    return Measured(
        name=recipe.name,
        label=recipe.label,
        parameters=sum(parameter.numel() for parameter in session.model.parameters()),
        weights=by_format(session.model.parameters()),
        master=by_format(masters_of(session.model, session.optimizer)),
        gradients=dict(seen.gradients),
        optimizer_state=by_format(_state(session)),
        batch_norm=by_format(statistics),
        activations=dict(seen.activations.by_format()),
        cast_copies=seen.activations.cast_copies.peak,
        at_step=seen.at_step,
        scaling=_scaling(session),
        skipped=skipped,
    )


def measure_all(
    recipes: Iterable[AnyRecipe], model: nn.Module, *batch: Tensor, **options: Any
) -> RecipeTable:
    """Measure several recipes on copies of the same model and the same batch."""
    return RecipeTable(tuple(measure(recipe, model, *batch, **options) for recipe in recipes))


def by_format(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes of some tensors by format, the largest share first:
    [fp16 of 3, fp32 of 1] → {"fp16": 6, "fp32": 4}.
    """
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(_format_name(tensor.dtype), []).append(tensor)
    return _largest_first({name: tensor_bytes(group) for name, group in groups.items()})


def formats_text(kind: Bytes) -> str:
    """Write which formats a kind has, the largest share first: {"fp16": 90, "fp32":
    10} → "fp16 + fp32".
    """
    return " + ".join(kind) or "–"


def _format_name(dtype: torch.dtype) -> str:
    return find_format(dtype).name if dtype.is_floating_point else str(dtype).removeprefix("torch.")


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


def until_a_step_counts(session: Stepper, inputs: Tensor, targets: Tensor) -> None:
    """Step until the scaler lets one through; RuntimeError, with the cause, if it lets none."""
    for done in range(1, _MOST_STEPS + 1):
        session.step(inputs, targets)
        if session.skipped < done:
            return
    raise RuntimeError(
        f"the scaler skipped the first {_MOST_STEPS} steps, so there is no step to measure: the "
        f"loss or a gradient is inf or "
        "NaN at any scale. Look at one batch in fp32 first"
    )


class _DtypeWatch(StepWatch):
    """A `StepWatch` that notes in which format autograd saves what."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._sizes: dict[tuple[str, int], int] = {}

    def pack(self, tensor: Tensor) -> Saved:
        saved = super().pack(tensor)
        if saved[1]:
            for storage in storages([tensor]):
                self._sizes[_format_name(tensor.dtype), storage._cdata] = storage.nbytes()
        return saved

    def by_format(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for (name, _), size in self._sizes.items():
            sizes[name] = sizes.get(name, 0) + size
        return _largest_first(sizes)


@dataclass
class _Seen:
    """What hooks see of one step."""

    session: Stepper
    batch: list[Tensor]
    gradients: dict[str, int] = field(default_factory=dict)
    at_step: int = 0

    def __post_init__(self) -> None:
        self.activations = _DtypeWatch(self.session.model, [*_state(self.session), *self.batch])

    def watching(self) -> ExitStack:
        """Return a context with all hooks in place."""
        stack = ExitStack()
        for parameter in self.session.model.parameters():
            if parameter.requires_grad:
                stack.callback(
                    parameter.register_post_accumulate_grad_hook(self._note_gradient).remove
                )
        stack.callback(self.session.optimizer.register_step_pre_hook(self._note_step).remove)
        stack.enter_context(self.activations)
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(self.activations.pack, self.activations.unpack)
        )
        return stack

    def _note_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        name = _format_name(parameter.grad.dtype)
        self.gradients[name] = self.gradients.get(name, 0) + tensor_bytes([parameter.grad])

    def _note_step(self, *_: Any) -> None:
        held = [
            *self.session.model.parameters(),
            *masters_of(self.session.model, self.session.optimizer),
        ]
        gradients = [tensor.grad for tensor in held if tensor.grad is not None]
        self.at_step = max(self.at_step, tensor_bytes([*held, *gradients, *_state(self.session)]))
