"""Pack numbers of 1, 2 or 4 bits into bytes, and round tensors to so few levels, group by group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = (1, 2, 4, 8)


def pack(codes: Tensor, bits: int = 2) -> Tensor:
    """Pack codes into bytes, the first in the lowest bits: [1, 2, 3, 0] of 2 bits → [0b00111001].

    codes:   integers from 0 to 2^bits - 1, any shape
    returns: uint8, flat; the last byte is padded with zeros
    Raises ValueError for bits other than 1, 2, 4 and 8, and for codes that do not fit.
    """
    per_byte = _per_byte(bits)
    if codes.is_floating_point():
        raise TypeError(f"codes are integers, and these are {codes.dtype}")
    flat = codes.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 2**bits:
        raise ValueError(
            f"codes of {bits} bits go from 0 to {2**bits - 1}, and these from {int(flat.min())} to "
            f"{int(flat.max())}"
        )
    padded = torch.nn.functional.pad(flat.to(torch.uint8), (0, -flat.numel() % per_byte))
    rows = padded.view(-1, per_byte)
    packed = torch.zeros(len(rows), dtype=torch.uint8, device=codes.device)
    for place in range(per_byte):
        packed |= rows[:, place] << (bits * place)
    return packed


def unpack(packed: Tensor, count: int, bits: int = 2) -> Tensor:
    """Return the first `count` codes in bytes from `pack`, flat, uint8."""
    room = packed.numel() * _per_byte(bits)
    if not 0 <= count <= room:
        raise ValueError(f"{packed.numel()} bytes hold {room} codes of {bits} bits, not {count}")
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & (2**bits - 1)).view(-1)[:count]


@dataclass(frozen=True, eq=False)
class Packed:
    """A tensor in few bits: a smallest number and a step for each group of numbers, and a code for
    each number.

    codes:       uint8, packed
    least, step: of each group, in bf16: value = least + code * step
    zeros:       whether code 0 means 0, and others count from 1: value = least + (code - 1) * step
    """

    codes: Tensor
    least: Tensor
    step: Tensor
    shape: torch.Size
    dtype: torch.dtype
    bits: int
    group: int
    zeros: bool

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.least.nbytes + self.step.nbytes

    def restore(self) -> Tensor:
        flat = unpack(self.codes, len(self.least) * self.group, self.bits)
        codes = flat.view(-1, self.group).float()
        levels = codes - 1 if self.zeros else codes
        values = torch.addcmul(self.least.float()[:, None], levels, self.step.float()[:, None])
        if self.zeros:
            values = torch.where(codes == 0, 0.0, values)
        return values.view(-1)[: self.shape.numel()].view(self.shape).to(self.dtype)


def compress(
    tensor: Tensor, bits: int = 2, group: int = 256, generator: torch.Generator | None = None
) -> Packed:
    """Round a tensor to 2^bits levels, group by group, at random and right on average.

    tensor: one for which `can_be_compressed` returns True
    group:  numbers that share a smallest and a step; the last group may be padded
    If the smallest number of all is 0, as after a ReLU, code 0 is reserved for zeros from 2 bits
    on: numbers above 0 stay above it, and a ReLU's gradient passes where it should.
    The ends of a group are rounded to bf16, outwards, so that each number lies between two levels
    and is right on average. Raises ValueError as `check_sizes` does.
    Source: Chen et al. 2021, "ActNN" (arXiv:2104.14129), section 4: per-group quantisation with
            stochastic rounding.
    """
    check_sizes(bits, group)
    flat = tensor.detach().reshape(-1).float()
    rows = torch.cat([flat, flat[-1:].expand(-flat.numel() % group)]).view(-1, group)
    zeros = bits > 1 and float(flat.min()) == 0.0
    low, high = rows.aminmax(dim=1)
    if zeros:  # the smallest number above 0; a group of zeros takes 0
        above = torch.where(rows > 0, rows, torch.inf).amin(1)
        low = torch.where(above.isinf(), 0.0, above)
    least = _outwards(low, up=False)
    levels = 2**bits - (2 if zeros else 1)
    step = _outwards((high - least.float()) / levels, up=True)
    width = torch.where(step > 0, step.float(), 1.0)[:, None]
    device = rows.device if generator is None else generator.device
    noise = torch.rand(rows.shape, generator=generator, device=device).to(rows.device)
    codes = ((rows - least.float()[:, None]) / width + noise).floor_().clamp_(0, levels)
    if zeros:
        codes = torch.where(rows > 0, codes + 1, 0.0)
    packed = pack(codes.to(torch.uint8), bits)
    return Packed(packed, least, step, tensor.shape, tensor.dtype, bits, group, zeros)


def can_be_compressed(tensor: Tensor) -> bool:
    """Return True if a tensor's numbers are finite, and its range is finite in bf16."""
    least, largest = tensor.detach().float().aminmax()
    return bool((largest - least).bfloat16().isfinite())


def check_sizes(bits: int, group: int) -> None:
    """Raise ValueError for bits other than 1, 2, 4 and 8, and a group that fills no whole bytes."""
    per_byte = _per_byte(bits)
    if group < 1 or group % per_byte:
        raise ValueError(
            f"group is {group}: it has to fill whole bytes, {per_byte} codes of {bits} bits to a "
            f"byte"
        )


def _outwards(values: Tensor, *, up: bool) -> Tensor:
    """Round to bf16 upwards or downwards."""
    near = values.bfloat16()
    wrong = near.float() < values if up else near.float() > values
    further = torch.nextafter(near, near.new_tensor(torch.inf if up else -torch.inf))
    return torch.where(wrong, further, near)


def _per_byte(bits: int) -> int:
    if bits not in BITS:
        raise ValueError(f"bits is {bits!r}: a byte is cut into codes of 1, 2, 4 or 8 bits")
    return 8 // bits
