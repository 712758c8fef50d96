"""Find the operators that called each op: what Python called, and which casts are autocast's.

PyTorch's profiler is notified of every operator that the dispatcher calls, even if C++ calls it
inside another operator. Autocast's kernel for an operator casts the arguments, then calls the same
operator again. So a cast is autocast's if its caller has such a kernel and also calls itself:

    matmul ─┬─ to ─ _to_copy       x @ w in a region: the cast is autocast's
            └─ matmul ─ mm
    softmax ─┬─ to ─ _to_copy      softmax(x, dtype=torch.float64): the cast is softmax's own
             └─ _softmax
    to ─ _to_copy                  x.float(): the cast is the model's

It does not matter how the operator was called: as `@`, as a method, as a function, or by another
operator in C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.autograd import ProfilerConfig, ProfilerState

from amp_course.autocast.records import CastBy

_MARK = "amp_course.autocast.op "
_OPERATOR = re.compile(r"(\w+)::(\w+)")
_FUNCTION = 0  # the RecordFunction scope of the dispatcher's calls, and of autograd Functions
_CASTS = {"aten::to", "aten::_to_copy"}
_CASTS_BY_NAME = {"aten::type_as"}  # other operators that a model calls in order to cast
# TorchScript writes autocast's casts into the program as separate operators
_SCRIPTED = {"aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"}


@dataclass(frozen=True)
class Caller:
    """Who called an op.

    operator: the one that Python called, without its namespace: "matmul"; "" if Python called this
              op itself
    cast_by:  if the op is a cast, whose it is
    """

    operator: str = ""
    cast_by: CastBy = "model"


@dataclass
class _Frame:
    name: str
    calls_itself: bool = False


@contextmanager
def recorded_calls(device_type: str, callers: dict[int, Caller]) -> Iterator[None]:
    """Add, when the block ends, the caller of each op inside that `marked` numbered."""
    # `torch.profiler` would write to stderr and, in a CUDA build, ask for a driver
    config = ProfilerConfig(
        ProfilerState.CPU, False, False, False, False, False, _ExperimentalConfig()
    )
    _enable_profiler_legacy(config)
    try:
        yield
    finally:
        for thread in _disable_profiler_legacy():
            callers.update(_callers(thread, device_type))


def marked(number: int) -> Any:
    """Return a context manager that numbers the op that runs inside."""
    return _RecordFunctionFast(f"{_MARK}{number}")


def has_autocast_kernel(operator: str, device_type: str) -> bool:
    """Return True if autocast has a kernel for any overload of an operator: "linear" → True."""
    packet = getattr(torch.ops.aten, operator, None)
    key = f"Autocast{device_type.upper()}"
    for overload in packet.overloads() if packet else ():
        name = f"aten::{operator}" if overload == "default" else f"aten::{operator}.{overload}"
        # the dispatcher does not know overloads that exist for TorchScript alone
        if torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(
            name, key
        ):
            return True
    return False


def _callers(events: Sequence[Any], device_type: str) -> dict[int, Caller]:
    stack: list[_Frame] = []
    found: dict[int, list[_Frame]] = {}
    for event in events:
        if event.kind() == "pop" and stack:
            stack.pop()
        elif event.kind() == "push":
            # "" for a label that the model made, or a node of the graph
            name = event.name() if event.scope() == _FUNCTION else ""
            above = [frame for frame in stack if frame.name != "PythonDispatchMode"]
            if name.startswith(_MARK):
                found[int(name.removeprefix(_MARK))] = above
            elif above and above[-1].name == name:
                above[-1].calls_itself = True
            stack.append(_Frame(name))
    return {number: _caller(frames, device_type) for number, frames in found.items()}


def _caller(frames: list[_Frame], device_type: str) -> Caller:
    """Read the operators from the one that Python called down to the op itself."""
    operators: list[_Frame] = []
    for frame in reversed(frames):
        if not _OPERATOR.fullmatch(frame.name):
            break
        operators.insert(0, frame)
    called = operators[0].name.split("::")[1] if operators else ""
    while operators and operators[-1].name in _CASTS:
        operators.pop()
    if not operators or operators[-1].name in _CASTS_BY_NAME:
        return Caller(called, "model")
    above = operators[-1]
    inserted = above.calls_itself and has_autocast_kernel(above.name.split("::")[1], device_type)
    return Caller(called, "autocast" if inserted or above.name in _SCRIPTED else "op")
