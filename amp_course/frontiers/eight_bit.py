"""AdamW whose two means take one byte a weight: codes of a table,
and one fp32 scale for each block.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from amp_course.frontiers.per_parameter import PerParameterOptimizer, adam_means, adamw_update

BLOCK = 256  # weights that share a scale


def dynamic_table(signed: bool) -> Tensor:
    """Return the 256 numbers from -1 or 0 to 1 that a code can mean, float32, in order: few digits,
    and seven decades.

    Each decade down to 1e-6 has half as many numbers as the one above it, so that large values are
    precise and small ones are not 0. They lie in the middle of equal parts of the decade.
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
    """Store a tensor in 8 bits a number, block by block of 256: each becomes the nearest number of
    the table.

    signed:  whether there may be numbers below 0. If not, only 0 becomes 0: for Adam's v, a
             smallest number that is too large makes an update too small, but a 0 would make it huge
    returns: the codes, uint8 [blocks, 256], and for each block its largest magnitude, float32
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

    smallest: parameters of fewer numbers, biases and norms, keep their means in fp32, as in
              bitsandbytes and torchao
    Example: AdamW8bit(model.parameters(), lr=1e-3).state_bytes() → about 2 a weight, instead of 8
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

    def step_one(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        old = [_read(state, name, weight.shape) for name in ("exp_avg", "exp_avg_sq")]
        first, second = adam_means(gradient, old[0], old[1], group["betas"])
        state["step"] = state.get("step", 0) + 1
        for name, mean in (("exp_avg", first), ("exp_avg_sq", second)):
            state.pop(name, None)  # in fp32, from a state of torch's own AdamW
            if mean.numel() < group["smallest"]:
                state[name] = mean
            else:
                stored = to_eight_bit(mean, signed=name == "exp_avg")
                state[f"{name}_codes"], state[f"{name}_scales"] = stored
        update = adamw_update(weight.float(), first, second, state["step"], group)
        weight.copy_(weight.float() + update)

    def state_bytes(self) -> int:
        kept = (value for state in self.state.values() for value in state.values())
        return sum(value.nbytes for value in kept if isinstance(value, Tensor))


def _read(state: dict[str, Any], name: str, shape: torch.Size) -> Tensor | None:
    if f"{name}_codes" not in state:
        return state.get(name)
    codes, scales = state[f"{name}_codes"], state[f"{name}_scales"]
    return from_eight_bit(codes, scales, shape, signed=name == "exp_avg")
