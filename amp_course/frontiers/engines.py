"""Compute a character GPT as a training engine and as an inference engine do: same weights, same
format, different order of operations.

The 16-bit arithmetic is emulated: operands and results of matmuls are rounded, sums are in fp32. So
every format runs at the same speed on every machine. `mismatch.measure_with_torch` uses torch's
16-bit kernels instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from amp_course.bits import FP32, FloatFormat, round_to
from amp_course.kit.models import CharGPT, TransformerBlock

# block → its keys and values so far, (sequences, heads, tokens, width / heads)
Cache = dict[int, tuple[Tensor, Tensor]]
PIECES = 4


class Policy:
    """A GPT as one engine computes it in one format; its weights are rounded once, at construction.

    inference: whether the order is that of an inference engine, which computes the same function in
               exact arithmetic. Each dot product of a linear layer is cut into 4 pieces, as split-K
               kernels do; each piece's sum is rounded to the format before they are added, the last
               first, as cuBLAS may do
               (`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction` and its fp16
               twin, on by default). Attention keeps its scores in fp32, rounds exp(score − largest)
               and divides last, as FlashAttention does (Dao et al. 2022, arXiv:2205.14135). A
               training engine rounds both scores and softmax.

    Gradients reach the model's fp32 weights as if nothing had been rounded. Activations between
    blocks are added in fp32, as under autocast.
    Example: Policy(model, BF16).logits(ids).shape → (32, 64, 99) for ids of (32, 64)
    """

    def __init__(self, model: CharGPT, fmt: FloatFormat, *, inference: bool = False) -> None:
        self.model, self.fmt, self.inference = model, fmt, inference
        self.weights = {
            name: rounded(parameter, fmt) for name, parameter in model.named_parameters()
        }

    def logits(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits, (sequences, tokens, vocab_size), in fp32 but with values of the
        format.

        ids:   (sequences, tokens)
        cache: keys and values of earlier tokens, which is extended; an empty dict at first
        Raises ValueError for more tokens than the model has positions.
        """
        start = cache[0][0].shape[2] if cache else 0
        end = start + ids.shape[1]
        if end > self.model.context:
            raise ValueError(
                f"{end} tokens in a row, but this model has only {self.model.context} positions: "
                f"sample fewer."
            )
        x = self.weights["characters.weight"][ids] + self.weights["positions.weight"][start:end]
        for number, block in enumerate(self.model.blocks):
            assert isinstance(block, TransformerBlock)
            name = f"blocks.{number}"
            mixed = self._attend(self._norm(x, f"{name}.norm1"), name, block.heads, number, cache)
            x = x + self._linear(mixed, f"{name}.out")
            hidden = F.gelu(self._linear(self._norm(x, f"{name}.norm2"), f"{name}.up"))
            x = x + self._linear(hidden, f"{name}.down")
        return self._linear(self._norm(x, "norm"), "head")

    def _attend(self, x: Tensor, name: str, heads: int, number: int, cache: Cache | None) -> Tensor:
        sequences, tokens, width = x.shape
        in_heads = self._linear(x, f"{name}.qkv").view(sequences, tokens, 3, heads, width // heads)
        q, k, v = in_heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            if number in cache:
                old_k, old_v = cache[number]
                k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            cache[number] = k, v
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - tokens)
        scores = scores.masked_fill(future, -math.inf)
        if self.inference:
            shares = (scores - scores.amax(-1, keepdim=True)).exp()
            y = (self._round(shares) @ v) / shares.sum(-1, keepdim=True)
        else:
            y = self._round(self._round(scores).softmax(-1)) @ v
        return self._round(y).transpose(1, 2).reshape(sequences, tokens, width)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        x, weight, bias = self._round(x), self.weights[f"{name}.weight"], f"{name}.bias"
        if self.inference:
            cut = zip(x.chunk(PIECES, -1), weight.chunk(PIECES, -1), strict=True)
            sums = [self._round(a @ b.T) for a, b in cut]
            y = sums.pop()
            while sums:
                y = y + sums.pop()
        else:
            y = x @ weight.T
        return self._round(y + self.weights[bias] if bias in self.weights else y)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self._round(F.layer_norm(x, x.shape[-1:], weight, bias))

    def _round(self, x: Tensor) -> Tensor:
        return rounded(x, self.fmt)


def rounded(x: Tensor, fmt: FloatFormat) -> Tensor:
    """Return `round_to(x, fmt)` of a float32 tensor; for fp16 and bf16 by torch's casts, which are
    three times as fast.
    """
    if fmt == FP32:
        return x
    if fmt.dtype is None or fmt.bits != 16:
        return round_to(x, fmt)
    back: Tensor = _ThereAndBack.apply(x, fmt.dtype)
    return back


class _ThereAndBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
