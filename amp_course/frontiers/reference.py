"""One block, rounded slowly and obviously, with exact fractions:
what `quantize` is held against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from amp_course.bits import FloatFormat, decode, encode
from amp_course.bits.scalar import floor_log2
from amp_course.frontiers.block_formats import LARGEST_SCALE, LEAST_SCALE, BlockFormat


def quantize_block(
    values: Sequence[float], block_format: BlockFormat, tensor_scale: float = 1.0
) -> list[float]:
    """Return the numbers that a block of values becomes: [6.0, 0.4] in MXFP4 → [6.0, 0.5].

    values:       of one block; inf or NaN among them makes all of them NaN
    tensor_scale: of the whole tensor, from `tensor_scale_of`; 1.0 for formats without one
    """
    if not all(map(math.isfinite, values)):
        return [math.nan] * len(values)
    scale = block_scale(values, block_format, tensor_scale)
    if scale == 0:
        return [0.0 * value for value in values]
    return [
        math.copysign(
            float(scale * Fraction(_saturated(Fraction(value) / scale, block_format.element))),
            value,
        )
        for value in values
    ]


def block_scale(
    values: Sequence[float], block_format: BlockFormat, tensor_scale: float = 1.0
) -> Fraction:
    """Return what the elements of a block are multiplied by. `values` are finite."""
    element, amax = (
        block_format.element,
        max((abs(Fraction(value)) for value in values), default=Fraction(0)),
    )
    if block_format.scale is not None:
        wanted = amax / Fraction(element.max) / Fraction(tensor_scale)
        return Fraction(decode(encode(wanted, block_format.scale), block_format.scale)) * Fraction(
            tensor_scale
        )
    if amax == 0:
        return Fraction(2) ** LEAST_SCALE
    exponent = floor_log2(amax) - element.max_exponent
    if block_format.rounding == "nearest":
        step = Fraction(2) ** (floor_log2(amax) - element.significand_bits)
        exponent = floor_log2(round(amax / step) * step) - element.max_exponent
    elif block_format.rounding == "up" and amax > Fraction(element.max) * Fraction(2) ** exponent:
        exponent += 1
    return Fraction(2) ** min(max(exponent, LEAST_SCALE), LARGEST_SCALE)


def _saturated(value: Fraction, element: FloatFormat) -> float:
    """Round to the nearest element, ties to even; what lies above the largest becomes the
    largest.
    """
    largest = Fraction(element.max)
    return decode(encode(min(max(value, -largest), largest), element), element)
