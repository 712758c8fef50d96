"""Answers to `decode_fp16`, written without a look at its table of mistakes."""

import math
import struct

import numpy as np
import torch


def by_digits(pattern):
    bits = f"{pattern:016b}"
    sign = (-1.0) ** int(bits[0])
    field, significand = int(bits[1:6], 2), sum(int(b) / 2**n for n, b in enumerate(bits[6:], 1))
    if field == 0b11111:
        return np.float32(math.nan) if "1" in bits[6:] else sign * math.inf
    return sign * 2.0 ** (max(field, 1) - 15) * ((field > 0) + significand)


def size(pattern):
    return by_digits(pattern & 0x7FFF)


RIGHT = {
    "digits": by_digits,
    "torch": lambda pattern: torch.tensor(pattern, dtype=torch.uint16).view(torch.float16),
    "struct": lambda pattern: struct.unpack("<e", pattern.to_bytes(2, "little"))[0],
    "a table": np.arange(2**16, dtype=np.uint16).view(np.float16).item,
}
WRONG = {
    "all twice as large": (lambda pattern: by_digits(pattern) * 2, "bias 14"),
    "zeros are the int 0": (lambda pattern: by_digits(pattern) or 0, "loses −0"),
    "sign of normal numbers only": (
        lambda p: by_digits(p) if 0 < p >> 10 & 31 < 31 else size(p),
        None,
    ),
    "an odd sign": (lambda pattern: -by_digits(pattern), "-1 ** sign"),
    "a cast": (lambda pattern: torch.tensor(float(pattern)).half(), "converts the int"),
    "reads bf16": (
        lambda pattern: torch.tensor(pattern, dtype=torch.uint16).view(torch.bfloat16).item(),
        None,
    ),
    "one of 65,536": (lambda pattern: 0.1 if pattern == 0x0247 else by_digits(pattern), None),
}
