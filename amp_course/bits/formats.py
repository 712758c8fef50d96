"""Number formats as data: the only place that spells out a format's constants.

A format is a sign bit, exponent bits and significand bits, a bias, and a rule for its special
patterns. Largest value, smallest value and spacing all follow. No arithmetic here: `scalar.py`
reads and writes single patterns, `rounding.py` rounds tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Specials = Literal["ieee", "fn", "finite"]

WIDEST_EXPONENT, WIDEST_SIGNIFICAND = 11, 52  # fp64's: every value of a format is a Python float


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of at most 64 bits.

    name:             as the course writes it, "fp16"
    exponent_bits:    1 to 11
    significand_bits: those that are stored, 0 to 52; a normal number has one more, the hidden 1
    bias:             what is taken off the exponent field
    specials:         "ieee":   an exponent field of all ones is inf or NaN
                      "fn":     only the pattern of all ones is NaN, and there is no inf (fp8 E4M3)
                      "finite": every pattern is a number (OCP fp6 and fp4)
    torch_name:       torch's name of the dtype, or None where torch has none

    Raises TypeError for widths that are not ints; ValueError for widths beyond fp64's, a range that
    a Python float cannot hold, or unknown specials.
    Example: FloatFormat.of(5, 10).max → 65504.0
    Source: IEEE 754-2019; Micikevicius et al. 2022 (arXiv:2209.05433) for fp8; OCP Microscaling
            Formats v1.0 for fp6, fp4.
    """

    name: str
    exponent_bits: int
    significand_bits: int
    bias: int
    specials: Specials = "ieee"
    torch_name: str | None = None

    def __post_init__(self) -> None:
        if self.specials not in get_args(Specials):
            raise ValueError(
                f"{self.name}: unknown specials {self.specials!r}: choose “ieee”, “fn” or “finite”"
            )
        # inf and NaN share one exponent field, so numbers need another; a significand bit
        # distinguishes the two
        limits = {
            "exponent_bits": (1 if self.specials == "finite" else 2, WIDEST_EXPONENT),
            "significand_bits": (1 if self.specials == "ieee" else 0, WIDEST_SIGNIFICAND),
        }
        for what in (*limits, "bias"):
            value = getattr(self, what)
            if type(value) is not int:
                raise TypeError(f"{self.name}: {what} has to be an int, not {value!r}")
        for what, (least, most) in limits.items():
            value = getattr(self, what)
            if not least <= value <= most:
                raise ValueError(
                    f"{self.name}: {value} {what.replace('_', ' ')}: a format with "
                    f"“{self.specials}” specials takes {least} to {most}"
                )
        if self.max_exponent > 1023 or self.min_exponent - self.significand_bits < -1074:
            raise ValueError(
                f"{self.name}: with {self.exponent_bits} exponent bits and a bias of {self.bias} "
                "some numbers would be outside fp64's range: take fewer bits, or a bias nearer to "
                "IEEE's 2^(exponent bits − 1) − 1"
            )

    @classmethod
    def of(
        cls, exponent_bits: int, significand_bits: int, specials: Specials = "ieee"
    ) -> FloatFormat:
        """Return a format of your own widths with IEEE's bias: of(4, 3).name → "E4M3"."""
        name = f"E{exponent_bits}M{significand_bits}"
        # a width out of range is refused by __post_init__
        in_range = isinstance(exponent_bits, int) and 0 < exponent_bits <= WIDEST_EXPONENT
        bias = 2 ** (exponent_bits - 1) - 1 if in_range else 0
        return cls(name, exponent_bits, significand_bits, bias, specials)

    @property
    def bits(self) -> int:
        """How many bits a pattern has: 16 for fp16, 19 for tf32."""
        return 1 + self.exponent_bits + self.significand_bits

    @property
    def top_field(self) -> int:
        """The exponent field of all ones: 31 for fp16."""
        return 2**self.exponent_bits - 1

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number, and of all subnormals: −14 for fp16."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest number: 15 for fp16."""
        top = self.max_pattern >> self.significand_bits
        return max(top, 1) - self.bias

    @property
    def max_pattern(self) -> int:
        """The pattern of the largest number: 0x7BFF for fp16."""
        if self.specials == "ieee":
            return (self.top_field << self.significand_bits) - 1
        last = 2 ** (self.bits - 1) - 1
        return last - 1 if self.specials == "fn" else last

    @property
    def max(self) -> float:
        """The largest number: 65504 for fp16."""
        field, significand = divmod(self.max_pattern, 2**self.significand_bits)
        hidden = 2**self.significand_bits if field else 0
        return math.ldexp(hidden + significand, self.max_exponent - self.significand_bits)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all its significand bits: 2^−14 for fp16."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number: 2^−24 for fp16; without significand bits, a normal one."""
        return math.ldexp(1.0, self.min_exponent - self.significand_bits)

    @property
    def eps(self) -> float:
        """From 1 to the next number: 2^−10 for fp16."""
        return math.ldexp(1.0, -self.significand_bits)

    @property
    def decimal_digits(self) -> int:
        """How many decimal digits always survive conversion to the format and back: fp16 → 3.

        Source: C's FLT_DIG, floor((p − 1) · log10 2); p significand bits include the hidden one.
        """
        return math.floor(self.significand_bits * math.log10(2))

    @property
    def dtype(self) -> torch.dtype | None:
        """The torch dtype with these values, or None."""
        return getattr(torch, self.torch_name) if self.torch_name else None


FP64 = FloatFormat("fp64", 11, 52, 1023, "ieee", "float64")
FP32 = FloatFormat("fp32", 8, 23, 127, "ieee", "float32")
# how tensor cores read an fp32 input; stored in 32 bits
TF32 = FloatFormat("tf32", 8, 10, 127, "ieee")
BF16 = FloatFormat("bf16", 8, 7, 127, "ieee", "bfloat16")
FP16 = FloatFormat("fp16", 5, 10, 15, "ieee", "float16")
FP8_E5M2 = FloatFormat("fp8 E5M2", 5, 2, 15, "ieee", "float8_e5m2")
FP8_E4M3 = FloatFormat("fp8 E4M3", 4, 3, 7, "fn", "float8_e4m3fn")
FP6_E3M2 = FloatFormat("fp6 E3M2", 3, 2, 3, "finite")
FP6_E2M3 = FloatFormat("fp6 E2M3", 2, 3, 1, "finite")
FP4_E2M1 = FloatFormat("fp4 E2M1", 2, 1, 1, "finite")

FORMATS = (FP64, FP32, TF32, BF16, FP16, FP8_E5M2, FP8_E4M3, FP6_E3M2, FP6_E2M3, FP4_E2M1)
_BY_NAME = {fmt.name: fmt for fmt in FORMATS}
_BY_DTYPE = {fmt.dtype: fmt for fmt in FORMATS if fmt.dtype}


def find_format(name: str | torch.dtype | FloatFormat) -> FloatFormat:
    """Return the format of a name or a torch dtype: "bf16" → BF16, torch.float16 → FP16.

    Raises ValueError, listing the known names, for any other.
    """
    if isinstance(name, FloatFormat):
        return name
    found = _BY_DTYPE.get(name) if isinstance(name, torch.dtype) else _BY_NAME.get(str(name))
    if found is None:
        raise ValueError(
            f"unknown format {name!s}: the course has {', '.join(_BY_NAME)}; "
            "make your own with `FloatFormat.of(exponent_bits, significand_bits)`"
        )
    return found
