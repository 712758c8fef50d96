"""For exercise 4 of chapter 09: what a padded head holds, returns and learns."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from amp_course.checking import call_answer, read_tensor
from amp_course.kit.dtypes import dtype_name
from amp_course.speed.counting import MATMUL, count_ops

SHAPE, DTYPES, HOLDS, REAL, BIAS, PROBABILITY = (
    "the shape of the weight",
    "the dtype of the parameters",
    "what the weight holds",
    "the rows of the real tokens",
    "the bias of the real tokens",
    "the probability of padded tokens",
)


class FillsWithNaN(TorchFunctionMode):
    """Fill new, empty tensors with NaN, so that no result depends on what was in memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function."""
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("empty", "empty_like", "new_empty") and out.is_floating_point():
            out.detach().fill_(torch.nan)
        return out


def _matrix(module: nn.Module) -> Tensor | None:
    """Return the largest matrix among the parameters."""
    matrices = (one for one in module.parameters() if one.dim() == 2)
    return max(matrices, key=Tensor.numel, default=None)


def parameters(padded: nn.Module, old: nn.Linear) -> dict[str, Any]:
    weight, vocabulary, parameters = _matrix(padded), old.out_features, [*padded.parameters()]
    if weight is None:
        return {SHAPE: "unknown, as no parameter is a matrix"}
    first, last = (
        torch.equal(rows.float(), old.weight.float())
        for rows in (weight[:vocabulary], weight[-vocabulary:])
    )
    outputs: dict[str, Any] = {
        SHAPE: tuple(weight.shape),
        DTYPES: " and ".join(sorted({dtype_name(p.dtype) for p in parameters})),
        "the number of trained parameters": sum(p.requires_grad for p in parameters),
        REAL: "those of the head" if first else "the last ones" if last else "others",
        HOLDS: "numbers" if weight.isfinite().all() else "NaN or inf",
    }
    biases = [one[:vocabulary].float() for one in parameters if one.dim() == 1]
    none = old.bias is None  # the output is there anyway, so that it precedes the logits
    same = none or any(torch.equal(one, old.bias.float()) for one in biases)
    outputs[BIAS] = "that of the head" if same else "another"
    return outputs


def forward(padded: nn.Module, case: str, vocabulary: int, inputs: Tensor) -> dict[str, Any]:
    with torch.no_grad(), count_ops() as counter:
        got = call_answer(padded, case, inputs.clone())
    logits = read_tensor(got, case, "logits", subject="your module returned").float()
    outputs: dict[str, Any] = {}
    if inputs.dim() > 1:  # the third size of a matmul, besides features and tokens, is its rows
        known = inputs.shape[-1], inputs.numel() // inputs.shape[-1]
        matmuls = [call.shapes for call in counter.calls if call.kind == MATMUL]
        sizes = [[size for shape in shapes for size in shape[-2:]] for shapes in matmuls]
        rows = [next((size for size in one if size not in known), 0) for one in sizes]
        outputs["the number of rows in the matmul"] = rows[0] if len(rows) == 1 else rows
    fits = logits.shape[:-1] == inputs.shape[:-1] and logits.shape[-1] >= vocabulary
    outputs["the shape of the logits"] = "one row for each token" if fits else tuple(logits.shape)
    if not fits:
        return outputs
    if inputs.dtype == torch.float32:
        outputs["the logits of real tokens"] = logits[..., :vocabulary]
    taken = float(logits.softmax(dim=-1)[..., vocabulary:].sum(dim=-1).mean())
    outputs[PROBABILITY] = (
        "NaN" if math.isnan(taken) else "some probability" if taken > 1e-6 else "none"
    )
    return outputs


def training(
    padded: nn.Module, case: str, vocabulary: int, inputs: Tensor, targets: Tensor
) -> dict[str, Any]:
    """Return the gradients of the first step, and the losses of two."""
    optimizer = torch.optim.SGD(padded.parameters(), lr=0.5, weight_decay=0.01)
    outputs: dict[str, Any] = {}
    losses = []
    for _ in range(2):
        features = inputs.clone().requires_grad_()
        logits = call_answer(padded, case, features)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        weight = _matrix(padded)
        gradient = None if weight is None or weight.grad is None else weight.grad[:vocabulary]
        outputs = outputs or {
            "the gradient of the inputs": features.grad,
            "the gradient of the real rows": gradient,
        }
        optimizer.step()
        losses.append(loss.item())
    return {**outputs, "the losses of two steps": losses}
