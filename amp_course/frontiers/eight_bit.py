"""AdamW whose two means take one byte per weight: codes of a table, and an fp32 scale per block."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from amp_course.frontiers.per_parameter import (
    PerParameterOptimizer,
    State,
    adam_means,
    adamw_update,
)

BLOCK = 256  # weights that share a scale


def dynamic_table(signed: bool) -> Tensor:
    """Return the 256 numbers from -1 or 0 to 1 that codes stand for, float32, ascending, over seven
    decades.

    Each decade down to 1e-6 has half as many numbers as the one above it, so that large values are
    precise and small ones are not 0. They are the middles of equal parts of the decade.
    Source: dynamic tree quantization, Dettmers 2016 (arXiv:1511.04561), as in "8-bit Optimizers via
            Block-wise Quantization" (Dettmers et al. 2022, arXiv:2110.02861).
    """
    return torch.tensor(_table_numbers(signed), dtype=torch.float32)


@functools.cache
def _table_numbers(signed: bool) -> list[float]:
    numbers = [0.0, 1.0]
    for decade in range(7):
        parts = 2**decade if signed else 2 ** (decade + 1)
        for part in range(parts):
            number = 10.0 ** (decade - 6) * (0.1 + 0.9 * (part + 0.5) / parts)
            numbers += [number, -number] if signed else [number]
    return sorted(numbers)


def to_eight_bit(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Store a tensor in 8 bits per number, in blocks of 256: each number becomes the nearest in the
    table.

    signed:  whether numbers may be below 0. If not, only 0 becomes 0: where Adam's v is too large,
             an update is too small, but a v of 0 would make it huge
    returns: the codes, uint8 [blocks, 256], and each block's largest magnitude, float32
    """
    flat = values.detach().reshape(-1).float()
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    shares = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
    table = dynamic_table(signed).to(values.device)
    codes = torch.bucketize(shares, (table[1:] + table[:-1]) / 2)
    if not signed:
        codes = torch.where(shares > 0, codes.clamp(min=1), codes)
    return codes.to(torch.uint8), scales


def from_eight_bit(codes: Tensor, scales: Tensor, shape: torch.Size, *, signed: bool) -> Tensor:
    """Return the numbers that were stored, float32: table[code] * the scale of its block."""
    table = dynamic_table(signed).to(codes.device)
    values = table[codes.int()] * scales[:, None]
    return values.view(-1)[: shape.numel()].view(shape)


class AdamW8bit(PerParameterOptimizer):
    """AdamW with m and v in 8 bits; it computes in fp32, one parameter at a time.

    smallest: parameters with fewer numbers, such as biases and norms, keep their means in fp32, as
              in bitsandbytes and torchao
    Example: AdamW8bit(model.parameters(), lr=1e-3) keeps about 2 bytes per weight, instead of 8
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        smallest: int = 4096,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "smallest": smallest})

    def step_one(self, weight: Tensor, gradient: Tensor, state: State, group: State) -> None:
        old = [_read(state, name, weight.shape) for name in ("exp_avg", "exp_avg_sq")]
        first, second = adam_means(gradient, old[0], old[1], group["betas"])
        state["step"] = state.get("step", 0) + 1
        for name, mean in (("exp_avg", first), ("exp_avg_sq", second)):
            state.pop(name, None)  # an fp32 mean, from a state of torch's AdamW
            if mean.numel() < group["smallest"]:
                state[name] = mean
            else:
                stored = to_eight_bit(mean, signed=name == "exp_avg")
                state[f"{name}_codes"], state[f"{name}_scales"] = stored
        update = adamw_update(weight.float(), first, second, state["step"], group)
        weight.copy_(weight.float() + update)


def _read(state: State, name: str, shape: torch.Size) -> Tensor | None:
    if f"{name}_codes" not in state:
        return state.get(name)
    codes, scales = state[f"{name}_codes"], state[f"{name}_scales"]
    return from_eight_bit(codes, scales, shape, signed=name == "exp_avg")
