"""Answers to `mx_block`, written without a look at its table of mistakes."""

import math

import numpy as np
import torch

from amp_course.bits import FP4_E2M1, encode
from amp_course.bits.scalar import decode
from amp_course.checking import edited
from amp_course.frontiers import MXFP4, blocks_of

TABLE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MIDDLES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def by_table(block):
    largest = block.abs().max().item()
    exponent = math.floor(math.log2(largest)) - 2 if largest else 0
    size = block.abs() / 2.0**exponent
    low, high = torch.bucketize(size, MIDDLES), torch.bucketize(size, MIDDLES, right=True)
    place = torch.where(low % 2 == 0, low, high)
    return TABLE[place] * block.sign(), 2.0**exponent


def in_plain_python(block):
    numbers = block.tolist()
    largest = max(map(abs, numbers))
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 3) if largest > 0 else 2.0**-127
    clipped = [min(max(number / scale, -6.0), 6.0) for number in numbers]
    return torch.tensor([decode(encode(number, FP4_E2M1), FP4_E2M1) for number in clipped]), scale


def the_course_s(block):
    parts = blocks_of(block, MXFP4)
    return parts.elements[0], parts.scales[0]


def from_bits(block):
    pattern = block.abs().max().view(torch.int32)
    scale = (pattern & 0x7F800000).view(torch.float32) / 4
    scaled = (block / scale.clamp(min=2.0**-120)).numpy()
    size = np.abs(scaled)
    step = np.where(size < 2, 0.5, np.where(size < 4, 1.0, 2.0)).astype(np.float32)
    elements = torch.from_numpy(np.minimum(np.round(size / step) * step, 6) * np.sign(scaled))
    return elements, scale.clamp(min=2.0**-120)


SCALE = "scale = (pattern & 0x7F800000).view(torch.float32) / 4"
EXPONENT = "exponent = math.floor(math.log2(largest)) - 2 if largest else 0"
PLACE = "place = torch.where(low % 2 == 0, low, high)"
RIGHT = {
    "by a table": by_table,
    "in plain Python": in_plain_python,
    "the course's": the_course_s,
    "from bits": from_bits,
}
WRONG = {
    "ceil": (edited(by_table, {EXPONENT: EXPONENT.replace("floor", "ceil")}), "rounds up"),
    "no emax": (edited(from_bits, {SCALE: SCALE.replace(" / 4", "")}), "forgets emax"),
    "a share of 6": (
        edited(by_table, {EXPONENT: "exponent = math.log2(largest / 6) if largest else 0"}),
        "no power of two",
    ),
    "ceil of a sixth": (
        edited(
            by_table, {EXPONENT: "exponent = math.ceil(math.log2(largest / 6)) if largest else 0"}
        ),
        "lets nothing saturate",
    ),
    "floor of a sixth": (
        edited(
            by_table, {EXPONENT: "exponent = math.floor(math.log2(largest / 6)) if largest else 0"}
        ),
        "rounds up past the range",
    ),
    "ties down": (edited(by_table, {PLACE: "place = low"}), "ties towards 0"),
    "ties up": (edited(by_table, {PLACE: "place = high"}), "ties away from 0"),
    "the logarithm of 0": (
        edited(by_table, {EXPONENT: "exponent = math.floor(math.log2(largest)) - 2"}),
        None,
    ),
    "a scale of 0 for zeros": (
        lambda block: by_table(block) if block.any() else (block, 0.0),
        None,
    ),
    "no sign": (edited(by_table, {PLACE: f"{PLACE}\nblock = block.abs()"}), None),
    "bf16": (lambda block: by_table(block.bfloat16().float()), None),
    "for bf16's 2^-126": (lambda block: by_table(block * (block.abs() > 1e-20)), None),
    "16 bits come back": (
        lambda block: (by_table(block)[0].half(), by_table(block)[1]),
        "in 16 bits",
    ),
}
