"""Block formats as data: how a number is stored, how many numbers share a scale, and how the scale
is stored and rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from amp_course.bits.formats import (
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    FP32,
    FloatFormat,
)

ScaleRounding = Literal["down", "nearest", "up"]

LEAST_SCALE, LARGEST_SCALE = -127, 127  # exponents of E8M0


@dataclass(frozen=True)
class BlockFormat:
    """A format whose numbers share scales: each `size` numbers in a row are stored as elements
    times one scale.

    name:     as the course writes it, "MXFP4"
    element:  the format of a stored number
    size:     how many share a scale
    scale:    the format of the scale; None for E8M0, a power of two from 2^-127 to 2^127, or NaN
    rounding: of a power-of-two scale, with amax the largest magnitude of its block:
              "down":    2^(floor(log2 amax) - the largest exponent of an element); scaled numbers
              above the largest element are clipped to it
              "nearest": as "down", after amax was rounded to the significand bits of an element
              "up":      the smallest scale that clips nothing

    A scale that is no power of two is amax / the largest element, rounded to nearest. If its format
    has a narrower range than fp32, one fp32 scale for the whole tensor brings the scales into that
    range. Raises ValueError for sizes below 1 and unknown roundings.
    Source: OCP Microscaling Formats v1.0, sections 5 and 6.3 ("down"); torchao's
            `ScaleCalculationMode` FLOOR, EVEN, RCEIL; for NVFP4: NVIDIA, "Pretraining Large
            Language Models with NVFP4", 2025 (arXiv:2509.25149), appendix.
    """

    name: str
    element: FloatFormat
    size: int = 32
    scale: FloatFormat | None = None
    rounding: ScaleRounding = "down"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"{self.name}: a block holds at least 1 number, not {self.size!r}")
        if self.rounding not in get_args(ScaleRounding):
            raise ValueError(
                f"{self.name}: unknown rounding {self.rounding!r}: choose “down”, “nearest” or “up”"
            )

    @property
    def bits(self) -> Fraction:
        """Bits per number, its share of the scale included: 17/4 for MXFP4."""
        return self.element.bits + Fraction(8 if self.scale is None else self.scale.bits, self.size)

    @property
    def two_level(self) -> bool:
        """True if the whole tensor has a scale, too."""
        return self.scale is not None and self.scale.max_exponent < FP32.max_exponent

    def with_size(self, size: int) -> BlockFormat:
        return replace(self, size=size)

    def rounding_scale(self, rounding: ScaleRounding) -> BlockFormat:
        """Return the format with another rounding of the scale."""
        return replace(self, rounding=rounding)


MXFP8_E5M2 = BlockFormat("MXFP8 E5M2", FP8_E5M2)
MXFP8_E4M3 = BlockFormat("MXFP8 E4M3", FP8_E4M3)
MXFP6_E3M2 = BlockFormat("MXFP6 E3M2", FP6_E3M2)
MXFP6_E2M3 = BlockFormat("MXFP6 E2M3", FP6_E2M3)
MXFP4 = BlockFormat("MXFP4", FP4_E2M1)
NVFP4 = BlockFormat("NVFP4", FP4_E2M1, 16, FP8_E4M3)

BLOCK_FORMATS = (MXFP8_E5M2, MXFP8_E4M3, MXFP6_E3M2, MXFP6_E2M3, MXFP4, NVFP4)
