"""One op on its own: count its kernels, FLOPs and bytes in fp32 and under AMP, and time it here.

The op is plain PyTorch on tensors of its own, under autocast for AMP: on fake tensors to count it,
as the rest of the chapter does, and on real ones to time it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.speed.counting import CAST, OpCall, count_ops, fake_tensors, totals
from amp_course.speed.machine import HEADROOM, fastest_seconds, free_memory
from amp_course.speed.roofline import FORMATS, Bound, Roofline

MOST_SECONDS = 2.0  # an op that is predicted to take longer is not tried
_TRIAL_SECONDS = 0.02  # one that is predicted to take longer is tried on some of its rows first

Op = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """What an op runs on.

    m, n, k: sizes, each 1 or more; `OpKind.sizes` says what they are
    dtype:   torch.float32 for plain fp32, a 16-bit one for AMP in it
    arrives: the dtype of the incoming activation
    gpu:     True if autocast decides as on a GPU, where layer norm runs in fp32
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype = torch.float32
    arrives: torch.dtype = torch.float32
    gpu: bool = False


def _linear_inputs(on: Setting) -> list[Tensor]:
    x = torch.rand(on.m, on.k, dtype=on.arrives)
    return [x, torch.rand(on.n, on.k), torch.rand(on.n)]


def _linear(on: Setting) -> Op:
    inputs = _linear_inputs(on)
    return lambda: F.linear(*inputs)


def _linear_step(on: Setting) -> Op:
    leaves = [one.requires_grad_() for one in _linear_inputs(on)]
    gradient = torch.rand(on.m, on.n, dtype=on.dtype)
    return lambda: torch.autograd.grad(F.linear(*leaves), leaves, gradient)


def _relu(on: Setting) -> Op:
    x = torch.rand(on.m, on.n, dtype=on.arrives)
    return lambda: F.relu(x)


def _layer_norm(on: Setting) -> Op:
    x = torch.rand(on.m, on.n, dtype=on.arrives)
    weight, bias = torch.rand(on.n), torch.rand(on.n)
    # Fake tensors are on the CPU, whose autocast lets layer norm run in any dtype.
    return lambda: F.layer_norm(x.float() if on.gpu else x, (on.n,), weight, bias)


def _attention(on: Setting) -> Op:
    q = torch.rand(1, 1, on.m, on.k, dtype=on.arrives)
    k, v = (torch.rand(1, 1, on.n, on.k, dtype=on.arrives) for _ in range(2))
    return lambda: F.scaled_dot_product_attention(q, k, v)


def _cast(on: Setting) -> Op:
    x = torch.rand(on.m, on.n)
    return lambda: x.to(on.dtype)


@dataclass(frozen=True)
class OpKind:
    """A kind of op: what M, N and K are to it, and what makes it on the default device."""

    label: str
    sizes: str
    make: Callable[[Setting], Op]
    uses_k: bool = False
    arrives: bool = True  # False if its input is always fp32


KINDS = {
    "linear": OpKind(
        "linear layer, forward", "M rows, K features in, N features out", _linear, uses_k=True
    ),
    "linear_step": OpKind(
        "linear layer, forward and backward",
        "M rows, K features in, N features out",
        _linear_step,
        uses_k=True,
    ),
    "attention": OpKind(
        "attention, one head", "M queries, N keys, heads of size K", _attention, uses_k=True
    ),
    "relu": OpKind("ReLU", "M rows of N numbers", _relu),
    "layer_norm": OpKind("layer norm", "M rows of N numbers", _layer_norm),
    "cast": OpKind("cast to 16 bits", "M rows of N numbers", _cast, arrives=False),
}


@contextlib.contextmanager
def _region(on: Setting, device: torch.device) -> Iterator[None]:
    """Run the body under AMP or without it, whatever the modes around it."""
    lowered = on.dtype != torch.float32
    low = on.dtype if lowered else torch.bfloat16
    with torch.enable_grad(), torch.autocast(device.type, low, enabled=lowered):
        yield


def count_op(kind: str, on: Setting) -> tuple[OpCall, ...]:
    """Count an op's kernels, FLOPs and bytes, on fake tensors.

    Example: count_op("linear", Setting(64, 64, 64))[0].flops → 524_288, which is 2 · 64³
    """
    device = torch.device("cpu")
    with torch.inference_mode(False), fake_tensors(), device:
        call = KINDS[kind].make(on)
        with _region(on, device), count_ops() as counter:
            call()
    return tuple(counter.calls)


Counter = Callable[[str, Setting], tuple[OpCall, ...]]


@dataclass(frozen=True)
class Predicted:
    """What a machine's roofline predicts for an op: its calls and their seconds.

    measured: the seconds of the real op; None until it is timed
    """

    name: str
    fmt: str
    calls: tuple[OpCall, ...]
    seconds: float
    seconds_by: Mapping[Bound, float]
    cast_seconds: float
    measured: float | None = None

    @property
    def flops(self) -> int:
        return totals(self.calls).flops

    @property
    def bytes(self) -> int:
        return totals(self.calls).bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte, of an op that has calls."""
        return self.flops / self.bytes

    @property
    def bound(self) -> Bound:
        """What most of its time goes to: "launch", "memory" or "compute"."""
        return max(self.seconds_by, key=self.seconds_by.__getitem__)


def predict(kind: str, on: Setting, roofline: Roofline, count: Counter = count_op) -> Predicted:
    """Predict the time of an op. Raises KeyError for a dtype that the roofline has no peak for."""
    calls, fmt = count(kind, on), FORMATS[on.dtype]
    casts = roofline.total(call for call in calls if call.kind == CAST)
    name = fmt if on.dtype == torch.float32 else f"AMP {fmt}"
    return Predicted(name, fmt, calls, roofline.total(calls), roofline.by_bound(calls), casts)


def time_op(
    kind: str, on: Setting, roofline: Roofline, device: torch.device, seconds: float = 0.3
) -> float:
    """Return the seconds of an op on `device`: of the fastest call in about `seconds`, and at least
    two calls.

    Raises ValueError for one that would need too much memory or time. Its time is predicted first,
    then tried on some of its rows, since some shapes are far slower than the roofline.
    """
    calls, reason = count_op(kind, on), ""
    needed, free, predicted = totals(calls).bytes, free_memory(device), roofline.total(calls)
    if free is not None and needed > HEADROOM * free:
        reason = f"it needs up to {bytes_text(needed)}, and {bytes_text(free)} are free"
    elif predicted > MOST_SECONDS:
        reason = (
            f"one call would take about {seconds_text(predicted)}, and the limit is "
            f"{seconds_text(MOST_SECONDS)}"
        )
    rows = int(on.m * _TRIAL_SECONDS / predicted) if predicted else on.m
    if not reason and 1 <= rows < on.m:
        trial = _run(kind, replace(on, m=rows), device, budget=0.0)
        whole = trial * on.m / rows
        if whole > MOST_SECONDS:
            reason = (
                f"{rows:,} of its {on.m:,} rows took {seconds_text(trial)}, so all would take "
                f"about {seconds_text(whole)}"
            )
    if reason:
        raise ValueError(reason)
    return _run(kind, on, device, seconds)


def _run(kind: str, on: Setting, device: torch.device, budget: float) -> float:
    seeded = [device] if device.type == "cuda" else []
    with torch.inference_mode(False), torch.random.fork_rng(devices=seeded):
        with device:
            call = KINDS[kind].make(on)
        with _region(on, device):
            return fastest_seconds(call, device, least=2, budget=budget)
