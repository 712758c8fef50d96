"""Answers to `smallest_step`, written without a look at its table of mistakes."""

import math

import torch

BITS = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}


def bisects_patterns(dtype):
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[
        torch.empty((), dtype=dtype).element_size()
    ]
    one = torch.tensor(1.0, dtype=dtype)
    low, high = 0, one.view(integer).item()
    while high - low > 1:
        middle = (low + high) // 2
        moves = one + torch.tensor(middle, dtype=integer).view(dtype) != one
        low, high = (low, middle) if moves else (middle, high)
    return torch.tensor(high, dtype=integer).view(dtype).item()


RIGHT = {
    "bisects patterns": bisects_patterns,
    "from finfo": lambda dtype: torch.tensor(
        [(e := torch.finfo(dtype).eps) / 2 * (1 + e)], dtype=dtype
    ),
    "from the bits": lambda dtype: 2.0 ** -(BITS[dtype] + 1) * (1 + 2.0 ** -BITS[dtype]),
}
WRONG = {
    "the ulp of Python": (lambda dtype: math.ulp(1.0), "the gap above 1 in float64"),
    "gap below 1": (lambda dtype: 2.0 ** -(BITS[dtype] + 1), "the tie"),
    "tiny": (lambda dtype: torch.finfo(dtype).tiny, "the smallest normal number"),
    "one pattern": (
        lambda dtype: torch.finfo(dtype).tiny * torch.finfo(dtype).eps,
        "the smallest positive number",
    ),
    "fp16's for all": (lambda dtype: 2.0**-11 * (1 + 2.0**-10), None),
    "Python's next float": (lambda dtype: math.nextafter(2.0 ** -(BITS[dtype] + 1), 1), None),
}
