"""Find 16-bit weights that lose their updates: an fp32 copy of them gets the same gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.graphs import LOW_DTYPES
from amp_course.watching.weights import weights_of

_MOST = 20_000_000  # weights of an optimizer that gets a twin


@dataclass(frozen=True)
class LostUpdates:
    """How far 16-bit weights `moved` in some steps, and their fp32 twins, which move as `wanted`.

    still: share of the weights that never moved although their twins did
    plain: the optimizer is one of torch's, and its state is in 16 bits too
    """

    dtype: torch.dtype
    steps: int
    moved: float
    wanted: float
    still: float
    plain: bool = False


class Twin:
    """An fp32 copy of an optimizer and its 16-bit weights; Kahan summation keeps up with it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.twin = copy.deepcopy(optimizer)
        # A scheduler has put its own `step` there, which steps the original optimizer.
        vars(self.twin).pop("step", None)
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # weight, twin, their first value
        for weight, double in zip(weights_of(optimizer), weights_of(self.twin), strict=True):
            double.data = double.data.float()
            state = self.twin.state.get(double, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dtype in LOW_DTYPES:
                    state[key] = value.float()
            self.pairs.append((weight, double, double.detach().clone()))

    @staticmethod
    def is_wanted(optimizer: torch.optim.Optimizer) -> bool:
        """Return True if an optimizer steps 16-bit weights, and not too many."""
        weights = weights_of(optimizer)
        low = any(p.dtype in LOW_DTYPES for p in weights)
        return low and sum(map(Tensor.numel, weights)) <= _MOST

    @torch.no_grad()
    def before(self) -> None:
        for weight, double, _ in self.pairs:
            double.grad = None if weight.grad is None else weight.grad.detach().to(double.dtype)

    def after(self) -> None:
        for group, other in zip(self.optimizer.param_groups, self.twin.param_groups, strict=True):
            other.update({key: value for key, value in group.items() if key != "params"})
        step: Any = type(self.twin).step
        step(self.twin)
        self.steps += 1

    @torch.no_grad()
    def lost(self) -> LostUpdates | None:
        """Compare how far 16-bit weights and their twins moved; None if there are none."""
        pairs = [one for one in self.pairs if one[0].dtype in LOW_DTYPES]
        low = [(w.detach().float(), d.detach(), began) for w, d, began in pairs]
        if not low:
            return None
        wanted = math.hypot(*(float((d - began).double().norm()) for _, d, began in low))
        moved = math.hypot(*(float((w - began).double().norm()) for w, _, began in low))
        still = sum(int(((w == began) & (d != began)).sum()) for w, d, began in low)
        state = [one for w, _, _ in self.pairs for one in self.optimizer.state.get(w, {}).values()]
        dtypes = {one.dtype for one in state if isinstance(one, Tensor) and one.dim()}
        plain = type(self.optimizer).__module__.startswith("torch.optim.")
        plain &= dtypes <= {*LOW_DTYPES} and len(low) == len(self.pairs)
        share = still / sum(w.numel() for w, _, _ in low)
        return LostUpdates(pairs[0][0].dtype, self.steps, moved, wanted, share, plain)


class Fp32Shadow:
    """The twins of all optimizers with 16-bit weights: a listener of taps that steps them along.

    aside: a context for what is not part of the training
    """

    def __init__(self, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._aside, self._busy = aside, False
        # By the id of an optimizer; None for one without a twin
        self._of: dict[int, Twin | None] = {}

    def step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) not in self._of and not self._busy:
            self._of[id(optimizer)] = None
            with self._aside(), suppress(Exception):
                self._of[id(optimizer)] = Twin(optimizer) if Twin.is_wanted(optimizer) else None
        self._follow(optimizer, Twin.before)

    def step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._follow(optimizer, Twin.after)

    def _follow(self, optimizer: torch.optim.Optimizer, move: Callable[[Twin], None]) -> None:
        twin = self._of.get(id(optimizer))
        if twin is None or self._busy:
            return
        self._busy = True  # the twin's own step calls the hooks too
        try:
            with self._aside():
                move(twin)
        except Exception:
            self._of[id(optimizer)] = None
        finally:
            self._busy = False

    def lost(self) -> Iterator[LostUpdates]:
        """Yield how far the weights of each optimizer and their twins moved."""
        for twin in self._of.values():
            if twin is not None and (lost := twin.lost()) is not None:
                yield lost
