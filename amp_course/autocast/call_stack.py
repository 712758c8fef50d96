"""Tell which operators stand above each op that runs: what Python called, and which casts are
autocast's own.

PyTorch announces every operator that its dispatcher calls, those that C++ calls inside another
operator included; its profiler listens to that. Autocast's kernel for an operator casts the
arguments, then calls the same operator once more. So a cast is autocast's if it stands directly
under an operator that has such a kernel and calls itself:

    matmul ─┬─ to ─ _to_copy       x @ w in a region: the cast is autocast's
            └─ matmul ─ mm
    softmax ─┬─ to ─ _to_copy      softmax(x, dtype=torch.float64): the cast is softmax's own
             └─ _softmax
    to ─ _to_copy                  x.float(): the cast is the model's

It makes no difference how the operator was called: as `@`, as a method, as a function, or by
another operator in C++.
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
# of a RecordFunction's scopes: what the dispatcher calls, and Python's own autograd Functions
_FUNCTION = 0
_CASTS = {"aten::to", "aten::_to_copy"}
_CASTS_BY_NAME = {"aten::type_as"}  # operators that a model calls in order to cast, besides `to`
# TorchScript writes autocast's casts into the program, as operators of their own.
_SCRIPTED = {"aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"}


@dataclass(frozen=True)
class Caller:
    """Who called an op.

    operator: the one that Python called, without its namespace: "matmul"; "" if Python called this
              op itself
    cast_by: who wanted a cast, if the op is one
    """

    operator: str = ""
    cast_by: CastBy = "model"


@dataclass
class _Frame:
    name: str
    calls_itself: bool = False


@contextmanager
def recorded_calls(device_type: str, callers: dict[int, Caller]) -> Iterator[None]:
    """Add the caller of each op that `marked` names inside, when the block ends; the device decides
    about the kernels.
    """
    # Not `torch.profiler`: that one writes to stderr and, in a CUDA build, asks for a driver.
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
    """Return a context manager that gives the op that runs inside it a number."""
    return _RecordFunctionFast(f"{_MARK}{number}")


def has_autocast_kernel(operator: str, device_type: str) -> bool:
    """Return True if autocast has a kernel for an operator of this name, in any signature.
    Example: "linear" → True
    """
    packet = getattr(torch.ops.aten, operator, None)
    key = f"Autocast{device_type.upper()}"
    for overload in packet.overloads() if packet else ():
        name = f"aten::{operator}" if overload == "default" else f"aten::{operator}.{overload}"
        # Some overloads exist for TorchScript alone, and the dispatcher does not know them.
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
            # "" for a label of the model's own, or a node
            name = event.name() if event.scope() == _FUNCTION else ""
            above = [frame for frame in stack if frame.name != "PythonDispatchMode"]
            if name.startswith(_MARK):
                found[int(name.removeprefix(_MARK))] = above
            elif above and above[-1].name == name:
                above[-1].calls_itself = True
            stack.append(_Frame(name))
    return {number: _caller(frames, device_type) for number, frames in found.items()}


def _caller(frames: list[_Frame], device_type: str) -> Caller:
    """Read the operators above an op, the op itself the last of them,
    down to where Python called the first.
    """
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
