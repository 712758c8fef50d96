"""Answers to `count_bytes`, written without a look at its table of mistakes."""

from fractions import Fraction
from types import MappingProxyType

import numpy as np
import torch

RIGHT = {
    "sums, any order": {"half": 2 + 2 + 2 + 2, "amp": 4.0 * 4, "fp32": 4 + 4 + 8},
    "numbers of libraries": MappingProxyType(
        {"fp32": np.int64(16), "amp": torch.tensor(16), "half": Fraction(8)}
    ),
    "one more key": dict(fp32=16, amp=16, half=8, bf16=8),
}
WRONG = {
    "16-bit gradients under AMP": (
        {"fp32": 16, "amp": 4 + 2 + 8, "half": 8},
        "AMP: one of four in 16 bits",
    ),
    "a gradient forgotten": ({"fp32": 12, "amp": 12, "half": 6}, "fp32: three numbers"),
    "Adam's averages in fp32": (
        {"fp32": 16, "amp": 16, "half": 2 + 2 + 8},
        "half: two of four in fp32",
    ),
    "one average under AMP": (
        {"fp32": 16, "amp": np.float32(12), "half": 6},
        "AMP: two of four in 16 bits",
    ),
    "a master copy": ({"fp32": 16, "amp": 16, "half": 20}, None),
    "strings": ({"fp32": "16", "amp": 16, "half": 8}, None),
}
