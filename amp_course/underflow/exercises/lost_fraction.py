"""Exercise 2 of chapter 02: the fraction of a tensor that falls into each zone of a format."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E5M2, FP16, FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_dict, read_number
from amp_course.underflow.zones import ZONES

card = Card(
    chapter="underflow",
    name="lost_fraction",
    number=2,
    title="Where do the numbers go?",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=8,
    task="Write `lost_fraction(tensor, fmt)`: round a tensor to a format that has inf. Of the "
    "numbers that are not zero before, which fraction is lost, becomes subnormal, becomes "
    "normal, or overflows? Return a dict with the keys `lost`, `subnormal`, `normal` and "
    "`overflow`, and leave the tensor unchanged. It is finite, of any shape, in float32 or "
    "float64. `round_to` rounds to any `FloatFormat`, even if torch has no dtype for it.",
    hints=(
        "Which count do you divide by? And do you look at the numbers before or after rounding?",
        "First `there = tensor[tensor != 0]`, then `size = round_to(there, fmt).abs()`. Each zone "
        "is a comparison with 0, `fmt.smallest_normal`, or inf.",
        "Lost: `size == 0`. Subnormal: between 0 and `fmt.smallest_normal`. Overflow: "
        "`size.isinf()`. Normal: the rest. `.float().mean().item()` makes a fraction of each.",
    ),
    why="This is what to measure first when fp16 misbehaves: how much each layer loses, before and "
    "after scaling.",
    alternative="`amp_course.underflow.zone_fractions` does the same, for formats without inf "
    "too. It counts zeros and NaN separately and takes a loss scale.",
)


def right(tensor: Tensor, fmt: FloatFormat) -> dict[str, float]:
    there = tensor[tensor != 0]
    size = round_to(there, fmt).abs()
    count = there.numel()
    lost = size == 0
    subnormal = (size > 0) & (size < fmt.smallest_normal)
    normal = (size >= fmt.smallest_normal) & size.isfinite()
    overflow = size.isinf()
    masks = {"lost": lost, "subnormal": subnormal, "normal": normal, "overflow": overflow}
    return {zone: mask.sum().item() / count for zone, mask in masks.items()}


SMALLER = 2.0**-12
ORDER = ("lost", "overflow", "subnormal", "normal")  # an answer may take “normal” as the rest


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Four formats, one of which torch lacks. The second tensor has the shape of the first, but
    most of it is lost.
    """
    numbers, wide, e3m4 = _numbers(FP16, draw), ", for a float64 tensor", FloatFormat.of(3, 4)
    for fmt, kind, tensor in (
        (FP16, "", numbers),
        (FP16, ", for other numbers in a tensor of the same shape", numbers * SMALLER),
        (FP8_E5M2, wide, _numbers(FP8_E5M2, draw, torch.float64)),
        (BF16, ", for a transposed tensor", _numbers(BF16, draw).mT),
        (e3m4, wide, _numbers(e3m4, draw, torch.float64)),
        (FP16, ", for `torch.tensor(1.0)`", torch.tensor(1.0)),
    ):
        case, before = f"in {fmt.name}{kind}", tensor.clone()
        got = read_dict(call_answer(answer, case, tensor, fmt), ZONES, case)
        outputs: dict[str, Any] = {
            f"the fraction “{zone}”": read_number(got[zone], f"for “{zone}”") for zone in ORDER
        }
        outputs["the tensor"] = "unchanged" if torch.equal(tensor, before) else "changed"
        facts = {"tiny": f"{fmt.smallest_subnormal:.3g}", "max": f"{fmt.max:.6g}", "name": fmt.name}
        yield Case(case, outputs, facts)


def _numbers(fmt: FloatFormat, draw: random.Random, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw numbers of both signs, shape (3, 2, n): zeros, all zones, and around each limit."""
    tiny, normal, largest = fmt.smallest_subnormal, fmt.smallest_normal, fmt.max
    step, above_tie = 2.0 ** (fmt.max_exponent - fmt.significand_bits), 0.5 * tiny * (1 + 2**-40)
    # (lowest, highest, how many). With these counts, no two mistakes give the same fractions.
    kinds = [
        (0.0, 0.0, 5),
        (1e-60, 1e-50, 4 if dtype == torch.float64 else 0),  # 0 in float32
        (0.05 * tiny, 0.45 * tiny, 16),
        (0.5 * tiny, 0.5 * tiny, 3),  # a tie, rounded to 0
        (0.55 * tiny, 0.95 * tiny, 24),  # rounded up to the smallest number
        (1.1 * tiny, normal - tiny, 31),
        (normal - 0.45 * tiny, normal - 0.05 * tiny, 7),  # rounded up to the smallest normal number
        (normal, normal, 4),
        (normal, largest, 41 + 6 * draw.randint(0, 9)),
        (largest, largest, 8),
        (largest + 0.05 * step, largest + 0.45 * step, 11),  # rounded down to the largest number
        (largest + 0.5 * step, largest + 0.5 * step, 2),  # a tie, rounded to inf
        (above_tie, above_tie, 6 if fmt.dtype is None else 0),  # a tie in float32
        (largest + 0.55 * step, largest + 0.95 * step, 18),
    ]
    places = [(low, high) for low, high, many in kinds for _ in range(many)]
    signed = [draw.uniform(*place) * (-1) ** (n % 3 == 1) for n, place in enumerate(places)]
    draw.shuffle(signed)
    signed += [0.0] * (-len(signed) % 6)
    return torch.tensor(signed, dtype=torch.float64).to(dtype).view(3, 2, -1)


THERE, SIZE = "there = tensor[tensor != 0]", "size = round_to(there, fmt).abs()"
LOST, SUBNORMAL = "lost = size == 0", "subnormal = (size > 0) & (size < fmt.smallest_normal)"
COUNT, OVERFLOW = "count = there.numel()", "overflow = size.isinf()"
ZEROS = "zeros are counted as lost: leave them out first, with `tensor[tensor != 0]`"
RETURN = "return {zone: mask.sum().item() / count for zone, mask in masks.items()}"

mistakes = [
    Mistake(
        "counts zeros that were zero before",
        ZEROS,
        edits={THERE: "there = tensor.flatten()"},
        violates="not zero before",
    ),
    Mistake(
        "takes zeros for lost",
        ZEROS,
        edits={LOST: "lost = round_to(tensor, fmt) == 0"},
    ),
    Mistake(
        "removes zeros after rounding",
        "you find nothing lost, as if zeros were left out after rounding, and what is lost with "
        "them: take `tensor[tensor != 0]` first, then round",
        edits={LOST: "lost = size < 0"},
        violates="is lost",
    ),
    Mistake(
        "zeros are lost, and not counted",
        "numbers that were zero before are counted as lost, and you divide by how many are not "
        "zero after rounding: take `tensor[tensor != 0]` first, and divide by its length",
        edits={THERE: "there = tensor.flatten()", COUNT: "count = size.count_nonzero()"},
    ),
    Mistake(
        "divides by all numbers",
        "you divide by the number of all elements, including zeros: divide by how many were not "
        "zero before",
        edits={COUNT: "count = tensor.numel()"},
        violates="Of the numbers that are not zero",
    ),
    Mistake(
        "divides by what is left",
        "you divide by how many are not zero after rounding: divide by how many were not zero "
        "before",
        edits={COUNT: "count = size.count_nonzero()"},
    ),
    Mistake(
        "−inf does not count",
        "negative numbers are not counted as overflow: take their size with `.abs()`",
        edits={OVERFLOW: "overflow = round_to(there, fmt) == torch.inf"},
    ),
    *(
        Mistake(
            f"{which} negative numbers are subnormal",
            f"{which} negative numbers are counted as subnormal: take their size with `.abs()`",
            edits={SUBNORMAL: edit},
        )
        for which, edit in {
            "no": f"{SUBNORMAL} & (there > 0)",
            "all": f"{SUBNORMAL} | (size > 0) & (there < 0)",
        }.items()
    ),
    Mistake(
        "lost numbers are subnormal",
        "numbers that are lost are counted as subnormal too, but they are 0 after rounding: ask "
        "for more than 0",
        edits={SUBNORMAL: "subnormal = size < fmt.smallest_normal"},
    ),
    Mistake(
        "the smallest normal is subnormal",
        "`fmt.smallest_normal` is counted as subnormal, but it is normal: compare with `<`",
        edits={SUBNORMAL: SUBNORMAL.replace("< fmt", "<= fmt")},
    ),
    Mistake(
        "compares with the smallest number",
        "you count as lost all that is below the smallest number, {tiny}, but what is nearer to it "
        "than to 0 is rounded up to it: round first, then compare with 0",
        edits={LOST: "lost = there.abs() < fmt.smallest_subnormal"},
    ),
    Mistake(
        "subnormal before rounding",
        "you count as subnormal what lies between the limits before rounding: round first, then "
        "compare",
        edits={
            SUBNORMAL: "a = there.abs()\n"
            "subnormal = (a >= fmt.smallest_subnormal) & (a < fmt.smallest_normal)"
        },
    ),
    Mistake(
        "compares with the largest number",
        "you count as overflow all that is above the largest number, {max}, but what is less than "
        "half a step above it is rounded down to it: round first, then look for inf",
        edits={OVERFLOW: "overflow = there.abs() > fmt.max"},
    ),
    Mistake(
        "the largest number overflows",
        "`fmt.max` itself, {max}, is counted as overflow, but it is a number of the format: only "
        "what becomes inf overflows, so use `.isinf()`",
        edits={OVERFLOW: "overflow = size >= fmt.max"},
    ),
    Mistake(
        "finds no overflow",
        "you find no overflow: numbers that overflow become inf, so look for them with `.isinf()`",
        edits={OVERFLOW: "overflow = size.isnan()"},
        violates="overflows",
    ),
    Mistake(
        "through float32",
        "float64 numbers are rounded to float32 first, where those just above a tie become the "
        "tie: round only once",
        edits={SIZE: SIZE.replace("there", "there.float()")},
        violates="in float32 or float64",
    ),
    Mistake(
        "casts to fmt.dtype",
        "nothing is rounded in {name}: torch has no dtype for it, so `fmt.dtype` is None. Use "
        "`round_to`",
        edits={SIZE: "size = there.to(fmt.dtype).double().abs()"},
        violates="torch has no dtype for",
    ),
    Mistake(
        "an earlier tensor's",
        "{case}, you return the fractions of an earlier tensor of that shape: compute them on "
        "every call, and keep nothing between calls",
        answer=lambda x, fmt: right(
            x / SMALLER if fmt == FP16 and 1 < x.abs().max() < 32 else x, fmt
        ),
    ),
    Mistake(
        "counts",
        "you return counts: divide each by how many numbers were not zero before",
        edits={RETURN: RETURN.replace(" / count", "")},
        violates="which fraction",
    ),
    Mistake(
        "percent",
        "you return percent: a fraction is at most 1, so leave out the factor of 100",
        edits={RETURN: RETURN.replace("mask", "100 * mask", 1)},
    ),
]

lost_fraction = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages={"the tensor": "{case}, your function changes the tensor: work on a copy"},
)
