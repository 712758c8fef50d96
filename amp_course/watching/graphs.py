"""The graph of a loss: which ops ran in 16 bits, and whether the loss function did."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from amp_course.watching.records import Graph

LOW_DTYPES = (torch.float16, torch.bfloat16)
# Losses that autocast runs in fp32 on CPU and GPU: one that ran in 16 bits was outside the region.
# https://docs.pytorch.org/docs/stable/amp.html, "Ops that autocast to float32", for both devices.
_LOSSES = {
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "NllLoss": "cross_entropy",
    "NllLoss2D": "cross_entropy",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "SoftMarginLoss": "soft_margin_loss",
}
# Ops of hand-written losses. Those that autocast runs in fp32 on a GPU count, so `mean` does not.
_OPS = {
    "Sum": "sum",
    "Mean": "mean",
    "Prod": "prod",
    "Pow": "pow.Tensor_Scalar",
    "Exp": "exp",
    "Log": "log",
    "LogSoftmax": "log_softmax.int",
    "Softmax": "softmax.int",
    "LinalgVectorNorm": "linalg_vector_norm",
    "Norm": "norm.Scalar",
}
_FP32_OPS = {
    node: op.split(".")[0].removeprefix("linalg_vector_")
    for node, op in _OPS.items()
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "AutocastCUDA")
}
_STEPS_BACK = 8  # nodes in a row that are searched
# Ops whose results have the dtype of their inputs
_KEEP_DTYPE = (
    "Add Clamp Copy Div Exp Expand Gather Index Log Maximum Mean Minimum Mul Neg ReshapeAlias "
    "Select Slice Squeeze Sub Sum Transpose Unsafe UnsafeView Unsqueeze View Where"
).split()
_MATMULS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "MkldnnConvolution", "Linear")
_MOST_NODES = 200_000


def inspect_graphs(roots: Iterable[Tensor], region_end: float = math.inf) -> Graph:
    """Walk the graphs of losses that are about to be differentiated.

    region_end: the sequence number of the first node after the last autocast region
    """
    low: set[torch.dtype] = set()
    losses: list[tuple[str, torch.dtype]] = []
    late: list[tuple[str, torch.dtype]] = []
    casts = opaque = twice = single = False
    matmuls, ratio = 0, math.nan
    ends = [one.grad_fn for one in roots if one.grad_fn is not None]
    for node in nodes_of(ends):
        dtypes = [one.dtype for one in getattr(node, "_input_metadata", []) if one is not None]
        here, op = [dtype for dtype in dtypes if dtype in LOW_DTYPES], _op_of(node)
        low.update(here)
        casts |= bool(here) and op == "ToCopy"
        if here and op in _LOSSES:
            losses.append((_LOSSES[op], here[0]))
        after = node._sequence_nr() >= region_end
        if here and op in _FP32_OPS and after and not _is_fp32_on_gpu(node, region_end):
            late.append((_FP32_OPS[op], here[0]))
        twice |= op == "LogSoftmax" and _source(node) == "Softmax"
        single |= op == "LogSoftmax" and _is_over_one(node)
        matmuls += op in _MATMULS and torch.float32 in dtypes
        if op == "Exp" and _is_against_constant(node.next_functions[0][0]):
            ratio = max(0.0 if math.isnan(ratio) else ratio, _distance_from_1(node._saved_result))
        # Written in Python, or compiled
        opaque |= isinstance(node, torch.autograd.function.BackwardCFunction)
    return Graph(
        low=frozenset(low),
        casts=casts,
        opaque=opaque,
        loss_ops=tuple(losses),
        late_ops=tuple(late),
        fp32_matmuls=matmuls,
        factor=max(map(_factor, ends), default=1.0),
        softmax_twice=twice,
        single_class=single,
        ratio=ratio,
    )


def _op_of(node: Any) -> str:
    """Return the op that a node belongs to: "Exp" for ExpBackward0, "" for none."""
    return "" if node is None else re.sub(r"Backward\d*$", "", node.name())


def _is_against_constant(node: Any) -> bool:
    """Return True if a node subtracts a tensor without gradients, or from one."""
    inputs: list[Any] = list(node.next_functions) if _op_of(node) == "Sub" else []
    return len(inputs) == 2 and (inputs[0][0] is None) != (inputs[1][0] is None)


def _distance_from_1(values: Tensor) -> float:
    with _disable_current_modes():
        return float((values.detach().float() - 1).abs().max()) if values.numel() else math.nan


def _is_over_one(node: Any) -> bool:
    """Return True if a softmax is over a single number; torch stores dimension -1 unsigned."""
    dim = node._saved_dim - 2**64 if node._saved_dim >= 2**63 else node._saved_dim
    return any(len(one.shape) and one.shape[dim] == 1 for one in node._input_metadata)


def _is_fp32_on_gpu(node: Any, region_end: float) -> bool:
    """Return True if on a GPU an op's input comes, in fp32, from an op inside the region."""
    nodes = [node]
    for _ in range(_STEPS_BACK):
        nodes = [one for node in nodes for one, _ in node.next_functions if one is not None]
        for one in nodes:
            op = _op_of(one)
            if (op in _FP32_OPS or op in _LOSSES) and one._sequence_nr() < region_end:
                return True
        nodes = [one for one in nodes if _op_of(one) in _KEEP_DTYPE]
    return False


def _source(node: Any) -> str:
    """Return the op whose output is a node's input, casts in between left out."""
    node = node.next_functions[0][0]
    while _op_of(node) == "ToCopy":
        node = node.next_functions[0][0]
    return _op_of(node)


def _factor(node: Any) -> float:
    """Return the number by which a loss is multiplied at its end: 1024 for `loss * 1024`."""
    factor = 1.0
    while node is not None and node.name() in ("MulBackward0", "DivBackward0"):
        saved = [one for one in (node._saved_self, node._saved_other) if one is not None]
        numbers = [one for one in saved if one.numel() == 1]
        inputs = [one for one, _ in node.next_functions if one is not None]
        if len(numbers) != 1 or len(inputs) != 1:
            break
        # A dispatch mode would get this tensor as a plain number, which torch then refuses.
        with _disable_current_modes():
            number = float(numbers[0])
        factor *= number if _op_of(node) == "Mul" else 1 / number if number else 1.0
        node = inputs[0]
    return abs(factor)


def next_node() -> int:
    """Return the sequence number that the next node of this thread's graphs will have."""
    return int(torch._C._autograd._get_sequence_nr())


def nodes_of(roots: list[Any]) -> Iterator[Any]:
    """Yield the nodes of the graphs that end in these nodes."""
    found, waiting = set(roots), list(roots)
    while waiting and len(found) < _MOST_NODES:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in found:
                found.add(following)
                waiting.append(following)


def leaves_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves to which a backward pass through these tensors gives a gradient."""
    nodes = nodes_of([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])
    return [node.variable for node in nodes if hasattr(node, "variable")]
