"""The records of a training: its live objects, and the events of one update in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.watching.gradients import Gradient, GradSummary, Layout
from amp_course.watching.origins import Line
from amp_course.watching.weights import weights_of


def index_of(wanted: Any, objects: Sequence[Any]) -> int:
    """Return the index of this very object in a list, -1 if it is not there."""
    return next((n for n, one in enumerate(objects) if one is wanted), -1)


@dataclass(frozen=True)
class Graph:
    """What the graph of a loss shows: which ops ran in 16 bits, and what cannot be inspected."""

    low: frozenset[torch.dtype] = frozenset()  # the 16-bit dtypes in it
    casts: bool = False  # some op cast to 16 bits, as autocast does
    opaque: bool = False  # it has compiled or hand-written functions
    loss_ops: tuple[tuple[str, torch.dtype], ...] = ()  # loss functions that ran in 16 bits
    late_ops: tuple[tuple[str, torch.dtype], ...] = ()  # sums and the like, after the last region
    fp32_matmuls: int = 0  # ops that ran in fp32, and that autocast runs in 16 bits
    factor: float = 1.0  # by which the loss is multiplied at its end
    softmax_twice: bool = False  # the input of a log-softmax is a softmax
    single_class: bool = False  # a log-softmax is over a single number
    ratio: float = math.nan  # how far exp(a - b), PPO's ratio of probabilities, is from 1 at most


@dataclass(eq=False)
class Event:
    """Something that happened: in micro-batch number `call`, at the user's `line`."""

    call: int
    line: Line | None = field(default=None, kw_only=True)


@dataclass(eq=False)
class Backward(Event):
    """A call of `backward()`.

    before:  for each slot, what lay in `.grad` before it
    wanted:  for each slot, which parameters required a gradient
    arrived: what it added, by the slot that got something
    """

    in_autocast: bool = False
    dtype: torch.dtype | None = None  # of the loss
    value: float = math.nan  # of the loss, still scaled
    graph: Graph = Graph()
    before: list[GradSummary] = field(default_factory=list)
    wanted: list[tuple[bool, ...]] = field(default_factory=list)
    arrived: dict[int, Gradient] = field(default_factory=dict)
    moved: bool = False  # the weights have changed since the update began
    complete: bool = True  # `arrived` is all that it added: no hook in it stepped and cleared
    scale: float | None = None  # that the loss carries for certain; a script's observer knows it
    scaler: int = -1  # that scaled it; −1 if unknown


@dataclass(eq=False)
class Call(Event):
    """A call: `name` is "scale", "unscale", "scaler.step", "update" or "scheduler".

    number: of the optimizer or the scheduler; -1 for an unknown one
    empty:  was there no gradient before "unscale" or "scaler.step"?
    """

    name: str
    number: int = -1
    scaler: int = -1
    empty: bool = False
    closure: bool = False  # "scaler.step" got one


@dataclass(eq=False)
class Region(Event):
    """An autocast region that was entered, for a kind of device.

    inside: autocast was already on, for the device of the parameters
    casts:  matmuls in it ran in 16 bits, as far as they were counted
    """

    device: str
    enabled: bool
    dtype: torch.dtype
    inside: bool = False
    casts: bool = False


@dataclass(eq=False)
class Step(Event):
    """A step of an optimizer.

    gradient: by which it moved the weights, unscaled: after what its hooks, or the `step` of a
              subclass, did to `.grad`
    at_call:  what lay in `.grad` when `step` was called, unscaled
    """

    number: int
    gradient: Gradient
    rate: float = 1.0  # the highest learning rate of its groups
    other: str = ""  # the class of the optimizer, if it is not the one that was passed
    closure: bool = False
    by_scaler: bool = False
    optimizer: Any = None
    rest: float = 0.0  # the norm of all other gradients at that moment

    def __post_init__(self) -> None:
        self.at_call = self.gradient

    def replace(self, gradient: Gradient, which: Sequence[bool]) -> None:
        """Correct the gradients of some parameters."""
        if any(which):
            self.gradient = self.gradient.replaced(gradient, which)


@dataclass(eq=False)
class Update:
    """What one update did: a group of calls, or several until every optimizer has stepped.

    changed:    for each slot: did a weight change?
    corrupted:  for each slot: is a weight no longer finite?
    share_left: by slot, the share of a step that is left in the weights at the end
    modes:      was a layer in training mode at the first backward pass?
    """

    scales: list[float]
    events: list[Event] = field(default_factory=list)
    calls: int = 0
    scales_after: list[float] = field(default_factory=list)
    references: list[list[Gradient]] = field(default_factory=list)  # of the loss
    reference_error: str = ""
    changed: list[bool] = field(default_factory=list)
    corrupted: list[bool] = field(default_factory=list)
    share_left: dict[int, float] = field(default_factory=dict)
    left_open: bool = False  # autocast is still on
    differentiated: int = 0  # runs of the autograd engine
    second_order: bool = False  # one of them made a graph of its own
    returned: str = ""  # the class of what the last call returned
    scalers_made: int = 0
    # Loss functions that were called on 16-bit tensors without autocast
    losses_outside: list[tuple[str, torch.dtype]] = field(default_factory=list)
    error: BaseException | None = None
    modes: dict[nn.Module, bool] = field(default_factory=dict)

    def of(self, kind: type[Any]) -> Iterator[Any]:
        return (event for event in self.events if isinstance(event, kind))

    @property
    def backwards(self) -> list[Backward]:
        return list(self.of(Backward))

    def steps(self, number: int | None = None) -> list[Step]:
        """Return the steps of one optimizer, or of all that were passed."""
        steps = (step for step in self.of(Step) if step.number >= 0)
        return [step for step in steps if number in (None, step.number)]

    def called(self, name: str, number: int | None = None) -> list[Call]:
        calls = (call for call in self.of(Call) if call.name == name)
        return [call for call in calls if number in (None, call.number)]

    def arrivals(self, number: int) -> list[Gradient]:
        """Return what each backward pass added to the gradients of a slot."""
        return [one.arrived[number] for one in self.backwards if number in one.arrived]

    @property
    def finite(self) -> bool:
        """Is every gradient that arrived finite?"""
        return all(one.finite for event in self.backwards for one in event.arrived.values())


@dataclass(frozen=True)
class Intervention:
    """What is done to gradients as they arrive.

    factor:     they are multiplied by it
    inject_inf: pairs (number of a backward pass, slot): one gradient in each gets a `bad` number
    last:       in the slot's last parameter instead of its first
    """

    factor: float = 1.0
    inject_inf: frozenset[tuple[int, int]] = frozenset()
    bad: float = math.inf
    last: bool = False


@dataclass
class Training:
    """The live objects of a training.

    loss:      one function, or one for each optimizer
    hint_last: the step takes `last=`
    modes:     the modes that the step sets its layers to
    slots:     the parameters of each optimizer, then those of the models that are in none
    """

    train_step: Callable[..., Any]
    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[torch.amp.GradScaler]
    schedulers: list[Any]
    loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    hint_last: bool = False
    modes: Mapping[nn.Module, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups = [weights_of(optimizer) for optimizer in self.optimizers]
        known = {id(p) for group in groups for p in group}
        rest = [p for key, p in self.model_parameters.items() if key not in known]
        self.slots = [Layout(group) for group in [*groups, rest]]

    def has_other_parameters(self) -> bool:
        """Return True if an optimizer has lost parameters since then, or a shape has changed."""
        for slot, optimizer in zip(self.slots[:-1], self.optimizers, strict=True):
            if not set(map(id, slot.parameters)) <= set(map(id, weights_of(optimizer))):
                return True
        return any([p.shape for p in slot.parameters] != slot.shapes for slot in self.slots)

    @property
    def numbers(self) -> range:
        """The numbers of the optimizers, and of their slots."""
        return range(len(self.optimizers))

    @property
    def rest(self) -> int:
        """The number of the slot whose parameters are in no optimizer."""
        return len(self.optimizers)

    @property
    def parameters(self) -> list[Tensor]:
        return [p for slot in self.slots for p in slot.parameters]

    @property
    def model_parameters(self) -> dict[int, Tensor]:
        return {id(p): p for model in self.models for p in model.parameters()}

    def originals(self, number: int) -> list[int] | None:
        """Return, for an optimizer of fp32 masters, the place in the last slot of each original.

        -1 for a parameter that is the model's own; None if the others do not match the model's one
        by one.
        """
        own, last = self.model_parameters, self.slots[-1]
        left = (n for n, p in enumerate(last.parameters) if p.requires_grad)
        places = []
        for p in self.slots[number].parameters:
            place = -1 if id(p) in own else next(left, None)
            if place is None or (place >= 0 and last.parameters[place].shape != p.shape):
                return None
            places.append(place)
        whole = last.stride == self.slots[number].stride == 1
        return places if whole and next(left, None) is None else None

    def current_modes(self) -> dict[nn.Module, bool]:
        return {module: module.training for model in self.models for module in model.modules()}

    @property
    def device_type(self) -> str:
        return next((p.device.type for p in self.parameters), "cpu")

    def scales(self) -> list[float]:
        """Return the current loss scales, one for each scaler."""
        return [float(scaler.get_scale()) for scaler in self.scalers]

    def set_scales(self, scales: Sequence[float]) -> None:
        """Set the loss scales, whether or not the scalers have made their tensors."""
        for scaler, scale in zip(self.scalers, scales, strict=True):
            scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
