"""Answers to `round_bf16`, written without a look at its table of mistakes."""

import struct

import numpy as np
import torch


def answer(differs, function):
    return {"differs": differs, "round_bf16": function}


def by_numpy(x):
    bits = x.numpy().view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    high = np.where(
        x.isnan(), 0x7FC0, high + ((low > 0x8000) | ((low == 0x8000) & (high % 2 == 1)))
    )
    return (
        torch.from_numpy(np.asarray(high).astype(np.uint16).view(np.int16))
        .view(torch.bfloat16)
        .reshape(x.shape)
    )


def one_by_one(x):
    def pattern(value):
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return 0x7FC0 if value != value else (bits + 0x7FFF + (bits >> 16) % 2) >> 16

    flat = [pattern(value) for value in x.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.uint16).view(torch.bfloat16).reshape(x.shape)


RIGHT = {
    "numpy, a negative number": answer(-1.1, by_numpy),
    "torch's cast, an odd tie": answer(np.float64(1 + 3 * 2**-8), torch.Tensor.bfloat16),
    "one by one, a tensor": answer(torch.tensor(3.4e38), one_by_one),
}
WRONG = {
    "0.5": (answer(0.5, by_numpy), "bf16 has it"),
    "2, and a function that raises": (answer(2, lambda x: x.item()), None),
    "fp32": (
        answer(0.1, lambda x: (x.view(torch.int32) >> 16 << 16).view(torch.float32)),
        "returns float32",
    ),
    "half a step by size": (answer(0.1, lambda x: by_numpy(x * (1 + 2.0**-9))), None),
    "NaN in place": (answer(0.1, lambda x: x.nan_to_num_(1.0).bfloat16()), None),
    "at least 1-d": (answer(0.1, lambda x: by_numpy(torch.atleast_1d(x))), None),
    "contiguous only": (answer(0.1, lambda x: by_numpy(x.view(-1)).view(x.shape)), None),
}
