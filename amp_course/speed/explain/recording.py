"""Record steps with `torch.profiler`, each as a tree of ops with times and dtypes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

STEP, DATA = "amp_course.step", "amp_course.data"


@dataclass(frozen=True)
class Op:
    """An op or a named stretch of code on one thread; `children` ran inside it.

    start, end: nanoseconds since 1970
    dtypes:     of its tensor inputs in order, lists of tensors included
    kernels:    (start, end) of what it started on an accelerator, which runs later
    """

    name: str
    start: int
    end: int
    dtypes: tuple[torch.dtype, ...] = ()
    children: tuple[Op, ...] = ()
    kernels: tuple[tuple[int, int], ...] = ()

    @property
    def own(self) -> int:
        inside = sum(child.end - child.start for child in self.children)
        return max(0, self.end - self.start - inside)


@dataclass(frozen=True)
class StepRecord:
    """What the calling thread did in a step, and other threads (autograd's, on a GPU) meanwhile."""

    main: Op
    others: tuple[Op, ...] = ()


def record_steps(run: Callable[[], None], steps: int, device: torch.device) -> list[StepRecord]:
    """Call `run()` so often under the profiler, and return what it recorded.

    Raises RuntimeError if another profiler is running.
    """
    if torch.autograd._profiler_enabled():
        raise RuntimeError(
            "another profiler is running, and there can be only one: leave its `with` block first."
        )
    # keeps its C++ from writing to stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, record_shapes=True)
    with warnings.catch_warnings():
        # of GPU counters that it may not read, which the explanation notes
        warnings.simplefilter("ignore")
        with profiler:
            for _ in range(steps):
                with record_function(STEP):
                    run()
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    # subtle: a profiler refers to itself, so its events would stay until the next garbage
    # collection. Scattered over the heap, they would leave no room for a step's tensors, and glibc
    # would ask the system for memory in every step.
    vars(profiler).clear()
    return _steps(results, device)


def _steps(results: Any, device: torch.device) -> list[StepRecord]:
    kernels = _kernels(results) if device.type != "cpu" else {}
    roots = results.experimental_event_tree()
    others = [node for node in roots if node.name != STEP]
    records = []
    for step in roots:
        if step.name != STEP:
            continue
        meanwhile = tuple(
            _op(node, kernels)
            for root in others
            if root.start_tid != step.start_tid
            for node in _within(root, step.start_time_ns, step.end_time_ns)
        )
        records.append(StepRecord(_op(step, kernels), meanwhile))
    return records


def _within(node: Any, start: int, end: int) -> Iterator[Any]:
    """Yield the outermost nodes under `node` that ran in a stretch of time.

    On a GPU, one node spans what autograd's thread did in all steps.
    """
    if node.end_time_ns <= start or node.start_time_ns >= end:
        return
    if start <= node.start_time_ns and node.end_time_ns <= end:
        yield node
        return
    for child in node.children:
        yield from _within(child, start, end)


def _op(node: Any, kernels: dict[int, list[tuple[int, int]]]) -> Op:
    return Op(
        node.name,
        node.start_time_ns,
        node.end_time_ns,
        tuple(_dtypes(getattr(node.extra_fields, "inputs", ()))),
        tuple(_op(child, kernels) for child in node.children),
        tuple(kernels.get(node.correlation_id, ())),
    )


def _dtypes(inputs: Any) -> Iterator[torch.dtype]:
    for one in inputs:
        if isinstance(one, list):
            yield from _dtypes(one)
        elif (dtype := getattr(one, "dtype", None)) is not None:
            yield dtype


def _kernels(results: Any) -> dict[int, list[tuple[int, int]]]:
    """Return, for each op's correlation id, when its kernels ran on the accelerator."""
    found: dict[int, list[tuple[int, int]]] = {}
    for event in results.events():
        if event.device_type() != torch.autograd.DeviceType.CPU:
            found.setdefault(event.linked_correlation_id(), []).append(
                (event.start_ns(), event.end_ns())
            )
    return found
