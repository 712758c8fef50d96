"""Exercise 4 of chapter 12: four codes to a byte and back, against bytes that are known."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    edited,
    is_blank,
    read_tensor,
)

card = Card(
    chapter="frontiers",
    name="pack_two_bits",
    number=4,
    title="Four codes to a byte",
    difficulty=2,
    importance=3,
    minutes=12,
    lines=7,
    takes="value",
    task="For `pack_two_bits`, write two functions and check them as a pair. `pack(codes)` takes "
    "integers from 0 to 3, a flat uint8 or int64 tensor of any length, and returns a flat uint8 "
    "tensor: four neighbours share a byte, the first in its lowest bits. What is left over in the "
    "last byte is 0. `unpack(packed, count)` returns the first `count` codes of such bytes, flat, "
    "in uint8. Neither changes what it is given. `[1, 2, 3, 0]` ↔ `[0b00111001]`.",
    hints=(
        "By how many bits does each of the four have to move? And what is in the other bits when "
        "you move it back?",
        "Pad to a multiple of 4, with zeros, and take `view(-1, 4)`: column k belongs to bits 2k "
        "and 2k + 1.",
        "`rows[:, 0] | rows[:, 1] << 2 | rows[:, 2] << 4 | rows[:, 3] << 6`, with rows in uint8. "
        "Back: `packed[:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8) & 3`, flat, and "
        "its first `count`.",
    ),
    why="torch has no dtype of two bits. A tensor of codes in uint8 takes four times the memory "
    "that it needs.",
    alternative="`codes[0::4] | codes[1::4] << 2 | …` of padded codes: strides instead of rows.",
)


def pair() -> tuple[Any, Any]:
    """Make both functions."""

    def pack(codes: Any) -> Any:
        small = codes.to(torch.uint8)
        padded = pad(small, (0, -len(small) % 4))
        rows = padded.view(-1, 4)
        packed = rows[:, 0] | rows[:, 1] << 2 | rows[:, 2] << 4 | rows[:, 3] << 6
        return packed

    def unpack(packed: Any, count: Any) -> Any:
        shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
        fields = packed[:, None] >> shifts
        codes = fields & 3
        return codes.flatten()[:count]

    return pack, unpack


CASES: dict[str, tuple[int, ...]] = {
    "for [1, 2, 3, 0]": (1, 2, 3, 0),
    "for [3, 3, 3, 3]": (3, 3, 3, 3),
    "for eight codes": (0, 1, 2, 3, 3, 2, 1, 0),
    "for [2]": (2,),
    "for [3, 0, 1, 2, 2, 3]": (3, 0, 1, 2, 2, 3),
    "for seven codes": (1, 0, 3, 0, 2, 1, 3),
    "for no codes": (),
}


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Pack codes of each length modulo 4, in uint8 and in int64;
    unpack what the right answer packed.
    """
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(map(callable, answer)):
        raise Wrong("the check expects both functions as a pair, `(pack, unpack)`")
    if any(map(is_blank, answer)):
        raise Wrong("one of the two functions is still to be written")
    pack, unpack = answer
    drawn = tuple(draw.randint(0, 3) for _ in range(4 * draw.randint(10, 20) + 1))
    for case, numbers in {**CASES, f"for {len(drawn)} drawn codes": drawn}.items():
        packed = as_bytes(numbers)
        for dtype in (torch.uint8, torch.int64):
            codes = torch.tensor(numbers, dtype=dtype)
            before, kind = codes.clone(), case if dtype == torch.uint8 else f"{case} in int64"
            got = read_tensor(call_answer(pack, kind, codes), kind, subject="`pack` returned")
            same = torch.equal(codes, before)
            evidence = (
                {}
                if torch.equal(got, packed)
                else {"round trip": _round_trip(pack, unpack, before)}
            )
            yield Case(
                kind,
                {"the packed tensor": got, "codes": "unchanged" if same else "changed"},
                evidence=evidence,
            )
        kept = packed.clone()
        got = call_answer(unpack, case, packed, len(numbers))
        codes = read_tensor(got, case, subject="`unpack` returned")
        yield Case(
            case,
            {
                "the unpacked tensor": codes,
                "packed": "unchanged" if torch.equal(packed, kept) else "changed",
            },
        )


def _round_trip(pack: Any, unpack: Any, codes: Tensor) -> str:
    """Return True if two functions undo each other; asked only where `pack` alone is wrong."""
    try:
        return (
            "right"
            if torch.equal(unpack(pack(codes), len(codes)).to(codes.dtype), codes)
            else "wrong"
        )
    except Exception:
        return "raises"


def as_bytes(numbers: tuple[int, ...]) -> Tensor:
    """Pack in plain Python: each byte is a number in base 4, its first digit the lowest."""
    groups = [numbers[start : start + 4] for start in range(0, len(numbers), 4)]
    return torch.tensor(
        [sum(one * 4**n for n, one in enumerate(group)) for group in groups], dtype=torch.uint8
    )


def wrong(edits: dict[str, str]) -> Any:
    """Make both functions, with lines edited."""
    return edited(pair, edits)()


SMALL, PADDED, ROWS = (
    "small = codes.to(torch.uint8)",
    "padded = pad(small, (0, -len(small) % 4))",
    "rows = padded.view(-1, 4)",
)
PACKED, RETURN = (
    "packed = rows[:, 0] | rows[:, 1] << 2 | rows[:, 2] << 4 | rows[:, 3] << 6",
    "return packed",
)
SHIFTS, FIELDS = (
    "shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)",
    "fields = packed[:, None] >> shifts",
)
CODES, CUT = "codes = fields & 3", "return codes.flatten()[:count]"
REVERSED = {PACKED: "packed = rows[:, 0] << 6 | rows[:, 1] << 4 | rows[:, 2] << 2 | rows[:, 3]"}
REVERSED_BACK = {SHIFTS: SHIFTS.replace("0, 2, 4, 6", "6, 4, 2, 0")}
OVERLAPPING = {PACKED: "packed = rows[:, 0] | rows[:, 1] << 1 | rows[:, 2] << 2 | rows[:, 3] << 3"}
OVERLAPPING_BACK = {SHIFTS: SHIFTS.replace("0, 2, 4, 6", "0, 1, 2, 3")}

mistakes = [
    Mistake(
        "the first in the highest bits",
        "the first code of four is in the highest bits of its byte. Your two functions agree, but "
        "the card puts it into the lowest ones",
        answer=wrong(REVERSED | REVERSED_BACK),
        violates="the first in its lowest bits",
    ),
    Mistake(
        "packs in the wrong order",
        "`pack` puts the first code of four into the highest bits, and `unpack` takes it from the "
        "lowest: the lowest are right",
        answer=wrong(REVERSED),
    ),
    Mistake(
        "unpacks in the wrong order",
        "`unpack` takes the first code of four from the highest bits: `pack` puts it into the "
        "lowest ones",
        answer=wrong(REVERSED_BACK),
    ),
    Mistake(
        "overlapping shifts",
        "the codes are shifted by 0, 1, 2 and 3, and overlap: a code has two bits, so shift by 0, "
        "2, 4 and 6",
        answer=wrong(OVERLAPPING | OVERLAPPING_BACK),
    ),
    Mistake(
        "packs with overlapping shifts",
        "`pack` shifts by 0, 1, 2 and 3, and the codes overlap: a code has two bits, so shift by "
        "0, 2, 4 and 6",
        answer=wrong(OVERLAPPING),
    ),
    Mistake(
        "unpacks with overlapping shifts",
        "`unpack` shifts by 0, 1, 2 and 3: a code has two bits, so shift by 0, 2, 4 and 6",
        answer=wrong(OVERLAPPING_BACK),
    ),
    Mistake(
        "no mask",
        "after the shift, the bits of later codes are still there: keep the lowest two, `& 3`",
        answer=wrong({CODES: "codes = fields"}),
    ),
    Mistake(
        "a mask of 2",
        "`& 2` keeps one bit, the second: both lowest bits are `& 3`, which is 0b11",
        answer=wrong({CODES: "codes = fields & 2"}),
    ),
    Mistake(
        "a mask of 1",
        "`& 1` keeps one bit, the lowest: both lowest bits are `& 3`, which is 0b11",
        answer=wrong({CODES: "codes = fields & 1"}),
    ),
    Mistake(
        "the tail is lost",
        "codes past the last multiple of 4 are lost: pad with zeros before you pack",
        answer=wrong({PADDED: "padded = small[: len(small) // 4 * 4]"}),
        violates="of any length",
    ),
    Mistake(
        "multiples of 4 only",
        "`pack` takes only a multiple of 4 codes: pad with zeros up to one",
        answer=wrong({PADDED: "padded = small"}),
    ),
    Mistake(
        "one group too many",
        "a length that is a multiple of 4 gets another byte: `-n % 4` is how many are missing, "
        "and 0 there",
        answer=wrong({PADDED: "padded = pad(small, (0, 4 - len(small) % 4))"}),
    ),
    Mistake(
        "pads in front",
        "`pack` pads in front, so the first code is not in the lowest bits of the first byte: pad "
        "at the end",
        answer=wrong(
            {
                PADDED: "padded = pad(small, (-len(small) % 4, 0))",
                CUT: "return codes.flatten()[codes.numel() - count :]",
            }
        ),
    ),
    Mistake(
        "pads with 3",
        "the rest of the last byte is not filled with zeros",
        answer=wrong({PADDED: "padded = pad(small, (0, -len(small) % 4), value=3)"}),
        violates="What is left over in the last byte is 0",
    ),
    Mistake(
        "pads with the last code",
        "the rest of the last byte is filled with the last code: fill it with zeros",
        answer=wrong({PADDED: "padded = torch.cat([small, small[-1:].repeat(-len(small) % 4)])"}),
    ),
    Mistake(
        "the padding comes back",
        "`unpack` returns the padding, too: cut after `count` codes",
        answer=wrong({CUT: "return codes.flatten()"}),
        violates="the first `count` codes",
    ),
    Mistake(
        "rows stay rows",
        "`unpack` returns rows of four: flatten them, and cut after `count` codes",
        answer=wrong({CUT: "return codes[: -(-count // 4)]"}),
        violates="flat, in uint8",
    ),
    Mistake(
        "a quarter apart",
        "the four codes in a byte are a quarter of the tensor apart: neighbours share a byte, "
        "`view(-1, 4)`",
        answer=wrong({ROWS: "rows = padded.view(4, -1).T", CODES: "codes = (fields & 3).T"}),
        violates="four neighbours share a byte",
    ),
    Mistake(
        "one code to a byte",
        "each code takes a byte of its own: four have to share one",
        answer=wrong(
            {
                PADDED: "padded = small",
                ROWS: "rows = padded",
                PACKED: "packed = padded",
                FIELDS: "fields = packed",
            }
        ),
    ),
    Mistake(
        "int64 comes back",
        "the bytes come back in int64, which takes eight bytes for each: convert the codes to "
        "uint8 first",
        answer=wrong({SMALL: "small = codes.long()"}),
        violates="returns a flat uint8 tensor",
    ),
    Mistake(
        "keeps the dtype",
        "the bytes have the dtype of the codes, and in int64 each takes eight bytes: convert to "
        "uint8 first",
        answer=wrong({SMALL: "small = codes"}),
        violates="uint8 or int64",
    ),
    Mistake(
        "int8",
        "the bytes come back in int8, where a byte from 128 on is negative, and a shift to the "
        "right copies the sign: take uint8",
        answer=wrong(
            {
                RETURN: "return packed.view(torch.int8)",
                FIELDS: "fields = packed.view(torch.uint8)[:, None] >> shifts",
            }
        ),
    ),
    Mistake(
        "unpacks to int64",
        "`unpack` returns int64, eight bytes for each code: return uint8",
        answer=wrong({CUT: "return codes.flatten()[:count].long()"}),
    ),
    Mistake(
        "changes the codes",
        "`pack` shifts in place, and the caller's codes are changed: make a new tensor",
        answer=wrong(
            {
                SMALL: "small = codes.mul_(4 ** (torch.arange(len(codes)) % 4)).to(torch.uint8)",
                PACKED: "packed = rows[:, 0] | rows[:, 1] | rows[:, 2] | rows[:, 3]",
            }
        ),
        violates="Neither changes what it is given",
    ),
    Mistake(
        "changes the bytes",
        "`unpack` shifts the bytes in place, and the caller's are 0 afterwards: make a new tensor",
        answer=wrong(
            {
                FIELDS: "fields = torch.empty(len(packed), 4, dtype=torch.uint8)\nfor place in "
                "range(4):\n    fields[:, place] = packed\n    packed >>= 2"
            }
        ),
    ),
]

pack_two_bits = Exercise(
    card,
    pair(),
    cases,
    mistakes,
    messages={
        "codes": "{case}, `pack` changes the codes: work on a copy",
        "packed": "{case}, `unpack` changes the bytes: work on a copy",
    },
)
