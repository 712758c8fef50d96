"""Exercise 5 of chapter 01: float32 to bf16, by its bits."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    Wrong,
    call_answer,
    read_dict,
)
from amp_course.checking.differences import show_value
from amp_course.checking.reading import read_number, read_tensor

card = Card(
    chapter="bits",
    name="round_bf16",
    number=5,
    title="bf16: cut or round?",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=5,
    takes="value",
    task="bf16 is the upper half of fp32, so cutting off 16 bits nearly converts one to the "
    "other. Find `differs`, a number that cutting and rounding take to different bf16 numbers. "
    "Then write `round_bf16(x)`: for any float32 tensor, 0-d, empty and transposed ones too, "
    "return what torch's cast to bfloat16 returns, NaN included, in the same shape. x stays "
    "unchanged. The cast itself would pass, but teach you nothing: work on the bits.",
    hints=(
        "Cutting always goes towards zero. Where is the nearest value on the other side?",
        "Add something before you cut. What has to be added to the bits so that more than half a "
        "step carries into the upper 16, and less doesn't? A tie needs 1 more if the upper half "
        "is odd.",
        "`bits + 0x7FFF + ((bits >> 16) & 1)`, then shift as before. The carry turns what is too "
        "large into inf, as it should, but it damages NaN: `torch.where(x.isnan(), torch.nan, "
        "rounded)`.",
    ),
    why="PyTorch's own source converts like this. Cutting instead pulls every number towards "
    "zero, by half a step on average.",
    alternative="in NumPy, `x.view(np.uint32)` has no sign to get in the way: compare the lower "
    "half with 0x8000, and add 1 to the upper half if it is more, or if it is equal and the upper "
    "half is odd.",
)

KINDS = {  # fp32 patterns, in the order in which they are best understood
    "numbers that bf16 has": (
        0x3F800000,
        0x3FC00000,
        0x40490000,
        0x71800000,
        0x0DA20000,
        0xBF800000,
        0xC0490000,
    ),
    "numbers in between": (
        0x3F80FFFF,
        0x3F808001,
        0x3F807FFF,
        0x3F804000,
        0x3F800001,
        0x3DCCCCCD,
        0x3FFFFFFF,
    ),
    "ties": (
        0x3F808000,
        0x3F818000,
        0x40488000,
        0x40498000,
        0x3FFF8000,
        0x3F828000,
        0x3F838000,
        0x3F848000,
    ),
    "negative numbers": (
        0xBF80FFFF,
        0xBF808001,
        0xBF807FFF,
        0xBF800001,
        0xBDCCCCCD,
        0xBF808000,
        0xBF818000,
    ),
    "zeros and subnormals": (
        0x00000000,
        0x80000000,
        0x00030000,
        0x00018000,
        0x00008000,
        0x007FFFFF,
        0x80436D8F,
    ),
    "the top": (
        0x7F7F7FFF,
        0x7F7F8000,
        0x7F7FFFFF,
        0x7F800000,
        0xFF7F7FFF,
        0xFF7F8000,
        0xFF7FFFFF,
        0xFF800000,
    ),
    "NaN": (
        0x7FC00000,
        0x7F800001,
        0x7F80FFFF,
        0x7F818000,
        0x7FFFFFFF,
        0xFF800001,
        0xFFC00000,
        0xFFFFFFFF,
    ),
}


def carry(bits: Tensor) -> Any:
    return 0x7FFF + ((bits >> 16) & 1)


def careless(x: Tensor, add: Callable[[Tensor], Any] = carry) -> Tensor:
    """Round by adding to the bits before the cut, NaN like any other pattern."""
    bits = x.view(torch.int32)
    return ((bits + add(bits)) >> 16).to(torch.int16).view(torch.bfloat16)


def right(x: Tensor, add: Callable[[Tensor], Any] = carry) -> Tensor:
    return torch.where(x.isnan(), torch.nan, careless(x, add))


def read_answer(answer: Any) -> tuple[float, Callable[..., Any]]:
    """Return `differs` and the function. Raises Wrong for anything else."""
    differs, function = read_dict(
        answer, ("differs", "round_bf16"), subject="what you check is"
    ).values()
    if not callable(function):
        raise Wrong(
            "`round_bf16` has to be the function itself: write its name without parentheses"
        )
    return read_number(differs, subject="`differs` is"), function


def write(value: float) -> str:
    return min(show_value(value), repr(value), key=len)


def tensors() -> dict[str, Tensor]:
    x = torch.tensor([[0.1, -0.1, math.nan, 0.0], [3.4e38, 1e-40, -math.inf, 2.7]])
    some = {
        "transposed": x.clone().t(),
        "sliced": x.clone()[:, ::3],
        "0-d": torch.tensor(0.1),
        "empty": torch.ones(0),
    }
    shaped = {
        f"for a tensor of shape {tuple(x.shape)}": x for x in (x, x[1:].reshape(1, 4, 1).clone())
    }
    return shaped | {
        f"for {'an' if kind == 'empty' else 'a'} {kind} tensor": x for kind, x in some.items()
    }


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """The number; then tensors of many shapes; then each kind of pattern, and some drawn;
    then the values of the tensors.
    """
    differs, function = read_answer(answer)
    number = torch.tensor(differs, dtype=torch.float64).float()
    odd, low = divmod(int(number.view(torch.int32)) % 2**17, 2**16)
    same = (
        "" if low + odd > 0x8000 else {0: "bf16 has it", 0x8000: "a tie"}.get(low, "less than half")
    )
    clue = same if number.isfinite() else "not finite"
    facts = {
        "value": write(differs),
        "nearest": write(number.bfloat16().item()),
        "low": f"0x{low:04X}",
    }
    yield Case("", {"`differs`": "the same" if clue else "different"}, facts, {"why": clue})
    results: dict[str, Tensor] = {}
    for case, x in tensors().items():
        before = x.clone()
        results[case] = got = read_tensor(call_answer(function, case, x), case, "a bfloat16 tensor")
        after = "unchanged" if x.view(torch.int32).equal(before.view(torch.int32)) else "changed"
        yield Case(
            case,
            {"x": after, "the dtype": show_value(got.dtype), "the shape": str(tuple(got.shape))},
        )
    drawn = tuple(
        p for p in (draw.getrandbits(32) for _ in range(500)) if p & 0x7FFFFFFF <= 0x7F800000
    )  # no NaN
    for kind, patterns in {**KINDS, "any numbers": drawn}.items():
        x = torch.from_numpy(np.array(patterns, np.uint32).view(np.float32))
        got = read_tensor(
            call_answer(function, f"for {kind}", x.clone()),
            f"for {kind}",
            "a bfloat16 tensor",
            x.shape,
        )
        cases = (
            f"for {write(value)} (0x{p:08X})" for value, p in zip(x.tolist(), patterns, strict=True)
        )
        yield Case("", {kind: Results(zip(cases, got.double().tolist(), strict=True))})
    values = ((case, got.double().tolist()) for case, got in results.items())
    yield Case("", {"the values": Results(values, "the result")})


def both(function: Callable[[Tensor], Any], differs: float = 0.1) -> dict[str, Any]:
    return {"differs": differs, "round_bf16": function}


SAME, MORE = (
    "cutting and rounding both take {value} to {nearest}",
    "Look for one whose lower half is more than 0x8000",
)
CHANGED = (
    "your function changes x. Whatever works in place on x or a view of it, like `+=` or `x[…] =`, "
    "writes into x"
)
TOP = torch.finfo(torch.bfloat16).max

mistakes = [
    Mistake(
        "bf16 has it",
        SAME + ": as float32 its lower 16 bits are 0, so nothing is lost. " + MORE,
        answer=both(right, 1.0),
        violates="different bf16 numbers",
    ),
    Mistake(
        "less than half",
        SAME + ", which is the nearest: the lower half, {low}, is less than half a step. " + MORE,
        answer=both(right, 1.001),
    ),
    Mistake(
        "an even tie",
        SAME + ": as float32 it is a tie, and the upper half is even already. " + MORE,
        answer=both(right, 1 + 2**-8),
    ),
    Mistake(
        "not finite",
        "`differs` is {value}. Look for a number that is finite in float32",
        answer=both(right, math.inf),
    ),
    Mistake(
        "in place", CHANGED, answer=both(lambda x: right(x.neg_())), violates="x stays unchanged"
    ),
    Mistake(
        "returns patterns",
        "your function returns ints. If they are patterns, "
        "`.to(torch.int16).view(torch.bfloat16)` makes them bf16",
        answer=both(lambda x: (x.view(torch.int32) + 0x7FFF) >> 16),
    ),
    Mistake(
        "returns float32",
        "your function returns float32 numbers. Return bfloat16, with half as many bits",
        answer=both(lambda x: right(x).float()),
        violates="bfloat16",
    ),
    Mistake(
        "flattens",
        "your result is flat, whatever the shape of x. Keep the shape",
        answer=both(lambda x: right(x.reshape(-1))),
        violates="in the same shape",
    ),
    Mistake(
        "converts the pattern",
        "you convert the pattern to bf16 as if it were a number: "
        "`.to(torch.int16).view(torch.bfloat16)` keeps it",
        answer=both(lambda x: (x.view(torch.int32) >> 16).to(torch.bfloat16)),
    ),
    Mistake(
        "loses the sign",
        "negative numbers come out positive. The sign is the first bit of the upper half: keep it",
        answer=both(lambda x: right(x.abs())),
    ),
    Mistake(
        "cuts",
        "numbers whose lower half is above 0x8000 are cut, and the next value is nearer: add "
        "something first",
        answer=both(lambda x: right(x, lambda bits: 0)),
    ),
    Mistake(
        "always up",
        "you always round away from zero. If the lower half is less than 0x8000, the upper half "
        "stays as it is",
        answer=both(lambda x: right(x, lambda bits: 0xFFFF)),
    ),
    Mistake(
        "half up",
        "ties always go up. A tie, a lower half of 0x8000, goes up only if the upper half is odd",
        answer=both(lambda x: right(x, lambda bits: 0x8000)),
    ),
    Mistake(
        "half down",
        "ties always go down. A tie, a lower half of 0x8000, goes up if the upper half is odd",
        answer=both(lambda x: right(x, lambda bits: 0x7FFF)),
    ),
    Mistake(
        "ties to odd",
        "your ties go to the odd neighbour. A tie, a lower half of 0x8000, goes up only if the "
        "upper half is odd",
        answer=both(lambda x: right(x, lambda bits: 0x8000 - ((bits >> 16) & 1))),
    ),
    Mistake(
        "only positive",
        "you round positive numbers and only cut negative ones. Rounding is the same on both "
        "sides of zero",
        answer=both(lambda x: torch.where(x > 0, right(x), right(x, lambda bits: 0))),
    ),
    Mistake(
        "flushes subnormals",
        "subnormals become zero. Their bits are cut and rounded like all others",
        answer=both(lambda x: torch.where(x.abs() < 2.0**-126, x * 0, right(x)).bfloat16()),
    ),
    Mistake(
        "clamps",
        "what is too large becomes bf16's largest number. The carry would make it inf, as it "
        "should be",
        answer=both(lambda x: right(x.clamp(-TOP, TOP))),
    ),
    Mistake(
        "NaN lost",
        "the carry damages NaN: some become inf, some zero. Check for NaN, `x.isnan()`, and put "
        "one in its place",
        answer=both(careless),
        violates="NaN included",
    ),
    Mistake(
        "only some NaN",
        "you miss those NaN whose upper half is that of inf: `x.isnan()` finds all",
        answer=both(
            lambda x: torch.where(
                x.view(torch.int32) & 0x7FFFFFFF > 0x7F80FFFF, torch.nan, careless(x)
            )
        ),
    ),
]

round_bf16 = Exercise(
    card, both(right), cases, mistakes, messages={"`differs`": f"{SAME}. {MORE}", "x": CHANGED}
)
