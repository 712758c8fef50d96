"""Exercise 4 of chapter 12: four codes to a byte and back."""

import random
from collections.abc import Iterator
from typing import Any

import torch
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
        "By how many bits do you have to shift each of the four? What is in the other bits when "
        "you shift back?",
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
    """Pack codes of each length modulo 4, in uint8 and int64; unpack what is packed right."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(map(callable, answer)):
        raise Wrong("the check expects both functions as a pair, `(pack, unpack)`")
    if any(map(is_blank, answer)):
        raise Wrong("one of the two functions is still to be written")
    pack, unpack = answer
    drawn = tuple(draw.randint(0, 3) for _ in range(4 * draw.randint(10, 20) + 1))
    for case, numbers in {**CASES, f"for {len(drawn)} drawn codes": drawn}.items():
        groups = [numbers[start : start + 4] for start in range(0, len(numbers), 4)]
        values = [sum(code * 4**n for n, code in enumerate(group)) for group in groups]
        packed = torch.tensor(values, dtype=torch.uint8)
        for dtype in (torch.uint8, torch.int64):
            codes = torch.tensor(numbers, dtype=dtype)
            before, kind = codes.clone(), case if dtype == torch.uint8 else f"{case} in int64"
            got = read_tensor(call_answer(pack, kind, codes), kind, subject="`pack` returned")
            round_trip = "not asked"
            if not torch.equal(got, packed):
                try:
                    back = unpack(pack(before.clone()), len(codes)).to(dtype)
                    round_trip = "right" if torch.equal(back, before) else "wrong"
                except Exception:
                    round_trip = "raises"
            changed = "unchanged" if torch.equal(codes, before) else "changed"
            outputs = {"the packed tensor": got, "codes": changed}
            yield Case(kind, outputs, evidence={"round trip": round_trip})
        before = packed.clone()
        got = call_answer(unpack, case, packed, len(numbers))
        codes = read_tensor(got, case, subject="`unpack` returned")
        changed = "unchanged" if torch.equal(packed, before) else "changed"
        yield Case(case, {"the unpacked tensor": codes, "packed": changed})


def mistake(name: str, feedback: str, edits: dict[str, str], violates: str = "") -> Mistake:
    return Mistake(name, feedback, answer=edited(pair, edits)(), violates=violates)


SMALL = "small = codes.to(torch.uint8)"
PADDED = "padded = pad(small, (0, -len(small) % 4))"
ROWS = "rows = padded.view(-1, 4)"
PACKED = "packed = rows[:, 0] | rows[:, 1] << 2 | rows[:, 2] << 4 | rows[:, 3] << 6"
SHIFTS = "shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)"
FIELDS = "fields = packed[:, None] >> shifts"
CODES = "codes = fields & 3"
CUT = "return codes.flatten()[:count]"
REVERSED = {PACKED: "packed = rows[:, 0] << 6 | rows[:, 1] << 4 | rows[:, 2] << 2 | rows[:, 3]"}
REVERSED_BACK = {SHIFTS: SHIFTS.replace("0, 2, 4, 6", "6, 4, 2, 0")}
OVERLAPPING = {PACKED: "packed = rows[:, 0] | rows[:, 1] << 1 | rows[:, 2] << 2 | rows[:, 3] << 3"}
OVERLAPPING_BACK = {SHIFTS: SHIFTS.replace("0, 2, 4, 6", "0, 1, 2, 3")}

mistakes = [
    mistake(
        "the first in the highest bits",
        "your two functions agree, but the first code of four is in the highest bits of its byte. "
        "It has to be in the lowest",
        REVERSED | REVERSED_BACK,
        "the first in its lowest bits",
    ),
    mistake(
        "packs in the wrong order",
        "`pack` puts the first code of four into the highest bits, and `unpack` takes it from the "
        "lowest. The lowest are right",
        REVERSED,
    ),
    mistake(
        "unpacks in the wrong order",
        "`unpack` takes the first code of four from the highest bits, but `pack` puts it into the "
        "lowest",
        REVERSED_BACK,
    ),
    mistake(
        "overlapping shifts",
        "the codes are shifted by 0, 1, 2 and 3, and overlap. A code has two bits, so shift by 0, "
        "2, 4 and 6",
        OVERLAPPING | OVERLAPPING_BACK,
    ),
    mistake(
        "packs with overlapping shifts",
        "`pack` shifts by 0, 1, 2 and 3, so the codes overlap. A code has two bits, so shift by 0, "
        "2, 4 and 6",
        OVERLAPPING,
    ),
    mistake(
        "unpacks with overlapping shifts",
        "`unpack` shifts by 0, 1, 2 and 3. A code has two bits, so shift by 0, 2, 4 and 6",
        OVERLAPPING_BACK,
    ),
    mistake(
        "no mask",
        "after the shift, the bits of later codes are still there. Keep the lowest two with `& 3`",
        {CODES: "codes = fields"},
    ),
    *(
        mistake(
            f"a mask of {bit}",
            f"`& {bit}` keeps only one bit of a code. Keep both with `& 3`, which is 0b11",
            {CODES: f"codes = fields & {bit}"},
        )
        for bit in (2, 1)
    ),
    mistake(
        "the tail is lost",
        "codes past the last multiple of 4 are lost. Pad with zeros before you pack",
        {PADDED: "padded = small[: len(small) // 4 * 4]"},
        "of any length",
    ),
    mistake(
        "multiples of 4 only",
        "`pack` takes only a multiple of 4 codes. Pad with zeros up to one",
        {PADDED: "padded = small"},
    ),
    mistake(
        "one group too many",
        "a length that is a multiple of 4 gets an extra byte. Pad by `-n % 4`, which is 0 there",
        {PADDED: "padded = pad(small, (0, 4 - len(small) % 4))"},
    ),
    mistake(
        "pads in front",
        "`pack` pads in front, so the first code is not in the lowest bits of the first byte. Pad "
        "at the end",
        {
            PADDED: "padded = pad(small, (-len(small) % 4, 0))",
            CUT: "return codes.flatten()[codes.numel() - count :]",
        },
    ),
    *(
        mistake(
            f"pads with {what}",
            "the rest of the last byte is not filled with zeros",
            {PADDED: f"padded = {padded}"},
            "What is left over in the last byte is 0",
        )
        for what, padded in (
            ("3", "pad(small, (0, -len(small) % 4), value=3)"),
            ("the last code", "torch.cat([small, small[-1:].repeat(-len(small) % 4)])"),
        )
    ),
    mistake(
        "the padding comes back",
        "`unpack` returns the padding, too. Cut after `count` codes",
        {CUT: "return codes.flatten()"},
        "the first `count` codes",
    ),
    mistake(
        "rows stay rows",
        "`unpack` returns rows of four. Flatten them first",
        {CUT: "return codes[: -(-count // 4)]"},
        "flat, in uint8",
    ),
    mistake(
        "a quarter apart",
        "the four codes in a byte are a quarter of the tensor apart. Neighbours share a byte, so "
        "use `view(-1, 4)`",
        {ROWS: "rows = padded.view(4, -1).T", CODES: "codes = (fields & 3).T"},
        "four neighbours share a byte",
    ),
    mistake(
        "unpacks a quarter apart",
        "`unpack` returns the first codes of all bytes, then the second ones. Neighbours share a "
        "byte, so stack the four fields along `dim=1`",
        {CODES: "codes = (fields & 3).T"},
    ),
    mistake(
        "one code to a byte",
        "each code takes its own byte. Four have to share one",
        {
            PADDED: "padded = small",
            ROWS: "rows = padded",
            PACKED: "packed = padded",
            FIELDS: "fields = packed",
        },
    ),
    *(
        mistake(
            name,
            "the bytes come back in int64, which takes eight bytes for each. Convert the codes to "
            "uint8 first",
            {SMALL: f"small = {codes}"},
            "returns a flat uint8 tensor",
        )
        for name, codes in (("int64 comes back", "codes.long()"), ("keeps the dtype", "codes"))
    ),
    mistake(
        "int8",
        "the bytes come back in int8, where a byte from 128 on is negative, and a shift to the "
        "right copies the sign. Use uint8",
        {
            "return packed": "return packed.view(torch.int8)",
            FIELDS: "fields = packed.view(torch.uint8)[:, None] >> shifts",
        },
    ),
    mistake(
        "unpacks to int64",
        "`unpack` returns int64, eight bytes for each code. Return uint8",
        {CUT: f"{CUT}.long()"},
    ),
    mistake(
        "changes the codes",
        "`pack` shifts in place, which changes the caller's codes. Make a new tensor",
        {
            SMALL: "small = codes.mul_(4 ** (torch.arange(len(codes)) % 4)).to(torch.uint8)",
            PACKED: "packed = rows.sum(1, dtype=torch.uint8)",
        },
        "Neither changes what it is given",
    ),
    mistake(
        "changes the bytes",
        "`unpack` shifts the bytes in place, so the caller's are 0 afterwards. Make a new tensor",
        {FIELDS: "fields = packed[:, None] >> shifts\npacked.zero_()"},
    ),
]

pack_two_bits = Exercise(
    card,
    pair(),
    cases,
    mistakes,
    messages={
        "codes": "{case}, `pack` changes the codes. Work on a copy",
        "packed": "{case}, `unpack` changes the bytes. Work on a copy",
    },
)
