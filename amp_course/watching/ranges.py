"""Watch a model while it trains: every tenth forward and backward pass is measured."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from amp_course.kit.compiled import uncompiled, uncompiled_run
from amp_course.kit.report import Block, Page, Table
from amp_course.kit.tensors import short, tensors_in
from amp_course.watching import taps
from amp_course.watching.readings import KINDS, Kind, Ranges, Reading, read_range

_MOST = 200_000  # readings that are kept; then the oldest are dropped


def watch_ranges(
    model: nn.Module,
    dtype: torch.dtype = torch.float16,
    *,
    every: int = 10,
    alert: float = 2.0,
    say: Callable[[str], Any] = print,
) -> RangeWatch:
    """Watch activations, weights and gradients inside a `with`, or from `.start()` to `.stop()`.

    An activation is what a leaf module returns, a module with no modules inside. The result of an
    op between two modules is not measured: attention scores that `forward` computes with `@` may
    overflow without an alert. Pass such a result through an `nn.Identity` that is part of the
    model, and it is measured too.

    model: a module of yours; only what it computes with gradients enabled is watched
    dtype: the format whose range counts
    every: forward passes from one that is measured to the next; the first is measured
    alert: at this headroom or less, in doublings, `say` reports a module, once; -inf for never

    The training does not change. Compiled code runs uncompiled meanwhile. Raises TypeError for what
    is not a module, ValueError for an `every` below 1 or a dtype that is not a float.
    Example: with watch_ranges(model) as ranges: train(); print(ranges)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model has to be a torch.nn.Module, and this is a {type(model).__name__}.")
    if every < 1:
        raise ValueError(f"every is {every}: 1 measures each forward pass, 10 each tenth.")
    if not dtype.is_floating_point:
        raise ValueError(
            f"dtype is {short(dtype)}, which has no range to leave: take torch.float16 or "
            "torch.bfloat16."
        )
    return RangeWatch(model, dtype, every, alert, say)


class RangeWatch(Ranges, Page):
    """What a model's values did, pass by pass.

    passes: forward passes so far, measured or not
    bells:  the alerts so far
    aside:  a context that hides the measuring from other watchers
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        every: int,
        alert: float,
        say: Callable[..., Any],
    ) -> None:
        self.model, self.alert, self.say = uncompiled(model), alert, say
        self.dtype: torch.dtype = dtype
        self.every = every
        self.readings: deque[Reading] = deque(maxlen=_MOST)
        self.passes = 0
        self.bells: list[str] = []
        self.aside: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._alerted: set[tuple[str, Kind]] = set()
        self._watches = self._measuring = False
        self._stack = ExitStack()

    def start(self) -> RangeWatch:
        """Begin to watch; `with` does this for you."""
        if self._watches:
            raise RuntimeError("this watch is on already: `.stop()` it first.")
        self._stack.enter_context(uncompiled_run())
        named = self.model.named_modules()
        leaves = {module: path for path, module in named if not any(module.children())}
        self._leaves = WeakKeyDictionary(leaves)
        points = {"module_begins": self._begins, "module_ends": self._ends}
        self._stack.enter_context(taps.listening(points | {"backward": self._backward}))
        self._watches = True
        return self

    def stop(self) -> None:
        """End it. The readings stay."""
        self._stack.close()
        self._watches = self._measuring = False

    def __enter__(self) -> RangeWatch:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ---- hooks ----

    def _begins(self, module: nn.Module, args: Any) -> None:
        if module is not self.model:
            return
        enabled = torch.is_grad_enabled()
        self.passes += enabled
        self._measuring = enabled and (self.passes - 1) % self.every == 0
        for path, weight in self.model.named_parameters() if self._measuring else ():
            self._read(path, "weight", weight)

    def _ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._measuring and torch.is_grad_enabled() and module in self._leaves:
            self._leaf(self._leaves[module], output)
        if module is self.model and not torch.is_grad_enabled():
            self._measuring = False

    def _leaf(self, path: str, output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # recomputed by activation checkpointing
            return
        number, me = self.passes, ref(self)
        for tensor in tensors_in(output):
            self._read(path, "activation", tensor)
            if tensor.grad_fn is not None:
                place = tensor.output_nr

                def hook(grads: tuple[Tensor | None, ...], place: int = place) -> None:
                    watch, grad = me(), grads[place]
                    if watch is not None and watch._watches and grad is not None:
                        watch._read(path, "activation gradient", grad, number)

                tensor.grad_fn.register_prehook(hook)

    def _backward(self, original: taps.Original, *args: Any, **kwargs: Any) -> Any:
        if not self._measuring:
            return original(*args, **kwargs)
        before = {path: _version(weight.grad) for path, weight in self.model.named_parameters()}
        result = original(*args, **kwargs)
        for path, weight in self.model.named_parameters() if self._measuring else ():
            if weight.grad is not None and _version(weight.grad) != before.get(path):
                self._read(path, "weight gradient", weight.grad)
        return result

    def _read(self, path: str, kind: Kind, tensor: Tensor, number: int | None = None) -> None:
        in_vmap = torch._C._functorch.peek_interpreter_stack() is not None  # there are no values
        if in_vmap or tensor.is_sparse or tensor.is_meta or not tensor.numel():
            return
        if not tensor.is_floating_point():
            return
        with self.aside():
            reading = read_range(tensor, self.dtype, number or self.passes, path, kind)
        self.readings.append(reading)
        hot = self.alert > -math.inf and not reading.headroom > self.alert
        if hot and (path, kind) not in self._alerted:
            self._alerted.add((path, kind))
            self.bells.append(_alert(reading, self.dtype))
            self.say(self.bells[-1])

    # ---- what came of it ----

    def rows(self) -> list[list[str]]:
        """Return a table with its head: where each kind has least headroom and loses most."""
        rows = [["kind", "least headroom in", "doublings", "pass", "most lost in", "share", "pass"]]
        for kind in KINDS:
            readings = [one for one in self.readings if one.kind == kind]
            if readings:
                hot = min(readings, key=_headroom)
                cold = max(readings, key=lambda one: one.lost)
                lost = ["none", "", ""]
                if cold.lost:
                    lost = [cold.module, f"{100 * cold.lost:.3g} %", f"{cold.number:,}"]
                place = [hot.module or "the model", _doublings(hot), f"{hot.number:,}"]
                rows.append([kind, *place, *lost])
        return rows

    def blocks(self) -> Iterator[Block]:
        if not self.readings:
            yield (
                "Nothing was measured: while it was watched, the model has not run with gradients "
                "enabled, outside of `torch.func`."
            )
            return
        number = len({one.number for one in self.readings})
        measured = f"{number:,} of {self.passes:,} forward passes measured"
        yield f"{measured}, for {short(self.dtype)}"
        yield Table(self.rows())


def _version(grad: Tensor | None) -> tuple[int, int] | None:
    """Return something that changes when the gradient does."""
    return None if grad is None else (id(grad), grad._version)


def _headroom(reading: Reading) -> float:
    return -math.inf if math.isnan(reading.headroom) else reading.headroom


def _doublings(reading: Reading) -> str:
    if math.isnan(reading.largest):
        return "NaN"
    return "inf" if math.isinf(reading.largest) else f"{reading.headroom:.1f}"


def _alert(reading: Reading, dtype: torch.dtype) -> str:
    where = f"pass {reading.number}: the {reading.kind} of {reading.module or 'the model'}"
    if not reading.finite:
        return f"{where} holds {'NaN' if math.isnan(reading.largest) else 'inf'}."
    end, reached = f"{torch.finfo(dtype).max:.6g}", f"{where} reaches {reading.largest:.4g}"
    if reading.headroom < 0:
        return f"{reached}, beyond {short(dtype)}, which ends at {end}."
    return f"{reached}, {reading.headroom:.1f} doublings below the end of {short(dtype)} at {end}."
