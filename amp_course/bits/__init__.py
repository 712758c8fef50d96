"""Chapter 01: number formats as data, their bit patterns, and rounding tensors into them."""

from amp_course.bits.formats import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    TF32,
    FloatFormat,
    find_format,
)
from amp_course.bits.rounding import round_to
from amp_course.bits.scalar import decode, encode, kind, neighbours, ulp

__all__ = [
    "BF16",
    "FORMATS",
    "FP4_E2M1",
    "FP6_E2M3",
    "FP6_E3M2",
    "FP8_E4M3",
    "FP8_E5M2",
    "FP16",
    "FP32",
    "FP64",
    "TF32",
    "FloatFormat",
    "decode",
    "encode",
    "find_format",
    "kind",
    "neighbours",
    "round_to",
    "ulp",
]
