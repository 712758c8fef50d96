"""AdamW whose two means take one byte a weight: codes of a table,
and one fp32 scale for each block.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
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
            Block-wise Quantization"
    (Dettmers et al. 2022, arXiv:2110.02861).
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


@dataclass(eq=False)
class EightBit:
    """A tensor in 8 bits a number: value = table[code] * the scale of its block,
    which is the block's largest magnitude.
    """

    codes: Tensor
    scales: Tensor
    shape: torch.Size
    signed: bool

    @property
    def nbytes(self) -> int:
        """Bytes that it takes: 1 + 4/256 a number."""
        return self.codes.nbytes + self.scales.nbytes

    def restore(self) -> Tensor:
        """Return the numbers, float32."""
        table = dynamic_table(self.signed).to(self.codes.device)
        return (
            (table[self.codes.int()] * self.scales[:, None])
            .view(-1)[: self.shape.numel()]
            .view(self.shape)
        )


def to_eight_bit(values: Tensor, *, signed: bool) -> EightBit:
    """Store a tensor in 8 bits a number, block by block of 256: each becomes the nearest number of
    the table.

    signed: whether there may be numbers below 0. If not, only 0 becomes 0: for Adam's v, a smallest
            number that is too large makes an update too small, but a 0 would make it huge
    """
    flat = values.detach().reshape(-1).float()
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1) if flat.numel() else flat
    shares = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
    table = dynamic_table(signed).to(values.device)
    codes = torch.bucketize(shares, (table[1:] + table[:-1]) / 2)
    if not signed:
        codes = torch.where(shares > 0, codes.clamp(min=1), codes)
    return EightBit(codes.to(torch.uint8), scales, values.shape, signed)


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
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.smallest = smallest

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "smallest": self.smallest}

    def step_one(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Read the means, bring them up to date, store them,
        and update the weight with what was not yet rounded.
        """
        first, second = adam_means(
            gradient, self._read(state, "exp_avg"), self._read(state, "exp_avg_sq"), group["betas"]
        )
        state["step"] = state.get("step", 0) + 1
        self._write(state, "exp_avg", first, signed=True)
        self._write(state, "exp_avg_sq", second, signed=False)
        weight.copy_(
            weight.float() + adamw_update(weight.float(), first, second, state["step"], group)
        )

    def _read(self, state: dict[str, Any], name: str) -> Tensor | None:
        if name in state:
            whole: Tensor = state[name]
            return whole
        if f"{name}_codes" not in state:
            return None
        signed = name == "exp_avg"
        return EightBit(
            state[f"{name}_codes"], state[f"{name}_scales"], state["shape"], signed
        ).restore()

    def _write(self, state: dict[str, Any], name: str, values: Tensor, *, signed: bool) -> None:
        # from a state that was saved with other settings
        for old in (name, f"{name}_codes", f"{name}_scales"):
            state.pop(old, None)
        if values.numel() < self.smallest:
            state[name] = values
            return
        stored = to_eight_bit(values, signed=signed)
        state[f"{name}_codes"], state[f"{name}_scales"], state["shape"] = (
            stored.codes,
            stored.scales,
            stored.shape,
        )

    def state_bytes(self) -> int:
        """Return the bytes of all means."""
        return sum(
            v.nbytes
            for state in self.state.values()
            for v in state.values()
            if isinstance(v, Tensor)
        )
