"""Answers to `pack_two_bits`, written without a look at its table of mistakes."""

import numpy as np
import torch

from amp_course.checking import edited
from amp_course.frontiers import packing


def strided():
    def pack(codes):
        padded = torch.zeros(-(-len(codes) // 4) * 4, dtype=torch.uint8)
        padded[: len(codes)] = codes
        return padded[0::4] + padded[1::4] * 4 + padded[2::4] * 16 + padded[3::4] * 64

    def unpack(packed, count):
        result = torch.empty(4 * len(packed), dtype=torch.uint8)
        for place in range(4):
            result[place::4] = packed // 4**place % 4
        return result[:count]

    return pack, unpack


def in_plain_python():
    def pack(codes):
        numbers = codes.tolist()
        made = []
        for start in range(0, len(numbers), 4):
            value = 0
            for code in reversed(numbers[start : start + 4]):
                value = value << 2 | code
            made.append(value)
        return torch.tensor(made, dtype=torch.uint8)

    def unpack(packed, count):
        found = [byte >> shift & 0b11 for byte in packed.tolist() for shift in range(0, 8, 2)]
        return torch.tensor(found[:count], dtype=torch.uint8)

    return pack, unpack


def of_numpy():
    def pack(codes):
        bits = np.stack([codes.numpy() & 1, codes.numpy() >> 1], axis=1).astype(np.uint8)
        return torch.from_numpy(np.packbits(bits.ravel(), bitorder="little"))

    def unpack(packed, count):
        bits = np.unpackbits(packed.numpy(), bitorder="little").reshape(-1, 2)[:count]
        return torch.from_numpy(bits[:, 0] + 2 * bits[:, 1])

    return pack, unpack


SUM = "return padded[0::4] + padded[1::4] * 4 + padded[2::4] * 16 + padded[3::4] * 64"
TAKE, CUT = "result[place::4] = packed // 4**place % 4", "return result[:count]"
BIG = {
    'return torch.from_numpy(np.packbits(bits.ravel(), bitorder="little"))': "return "
    "torch.from_numpy(np.packbits(bits.ravel()))",
    'bits = np.unpackbits(packed.numpy(), bitorder="little").reshape(-1, 2)[:count]': "bits = "
    "np.unpackbits(packed.numpy()).reshape(-1, 2)[:count]",
}
RIGHT = {
    "strided": strided(),
    "in plain Python": in_plain_python(),
    "of NumPy": list(of_numpy()),
    "the course's": (packing.pack, packing.unpack),
}
WRONG = {
    "another order": (
        edited(
            strided,
            {
                SUM: "return padded[0::4] * 64 + padded[1::4] * 16 + padded[2::4] * 4 + "
                "padded[3::4]",
                TAKE: TAKE.replace("4**place", "4**(3 - place)"),
            },
        )(),
        "the first in the highest bits",
    ),
    "another order back": (
        edited(strided, {TAKE: TAKE.replace("4**place", "4**(3 - place)")})(),
        "unpacks in the wrong order",
    ),
    "bits the other way round": (edited(of_numpy, BIG)(), None),
    "three codes to a byte": (
        edited(strided, {SUM: SUM.replace(" + padded[3::4] * 64", "")})(),
        None,
    ),
    "halves": (
        edited(
            strided,
            {
                SUM: SUM.replace("* 4 ", "* 2 ").replace("16", "4").replace("64", "8"),
                TAKE: TAKE.replace("4**", "2**"),
            },
        )(),
        None,
    ),
    "place by place": (
        edited(strided, {TAKE: TAKE.replace("[place::4]", ".view(4, -1)[place]")})(),
        "unpacks a quarter apart",
    ),
    "all of it": (edited(strided, {CUT: "return result"})(), "the padding comes back"),
    "no remainder": (edited(strided, {TAKE: "result[place::4] = packed // 4**place"})(), "no mask"),
    "floor": (
        edited(
            strided,
            {
                "padded = torch.zeros(-(-len(codes) // 4) * 4, dtype=torch.uint8)": "padded = "
                "torch.zeros(len(codes) // 4 * 4, dtype=torch.uint8)",
                "padded[: len(codes)] = codes": "padded[:] = codes[: len(padded)]",
            },
        )(),
        "the tail is lost",
    ),
    "one function": (packing.pack, None),
    "the other way round": ((packing.unpack, packing.pack), None),
    "nothing yet": ((packing.pack, lambda packed, count: ...), None),
}
