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
    read_number,
    read_tensor,
    show_value,
)

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
    "numbers that bf16 has": "3F800000 3FC00000 40490000 71800000 0DA20000 BF800000 C0490000",
    "numbers in between": "3F80FFFF 3F808001 3F807FFF 3F804000 3F800001 3DCCCCCD 3FFFFFFF",
    "ties": "3F808000 3F818000 40488000 40498000 3FFF8000 3F828000 3F838000 3F848000",
    "negative numbers": "BF80FFFF BF808001 BF807FFF BF800001 BDCCCCCD BF808000 BF818000",
    "zeros and subnormals": "00000000 80000000 00030000 00018000 00008000 007FFFFF 80436D8F",
    "the top": "7F7F7FFF 7F7F8000 7F7FFFFF 7F800000 FF7F7FFF FF7F8000 FF7FFFFF FF800000",
    "NaN": "7FC00000 7F800001 7F80FFFF 7F818000 7FFFFFFF FF800001 FFC00000 FFFFFFFF",
}


def carry(bits: Tensor) -> Any:
    return 0x7FFF + ((bits >> 16) & 1)


def careless(x: Tensor, add: Callable[[Tensor], Any] = carry) -> Tensor:
    """Round by adding to the bits before the cut, NaN like any other pattern."""
    bits = x.view(torch.int32)
    return ((bits + add(bits)) >> 16).to(torch.int16).view(torch.bfloat16)


def reference(x: Tensor, add: Callable[[Tensor], Any] = carry) -> Tensor:
    return torch.where(x.isnan(), torch.nan, careless(x, add))


def read_answer(answer: Any) -> tuple[float, Callable[..., Any]]:
    """Return `differs` and the function. Raises Wrong for anything else."""
    parts = read_dict(answer, ("differs", "round_bf16"), subject="what you check is")
    differs, function = parts.values()
    if not callable(function):
        raise Wrong(
            "`round_bf16` has to be the function itself: write its name without parentheses"
        )
    return read_number(differs, subject="`differs` is"), function


def write(value: float) -> str:
    return min(show_value(value), repr(value), key=len)


def tensors() -> dict[str, Tensor]:
    """Return a case in words → its tensor, each with memory of its own."""
    x = torch.tensor([[0.1, -0.1, math.nan, 0.0], [3.4e38, 1e-40, -math.inf, 2.7]])
    return {
        "for a tensor of shape (2, 4)": x,
        "for a tensor of shape (1, 4, 1)": x[1:].reshape(1, 4, 1).clone(),
        "for a transposed tensor": x.clone().t(),
        "for a sliced tensor": x.clone()[:, ::3],
        "for a 0-d tensor": torch.tensor(0.1),
        "for an empty tensor": torch.ones(0),
    }


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Look at the number, at tensors of many shapes, at patterns of each kind and some drawn, then
    at the values of the tensors.
    """
    differs, function = read_answer(answer)
    number = torch.tensor(differs, dtype=torch.float64).float()
    odd, low = divmod(int(number.view(torch.int32)) % 2**17, 2**16)
    why = {0: "bf16 has it", 0x8000: "a tie"}.get(low, "less than half")
    if not number.isfinite():
        why = "not finite"
    elif low + odd > 0x8000:
        why = ""
    nearest = write(number.bfloat16().item())
    facts = {"value": write(differs), "nearest": nearest, "low": f"0x{low:04X}"}
    yield Case("", {"`differs`": "the same" if why else "different"}, facts, {"why": why})
    results: dict[str, Tensor] = {}
    for case, x in tensors().items():
        before = x.clone()
        results[case] = got = read_tensor(call_answer(function, case, x), case, "a bfloat16 tensor")
        same = x.view(torch.int32).equal(before.view(torch.int32))
        yield Case(
            case,
            {
                "x": "unchanged" if same else "changed",
                "the dtype": show_value(got.dtype),
                "the shape": str(tuple(got.shape)),
            },
        )
    drawn = [draw.getrandbits(32) for _ in range(500)]
    kinds = {kind: [int(one, 16) for one in patterns.split()] for kind, patterns in KINDS.items()}
    kinds["any numbers"] = [one for one in drawn if one & 0x7FFFFFFF <= 0x7F800000]  # no NaN
    for kind, patterns in kinds.items():
        x = torch.from_numpy(np.array(patterns, np.uint32).view(np.float32))
        got = call_answer(function, f"for {kind}", x.clone())
        got = read_tensor(got, f"for {kind}", "a bfloat16 tensor", x.shape)
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
    "Find one whose lower half is more than 0x8000",
)
CHANGED = (
    "your function changes x. In-place operations on x or a view of it, like `+=` or `x[…] =`, "
    "write into x"
)
TOP = torch.finfo(torch.bfloat16).max

mistakes = [
    Mistake(
        "bf16 has it",
        SAME + ". As float32 its lower 16 bits are 0, so nothing is lost. " + MORE,
        answer=both(reference, 1.0),
        violates="different bf16 numbers",
    ),
    Mistake(
        "less than half",
        SAME + ", which is the nearest: the lower half, {low}, is less than half a step. " + MORE,
        answer=both(reference, 1.001),
    ),
    Mistake(
        "an even tie",
        SAME + ". As float32 it is a tie, and the upper half is already even. " + MORE,
        answer=both(reference, 1 + 2**-8),
    ),
    Mistake(
        "not finite",
        "`differs` is {value}. Find a number that is finite in float32",
        answer=both(reference, math.inf),
    ),
    Mistake(
        "changes its input",
        CHANGED,
        answer=both(lambda x: reference(x.neg_())),
        violates="x stays unchanged",
    ),
    Mistake(
        "returns patterns",
        "your function returns ints. If they are patterns, "
        "`.to(torch.int16).view(torch.bfloat16)` makes them bf16",
        answer=both(lambda x: (x.view(torch.int32) + 0x7FFF) >> 16),
    ),
    Mistake(
        "returns float32",
        "your function returns float32. Return bfloat16",
        answer=both(lambda x: reference(x).float()),
        violates="bfloat16",
    ),
    Mistake(
        "flattens",
        "your result is flat, whatever the shape of x. Keep the shape",
        answer=both(lambda x: reference(x.reshape(-1))),
        violates="in the same shape",
    ),
    Mistake(
        "converts the pattern",
        "you convert the pattern to bf16 as if it were a number. "
        "`.to(torch.int16).view(torch.bfloat16)` keeps the bits",
        answer=both(lambda x: (x.view(torch.int32) >> 16).to(torch.bfloat16)),
    ),
    Mistake(
        "ignores the sign",
        "negative numbers come out positive. Keep the sign, the first bit of the upper half",
        answer=both(lambda x: reference(x.abs())),
    ),
    Mistake(
        "cuts",
        "numbers whose lower half is above 0x8000 are cut, although the next value is nearer. Add "
        "something before you cut",
        answer=both(lambda x: reference(x, lambda bits: 0)),
    ),
    Mistake(
        "always up",
        "you always round away from zero. Cut if the lower half is less than 0x8000",
        answer=both(lambda x: reference(x, lambda bits: 0xFFFF)),
    ),
    Mistake(
        "half up",
        "ties always go up. A tie, 0x8000, goes up only if the upper half is odd",
        answer=both(lambda x: reference(x, lambda bits: 0x8000)),
    ),
    Mistake(
        "half down",
        "ties always go down. A tie, 0x8000, goes up if the upper half is odd",
        answer=both(lambda x: reference(x, lambda bits: 0x7FFF)),
    ),
    Mistake(
        "ties to odd",
        "ties go to odd. A tie, 0x8000, goes up only if the upper half is odd",
        answer=both(lambda x: reference(x, lambda bits: 0x8000 - ((bits >> 16) & 1))),
    ),
    Mistake(
        "only positive",
        "you round positive numbers and only cut negative ones. Round both",
        answer=both(lambda x: torch.where(x > 0, reference(x), reference(x, lambda bits: 0))),
    ),
    Mistake(
        "flushes subnormals",
        "subnormals become zero. Round their bits like all others",
        answer=both(lambda x: torch.where(x.abs() < 2.0**-126, x * 0, reference(x)).bfloat16()),
    ),
    Mistake(
        "clamps",
        "what is too large becomes bf16's largest number. It should be inf, as the carry makes it",
        answer=both(lambda x: reference(x.clamp(-TOP, TOP))),
    ),
    Mistake(
        "NaN lost",
        "the carry turns some NaN into inf, and some into zero. Check for NaN with `x.isnan()`, "
        "and return NaN there",
        answer=both(careless),
        violates="NaN included",
    ),
    Mistake(
        "only some NaN",
        "you miss those NaN whose upper half is that of inf. `x.isnan()` finds all",
        answer=both(
            lambda x: torch.where(
                x.view(torch.int32) & 0x7FFFFFFF > 0x7F80FFFF, torch.nan, careless(x)
            )
        ),
    ),
]

round_bf16 = Exercise(
    card, both(reference), cases, mistakes, messages={"`differs`": f"{SAME}. {MORE}", "x": CHANGED}
)
