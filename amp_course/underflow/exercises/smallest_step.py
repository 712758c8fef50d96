"""Exercise 1 of chapter 02: the smallest number that still changes 1 when added to it."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number, show_number
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="underflow",
    name="smallest_step",
    number=1,
    title="The smallest step from 1",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=6,
    task="Write `smallest_step(dtype)`: the smallest positive x of the dtype (fp16, bf16, float32 "
    "or float64) for which 1 + x, computed in that dtype, is not 1. It is not "
    "`torch.finfo(dtype).eps`, but you may find it in any way you like.",
    hints=(
        "Which powers of two can you add to 1 and see a difference? Halve until you see none. Is "
        "the smallest x a power of two?",
        "A sum between two numbers of the format is rounded to the nearer one, and from exactly "
        "the middle to the even one. The largest power of two that does nothing leads to exactly "
        "such a middle.",
        "Start with `x = torch.ones((), dtype=dtype)` and halve it while `one + x != one`. Which "
        "number comes right after the x you end with? `torch.nextafter(x, one)`.",
    ),
    why="An update smaller than this fraction of its weight has no effect, which is why master "
    "weights exist.",
    alternative="bisect the bit patterns: positive floats have the same order as their "
    "patterns, `torch.tensor(pattern, dtype=torch.int16).view(torch.float16)`.",
)


def right(dtype: torch.dtype) -> Any:
    one = torch.ones((), dtype=dtype)
    x = one.clone()
    while one + x != one:
        x = x / 2
    return torch.nextafter(x, one)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Ask for four dtypes, and add what comes back to 1. Nothing is drawn."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        name = dtype_name(dtype)
        raw = call_answer(answer, f"for {name}", dtype)
        x = read_number(raw, f"for {name}")
        one, held = torch.ones((), dtype=dtype), torch.tensor(x, dtype=dtype)
        below = torch.nextafter(held, torch.zeros_like(held))
        exact = "a number" if held.item() == x else f"no number of {name}"
        outputs = {
            "x": exact if x > 0 else "not positive",
            "1 + x": (one + held).item(),
            "the next smaller number": "moves 1" if one + below != one else "does nothing",
        }
        size = "too small" if one + held == one else "too large"
        if getattr(raw, "dtype", None) != dtype:
            size += ". Make both 1 and x tensors of that dtype"
        facts = {"name": name, "x": show_number(x), "size": size}
        yield Case(f"for {name}", outputs, facts, {"x": x})


WHILE, RETURN = "while one + x != one:", "return torch.nextafter(x, one)"

mistakes = [
    Mistake(
        "the gap above 1",
        "your x, {x} for {name}, is the gap between 1 and the next number, but a sum just above "
        "the middle of the gap is rounded up: look right above half the gap",
        edits={WHILE: "while one + x / 2 != one:", RETURN: "return x"},
        violates="smallest positive x",
    ),
    Mistake(
        "the tie",
        "your sum is exactly in the middle between 1 and the next number, and ties are rounded to "
        "the even one, which is 1: take the next larger x with `torch.nextafter`",
        edits={RETURN: "return x"},
        violates="is not 1",
    ),
    *(
        Mistake(
            f"the smallest {kind} number",
            f"your x, {{x}} for {{name}}, is the smallest {kind} number. Numbers near 1 are much "
            "further apart: look right above half the gap there",
            answer=answer,
        )
        for kind, answer in {
            "normal": lambda dtype: torch.finfo(dtype).tiny,
            "positive": lambda dtype: torch.nextafter(*torch.tensor([0, 1], dtype=dtype)),
        }.items()
    ),
    Mistake(
        "1 − x instead of 1 + x",
        "your x is the smallest for which 1 − x is not 1, but numbers are twice as dense below 1: "
        "add instead",
        edits={WHILE: "while one - x != one:"},
        violates="1 + x",
    ),
    Mistake(
        "the gap above 1 in float64",
        "your x is 2^-52 for every dtype, the gap above 1 in float64: make both 1 and x tensors "
        "of the dtype",
        answer=lambda dtype: 2.0**-52,
        violates="computed in that dtype",
    ),
    Mistake(
        "float64's for all",
        "your x is that of float64 for every dtype, since Python's numbers are float64: make both "
        "1 and x tensors of the dtype",
        answer=lambda dtype: right(torch.float64),
    ),
    Mistake(
        "float32's for all",
        "your x is that of float32 for every dtype, since `torch.tensor(1.0)` is float32: pass "
        "`dtype=dtype`",
        answer=lambda dtype: right(torch.float32),
    ),
]

smallest_step = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        "x": "for {name} your x is {x}, which is {got}: x has to be a positive number that the "
        "dtype represents exactly",
        "1 + x": "computed in {name}, 1 + x is {got} for your x, {x}, which is {size}",
        "the next smaller number": "for {name} your x, {x}, changes 1, but so does the next "
        "smaller number of {name}",
    },
)
