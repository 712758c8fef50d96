"""What is watched and written down: the live training, and the events of one update in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.watching.origins import Line

_MOST = 2**24  # numbers of a gradient that are kept; of a larger one every second, third …


def weights_of(optimizer: Any) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class Layout:
    """How gradients lie in one flat float32 vector: every number, or a sample of a large model's.

    slices: where each parameter lies
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.shapes = [p.shape for p in self.parameters]
        self.stride = max(1, math.ceil(sum(p.numel() for p in self.parameters) / _MOST))
        self.slices: list[slice] = []
        self.size = 0
        for p in self.parameters:
            begin, self.size = self.size, self.size + math.ceil(p.numel() / self.stride)
            self.slices.append(slice(begin, self.size))

    def flat(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Lay tensors out, one for each parameter; None gives zeros."""
        devices = {t.device for t in tensors if t is not None}
        if self.stride == 1 == len(devices) and all(map(_is_plain, tensors)):
            return torch.cat([t.detach().reshape(-1) for t in tensors if t is not None])
        device = self.parameters[0].device if self.parameters else "cpu"
        flat = torch.zeros(self.size, device=device)
        for tensor, place in zip(tensors, self.slices, strict=True):
            if tensor is not None:
                flat[place] = _dense(tensor).reshape(-1)[:: self.stride].float()
        return flat

    def gradient(self, tensors: Sequence[Tensor | None]) -> Gradient:
        norms = None
        if self.stride > 1:
            each = [0.0 if t is None else float(_dense(t).float().norm()) for t in tensors]
            norms = torch.tensor(each, device="cpu")
        return Gradient(self, self.flat(tensors), tuple(t is not None for t in tensors), norms)

    def now(self) -> Gradient:
        return self.gradient([p.grad for p in self.parameters])

    def copies(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype == torch.float32 and tensor.layout == torch.strided


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradients of one optimizer: `values` is flat, float32, 0 for a parameter without one.

    present: for each parameter, is there a gradient?
    """

    layout: Layout
    values: Tensor
    present: tuple[bool, ...]
    _norms: Tensor | None = None  # of a sampled one

    @cached_property
    def empty(self) -> bool:
        """No gradient at all, or zeros only."""
        return not bool(self.norms.any())

    @cached_property
    def finite(self) -> bool:
        return bool(self.values.isfinite().all()) and bool(self.norms.isfinite().all())

    @cached_property
    def norms(self) -> Tensor:
        if self._norms is not None:
            return self._norms
        parts = [self.values[place] for place in self.layout.slices]
        if not parts:
            return torch.zeros(0, device="cpu")
        return torch.stack(torch._foreach_norm(parts)).cpu() * math.sqrt(self.layout.stride)

    @cached_property
    def norm(self) -> float:
        return self.norms.double().norm().item()

    def replaced(self, other: Gradient, which: Sequence[bool]) -> Gradient:
        """Return these gradients, with those of some parameters from another record."""
        chosen = [n for n, wanted in enumerate(which) if wanted]
        values, norms, present = self.values.clone(), None, list(self.present)
        for n in chosen:
            values[self.layout.slices[n]] = other.values[self.layout.slices[n]]
            present[n] = other.present[n]
        if self._norms is not None and other._norms is not None:
            norms = self._norms.clone()
            norms[chosen] = other._norms[chosen]
        return Gradient(self.layout, values, tuple(present), norms)

    def __mul__(self, factor: float) -> Gradient:
        norms = None if self._norms is None else self._norms * factor
        return Gradient(self.layout, self.values * factor, self.present, norms)


@dataclass(frozen=True)
class GradSummary:
    """What lay in the gradients of one slot at a moment, in short."""

    empty: bool = True
    finite: bool = True
    norm: float = 0.0


@dataclass(frozen=True)
class Graph:
    """What the graph of a loss tells: which ops gave 16 bits, and what cannot be looked into."""

    low: frozenset[torch.dtype] = frozenset()  # the 16-bit dtypes met
    casts: bool = False  # some op cast to 16 bits, as autocast does
    opaque: bool = False  # compiled or hand-written functions
    loss_ops: tuple[tuple[str, torch.dtype], ...] = ()  # loss functions that ran in 16 bits
    late_ops: tuple[tuple[str, torch.dtype], ...] = ()  # sums and the like, after the last region
    fp32_matmuls: int = 0  # ops that autocast runs in 16 bits, and that ran in fp32
    factor: float = 1.0  # by which the loss is multiplied at its end
    softmax_twice: bool = False  # the log of a softmax is taken of a softmax
    single_class: bool = False  # a log-softmax is taken over one number
    ratio: float = math.nan  # how far exp(a - b), PPO's ratio of probabilities, is from 1 at most


@dataclass(eq=False)
class Event:
    """Something that happened: in the micro-batch of number `call`, by the reader's `line`."""

    call: int
    line: Line | None = field(default=None, kw_only=True)


@dataclass(eq=False)
class Backward(Event):
    """A call of `backward()`.

    before:  what lay in `.grad` before it, for each slot
    wanted:  for each slot, which parameters required a gradient
    arrived: what it added, for each slot that got something
    """

    in_autocast: bool = False
    dtype: torch.dtype | None = None  # of the loss
    value: float = math.nan  # of the loss, still scaled
    graph: Graph = Graph()
    before: list[GradSummary] = field(default_factory=list)
    wanted: list[tuple[bool, ...]] = field(default_factory=list)
    arrived: dict[int, Gradient] = field(default_factory=dict)
    moved: bool = False  # the weights are not those that the update began with
    complete: bool = True  # the hooks in it did not step and clear: `arrived` is all that it added


@dataclass(eq=False)
class Call(Event):
    """A call: `name` is "scale", "unscale", "scaler.step", "update" or "scheduler".

    number: of the optimizer, or of the scheduler; -1 for one that is not known
    empty:  before "unscale" and "scaler.step", was there no gradient?
    """

    name: str
    number: int = -1
    scaler: int = -1
    empty: bool = False
    closure: bool = False  # "scaler.step" was given one


@dataclass(eq=False)
class Region(Event):
    """An autocast region that was entered, for a kind of device.

    inside: of a region that is on, for the device of the parameters
    casts:  matmuls ran in 16 bits in it, as far as they were counted
    """

    device: str
    enabled: bool
    dtype: torch.dtype
    inside: bool = False
    casts: bool = False


@dataclass(eq=False)
class Step(Event):
    """A step of an optimizer.

    gradient: by which it moved the weights, unscaled: what its hooks, and a `step` that goes on to
              torch's own, did to `.grad` before is in it
    given:    what lay in `.grad` when `step` was called, unscaled
    """

    number: int
    gradient: Gradient
    rate: float = 1.0  # the highest learning rate of its groups
    other: str = ""  # the kind of optimizer, if it is not the one that was passed
    closure: bool = False
    in_backward: bool = False
    by_scaler: bool = False
    optimizer: Any = None
    rest: float = 0.0  # the norm of all other gradients at that moment

    def __post_init__(self) -> None:
        self.given = self.gradient

    def replace(self, gradient: Gradient, which: Sequence[bool]) -> None:
        """Correct what is known of some parameters' gradients."""
        if any(which):
            self.gradient = self.gradient.replaced(gradient, which)


@dataclass(eq=False)
class Update:
    """What one update did: a group of calls, or several until each optimizer has stepped."""

    scales: list[float]
    events: list[Event] = field(default_factory=list)
    calls: int = 0
    scales_after: list[float] = field(default_factory=list)
    references: list[list[Gradient]] = field(default_factory=list)  # of the loss
    reference_error: str = ""
    changed: list[bool] = field(default_factory=list)  # for each slot: did a weight change
    spoilt: list[bool] = field(default_factory=list)  # for each slot: is a weight not finite now
    left: dict[int, float] = field(default_factory=dict)  # slot → share of a step that stays
    left_open: bool = False  # autocast is still on
    differentiated: int = 0  # runs of the autograd engine
    second_order: bool = False  # one of them made a graph of its own
    returned: str = ""  # the kind of what the last call returned
    scalers_made: int = 0
    # Loss functions that were called on 16 bits without autocast
    losses_outside: list[tuple[str, torch.dtype]] = field(default_factory=list)
    error: BaseException | None = None
    # Was a layer in training mode at the first backward pass?
    modes: dict[nn.Module, bool] = field(default_factory=dict)

    def of(self, kind: type[Any]) -> Iterator[Any]:
        return (event for event in self.events if isinstance(event, kind))

    @property
    def backwards(self) -> list[Backward]:
        return list(self.of(Backward))

    def steps(self, number: int | None = None) -> list[Step]:
        """The steps of one optimizer, or of all that were passed."""
        steps = (one for one in self.of(Step) if one.number >= 0)
        return [one for one in steps if number in (None, one.number)]

    def called(self, name: str, number: int | None = None) -> list[Call]:
        return [one for one in self.of(Call) if one.name == name and number in (None, one.number)]

    @property
    def finite(self) -> bool:
        """Is every gradient that arrived finite?"""
        return all(one.finite for event in self.backwards for one in event.arrived.values())


@dataclass(frozen=True)
class Intervention:
    """What is done to gradients as they arrive.

    factor:     they are multiplied by it
    inject_inf: (number of a backward pass, slot) → one of its gradients gets a `bad` number
    last:       in the slot's last parameter instead of its first
    """

    factor: float = 1.0
    inject_inf: frozenset[tuple[int, int]] = frozenset()
    bad: float = math.inf
    last: bool = False


@dataclass
class Training:
    """The live objects. A slot is an optimizer's parameters, the last what only the models hold."""

    train_step: Callable[..., Any]
    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[torch.amp.GradScaler]
    schedulers: list[Any]
    # A sequence has one for each optimizer
    loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    hint_last: bool = False  # the step takes `last=`
    # What the step sets its layers to
    modes: Mapping[nn.Module, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = [weights_of(one) for one in self.optimizers]
        known = {id(p) for one in held for p in one}
        rest = [p for name, p in self.model_parameters.items() if name not in known]
        self.slots = [Layout(one) for one in [*held, rest]]

    def has_other_parameters(self) -> bool:
        """Return True if an optimizer has lost parameters since, or some have another shape."""
        for slot, optimizer in zip(self.slots[:-1], self.optimizers, strict=True):
            if not set(map(id, slot.parameters)) <= set(map(id, weights_of(optimizer))):
                return True
        return any([p.shape for p in slot.parameters] != slot.shapes for slot in self.slots)

    @property
    def parameters(self) -> list[Tensor]:
        return [p for slot in self.slots for p in slot.parameters]

    @property
    def model_parameters(self) -> dict[int, Tensor]:
        return {id(p): p for model in self.models for p in model.parameters()}

    def twins(self, number: int) -> list[int] | None:
        """Return, for fp32 masters, the place in the last slot of what each is a copy of.

        -1 for a parameter of the model's own; None if the others do not match the model's, one by
        one.
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
        """The current loss scales, one for each scaler that is on."""
        return [float(one.get_scale()) for one in self.scalers]

    def set_scales(self, scales: Sequence[float]) -> None:
        """Set the loss scales, whether or not the scalers have made their tensors."""
        for scaler, scale in zip(self.scalers, scales, strict=True):
            scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
