"""One block, rounded slowly and obviously, with exact fractions: the reference for `quantize`, and
what `BlockExplorer` shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from amp_course.bits.formats import FP32, FloatFormat
from amp_course.bits.scalar import decode, encode, floor_log2, ulp
from amp_course.frontiers.block_formats import LARGEST_SCALE, LEAST_SCALE, BlockFormat


def quantize_block(
    values: Sequence[float],
    block_format: BlockFormat,
    tensor_scale: float = 1.0,
    draw: Callable[[], float] | None = None,
) -> list[float]:
    """Return the numbers that a block of values becomes: [6.0, 0.4] in MXFP4 → [6.0, 0.5].

    values:       of one block, all finite
    tensor_scale: of the whole tensor, from `fp32_scale`; 1.0 for formats without one
    draw:         returns random numbers from 0 to 1 for stochastic rounding; None rounds to
                  nearest, ties to even
    """
    scale = block_scale(values, block_format, tensor_scale)
    if scale == 0:
        return [0.0 * value for value in values]
    rounded = (_saturated(Fraction(value) / scale, block_format.element, draw) for value in values)
    return [
        math.copysign(float(scale * Fraction(element)), value)
        for element, value in zip(rounded, values, strict=True)
    ]


def fp32_scale(values: Sequence[float], block_format: BlockFormat) -> float:
    """Return the fp32 scale of a whole tensor of finite values; 1.0 for formats without one."""
    if block_format.scale is None or not block_format.two_level:
        return 1.0
    room = block_format.element.max * block_format.scale.max
    scale = decode(encode(max(map(abs, values)) / room, FP32), FP32)
    return scale if 0 < scale < math.inf else 1.0


def block_scale(
    values: Sequence[float], block_format: BlockFormat, tensor_scale: float = 1.0
) -> Fraction:
    """Return the factor of a block's elements. `values` are finite."""
    element, amax = block_format.element, Fraction(max(map(abs, values)))
    if block_format.scale is not None:
        wanted = amax / Fraction(element.max) / Fraction(tensor_scale)
        stored = decode(encode(wanted, block_format.scale), block_format.scale)
        return Fraction(stored) * Fraction(tensor_scale)
    if amax == 0:
        return Fraction(2) ** LEAST_SCALE
    exponent = floor_log2(amax) - element.max_exponent
    if block_format.rounding == "nearest":
        step = Fraction(2) ** (floor_log2(amax) - element.significand_bits)
        exponent = floor_log2(round(amax / step) * step) - element.max_exponent
    elif block_format.rounding == "up" and amax > Fraction(element.max) * Fraction(2) ** exponent:
        exponent += 1
    return Fraction(2) ** min(max(exponent, LEAST_SCALE), LARGEST_SCALE)


def _saturated(
    value: Fraction, element: FloatFormat, draw: Callable[[], float] | None
) -> float | Fraction:
    """Round to an element; larger values become the largest element."""
    largest = Fraction(element.max)
    value = min(max(value, -largest), largest)
    if draw is None:
        return decode(encode(value, element), element)
    step = Fraction(ulp(value, element))
    return math.floor(value / step + Fraction(draw())) * step
