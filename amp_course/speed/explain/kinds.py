"""Sort the time of a recorded step by kind: matmuls, other ops, casts, optimizer, waiting, rest.

On a CPU an op's time is the thread's time. On an accelerator its kernels' time belongs to them, and
an idle moment to what the program was doing then.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_course.speed.explain.recording import DATA, Op, StepRecord

LOW_MATMUL, FP32_MATMUL = "low-precision matmul", "fp32 matmul"
LOW_OP, FP32_OP = "low-precision op", "fp32 op"
CAST, OPTIMIZER, LAUNCH = "cast", "optimizer", "launch and Python"
WAIT, SYNC = "waiting for data", "synchronisation"
KINDS = (LOW_MATMUL, FP32_MATMUL, LOW_OP, FP32_OP, CAST, OPTIMIZER, LAUNCH, WAIT, SYNC)

LOW = {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
_FLOATS = {*LOW, torch.float32, torch.float64}


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


MATMULS = _aten(
    "addmm mm bmm baddbmm addbmm addmv mv dot _scaled_mm _addmm_activation convolution_backward "
    "_convolution mkldnn_convolution mkldnn_linear mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "cudnn_convolution cudnn_convolution_transpose thnn_conv2d _slow_conv2d_forward "
    "_slow_conv2d_backward slow_conv3d _conv_depthwise2d _cudnn_rnn _cudnn_rnn_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward"
)
# These read a tensor's values on the host: on a GPU the program waits there for all queued work.
READS = _aten("item _local_scalar_dense is_nonzero equal nonzero _unique2") | {
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
}
# These only change how a tensor is read, or reserve memory: their own time is that of a call.
_BOOKKEEPING = _aten(
    "linear matmul conv1d conv2d conv3d convolution to t transpose permute view reshape "
    "_reshape_alias as_strided expand select slice unsqueeze squeeze narrow split chunk unbind "
    "detach empty empty_like empty_strided resize_ result_type resolve_conj resolve_neg "
    "contiguous alias lift_fresh scaled_dot_product_attention _to_copy ones_like zeros_like"
)


def sort_step(step: StepRecord, launch: int) -> dict[str, int]:
    """Return kind → nanoseconds of one recorded step.

    launch: nanoseconds of a call of the smallest op, which of every op count as LAUNCH
    """
    timeline = sorted(_kernels((step.main, *step.others)))
    if timeline:
        return _sort_timeline(step, timeline)
    times = dict.fromkeys(KINDS, 0)
    for kind, own in _owned(step.main, launch):
        times[kind] += own
    return times


def _owned(op: Op, launch: int, within: str | None = None) -> Iterator[tuple[str, int]]:
    """Yield the nanoseconds of an op and its children, by kind."""
    kind = within or whole_kind(op)
    if kind in (OPTIMIZER, WAIT, SYNC, CAST):
        yield kind, op.end - op.start
        return
    if kind is None:
        kind = own_kind(op)
    paid = op.own if kind == LAUNCH else min(op.own, launch)
    yield LAUNCH, paid
    yield kind, op.own - paid
    matmul = kind if kind in (LOW_MATMUL, FP32_MATMUL) else None
    for child in op.children:
        yield from _owned(child, launch, whole_kind(child) or matmul)


def whole_kind(op: Op) -> str | None:
    """Return the kind of an op and of all inside it; None if each inside has its own."""
    if op.name == DATA or op.name.startswith("enumerate(DataLoader)"):
        return WAIT
    if op.name.startswith(("Optimizer.step#", "Optimizer.zero_grad#", "aten::_amp_")):
        return OPTIMIZER
    if op.name in READS:
        return SYNC
    if op.name in MATMULS:
        return LOW_MATMUL if is_low(op) else FP32_MATMUL
    return CAST if _is_cast(op) else None


def own_kind(op: Op) -> str:
    """Return the kind of an op's own time, without its children's."""
    if "CompiledFxGraph" in op.name:
        return FP32_OP  # what torch.compile fused; the profiler does not give its dtypes
    calls = op.name.startswith(("autograd::", "torch::")) or op.name in _BOOKKEEPING
    if calls or "::" not in op.name:
        return LAUNCH
    return LOW_OP if is_low(op) else FP32_OP


def is_low(op: Op) -> bool:
    """Return True if an op's first floating-point input has 16 bits or fewer."""
    return next((dtype in LOW for dtype in op.dtypes if dtype in _FLOATS), False)


def _is_cast(op: Op) -> bool:
    if op.name in ("aten::to", "aten::_to_copy"):
        copies = ("aten::_to_copy", "aten::copy_")
        return any(_is_cast(child) for child in op.children if child.name in copies)
    both = set(op.dtypes[:2])
    return op.name == "aten::copy_" and len(both) == 2 and both <= _FLOATS


def _kernels(ops: tuple[Op, ...], within: str | None = None) -> Iterator[tuple[int, int, str]]:
    for op in ops:
        kind = within or whole_kind(op)
        own = kind or own_kind(op)
        for start, end in op.kernels:
            yield start, end, FP32_OP if own == LAUNCH else own
        yield from _kernels(op.children, kind)


def _sort_timeline(step: StepRecord, timeline: list[tuple[int, int, str]]) -> dict[str, int]:
    """Sort an accelerator's time: kernels by kind, idle moments by what the program did."""
    times = dict.fromkeys(KINDS, 0)
    waits = sorted((op.start, op.end, kind) for op, kind in _waits(step.main))
    clock = step.main.start
    for start, end, kind in [*timeline, (step.main.end, step.main.end, LAUNCH)]:
        if start > clock:
            for idle, length in _idle(clock, min(start, step.main.end), waits):
                times[idle] += length
        times[kind] += max(0, end - max(start, clock))
        clock = max(clock, end)
    return times


def _waits(op: Op) -> Iterator[tuple[Op, str]]:
    kind = whole_kind(op)
    if kind in (WAIT, SYNC):
        yield op, kind
    else:
        for child in op.children:
            yield from _waits(child)


def _idle(start: int, end: int, waits: list[tuple[int, int, str]]) -> Iterator[tuple[str, int]]:
    """Yield an idle stretch by kind: waiting for the loader, then a read that emptied the queue, or
    the program's launches.
    """
    if end <= start:
        return
    drained = any(kind == SYNC and first <= start <= last for first, last, kind in waits)
    left = end - start
    for first, last, kind in waits:
        if kind == WAIT and (overlap := min(end, last) - max(start, first)) > 0:
            yield WAIT, overlap
            left -= overlap
    yield (SYNC if drained else LAUNCH), max(0, left)
