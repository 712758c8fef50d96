"""Chapter 12: what lies below 16 bits."""

from amp_course.frontiers.block_formats import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
)
from amp_course.frontiers.quantizing import blocks_of, quantize

__all__ = [
    "BLOCK_FORMATS",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "NVFP4",
    "BlockFormat",
    "blocks_of",
    "quantize",
]
