"""Compute a character GPT as a training engine and as an inference engine do: same weights, same
format, another order.

The 16-bit arithmetic is emulated: operands and results of matmuls are rounded, sums are fp32's. So
every format runs at the same speed on every machine. `mismatch.measure_with_torch` uses torch's own
16-bit kernels instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from amp_course.bits import FP32, FloatFormat, round_to
from amp_course.kit.models import CharGPT, TransformerBlock

# block → its keys and values so far, (sequences, heads, tokens, width / heads)
Cache = dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Engine:
    """An order of operations. In exact arithmetic all engines compute the same function.

    name:   for tables and figures
    pieces: how many stretches each dot product of a linear layer is cut into, as split-K kernels
            do; the last is added first
    round_pieces: whether a stretch's sum is rounded to the format before the stretches are added,
            as cuBLAS may (`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction` and
            its fp16 twin, on by default)
    fused:  whether attention keeps its scores in fp32, rounds exp(score − largest) and divides
            last, as FlashAttention does (Dao et al. 2022, arXiv:2205.14135); without it, scores and
            softmax are rounded each

    Raises ValueError for fewer than 1 piece.
    """

    name: str
    pieces: int = 1
    round_pieces: bool = False
    fused: bool = False

    def __post_init__(self) -> None:
        if type(self.pieces) is not int or self.pieces < 1:
            raise ValueError(
                f"{self.name}: a dot product has at least 1 piece, not {self.pieces!r}"
            )


TRAINING = Engine("training")
INFERENCE = Engine("inference", pieces=4, round_pieces=True, fused=True)
# rounds where TRAINING does: only fp32 sums differ, in their last bits
REORDERED = Engine("sums in another order", pieces=4)


class Policy:
    """A GPT as one engine computes it in one format; its weights are rounded once, when it is made.

    Gradients reach the model's fp32 weights as if nothing had been rounded; inside
    `torch.no_grad()` there are none. Activations between blocks are added in fp32, as under
    autocast.
    Example: Policy(model, BF16, INFERENCE).logits(ids).shape → (32, 64, 99) for ids of (32, 64)
    """

    def __init__(self, model: CharGPT, fmt: FloatFormat, engine: Engine) -> None:
        self.model, self.fmt, self.engine = model, fmt, engine
        self.weights = {
            name: rounded(parameter, fmt) for name, parameter in model.named_parameters()
        }

    def logits(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits, (sequences, tokens, vocab_size), in fp32 but with values of the
        format.

        ids:   (sequences, tokens)
        cache: keys and values of the tokens before these, which grows: pass the same one each time,
               at first an empty dict
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
                k, v = (
                    torch.cat([old, new], 2) for old, new in zip(cache[number], (k, v), strict=True)
                )
            cache[number] = k, v
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - tokens)
        scores = scores.masked_fill(future, -math.inf)
        if self.engine.fused:
            shares = (scores - scores.amax(-1, keepdim=True)).exp()
            y = (self._round(shares) @ v) / shares.sum(-1, keepdim=True)
        else:
            y = self._round(self._round(scores).softmax(-1)) @ v
        return self._round(y).transpose(1, 2).reshape(sequences, tokens, width)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        x, weight, bias = (
            self._round(x),
            self.weights[f"{name}.weight"],
            self.weights.get(f"{name}.bias"),
        )
        if self.engine.pieces == 1:
            y = x @ weight.T
        else:
            cut = zip(
                x.chunk(self.engine.pieces, -1), weight.chunk(self.engine.pieces, -1), strict=True
            )
            sums = [a @ b.T for a, b in cut]
            if self.engine.round_pieces:
                sums = [self._round(piece) for piece in sums]
            y = sums.pop()
            while sums:
                y = y + sums.pop()
        return self._round(y if bias is None else y + bias)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self._round(F.layer_norm(x, x.shape[-1:], weight, bias))

    def _round(self, x: Tensor) -> Tensor:
        return rounded(x, self.fmt)


def rounded(x: Tensor, fmt: FloatFormat) -> Tensor:
    """Return `round_to(x, fmt)` of a float32 tensor, for fp16 and bf16 by torch's own casts,
    which take a third of the time.
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
