"""Exercise 1 of chapter 09: the FLOPs per byte of a linear layer."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    read_number,
    read_pair,
)

card = Card(
    chapter="speed",
    name="linear_intensity",
    number=1,
    title="The intensity of a linear layer",
    difficulty=2,
    importance=4,
    minutes=10,
    lines=6,
    task="Write `linear_intensity(batch, inputs, outputs, itemsize)` for y = x @ weight.T, with x "
    "of shape (batch, inputs), weight of shape (outputs, inputs), no bias, and numbers of "
    "`itemsize` bytes. Return two triples (FLOPs, bytes, FLOPs per byte), one for the forward "
    "pass and one for the backward pass. A multiply-add is 2 FLOPs. Each matmul reads both of its "
    "operands from memory and writes its result; the backward pass is two matmuls, one for the "
    "gradient of x and one for that of weight.",
    hints=(
        "One element of y is a sum of `inputs` products. How many elements does y have, and how "
        "many do the three matrices have?",
        "Each of the three matmuls moves three matrices: one of the size of x, one of weight, one "
        "of y. How do the FLOPs and bytes of the backward pass compare with those of the "
        "forward pass?",
        "A matmul has `2 * batch * inputs * outputs` FLOPs, and moves `(batch * inputs + outputs "
        "* inputs + batch * outputs) * itemsize` bytes.",
    ),
    why="Half the bytes mean twice the intensity, so even an op that is bound by memory gains "
    "from 16 bits.",
    alternative="`count_ops()` around a call of the layer on fake tensors, which works for any "
    "layer.",
)

Pass = tuple[float, float, float]


def right(batch: int, inputs: int, outputs: int, itemsize: int) -> tuple[Pass, Pass]:
    x, weight, y = batch * inputs, outputs * inputs, batch * outputs
    flops = 2 * batch * inputs * outputs
    moved = itemsize * (x + weight + y)
    flops_back = 2 * flops  # two matmuls
    moved_back = itemsize * ((y + weight + x) + (y + x + weight))
    return (flops, moved, flops / moved), (flops_back, moved_back, flops_back / moved_back)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Small layers, one row, a layer as large as in a transformer, and drawn ones."""
    for batch, inputs, outputs, itemsize in (
        (8, 16, 32, 4),
        (8, 16, 32, 2),
        (1, 48, 20, 2),
        (100, 8, 8, 8),
        (64, 48, 24, 1),
        (512, 1024, 4096, 2),
        *((*draw.sample(range(2, 300), 3), draw.choice([1, 2, 4, 8])) for _ in range(3)),
    ):
        case = f"for batch {batch}, {inputs} inputs, {outputs} outputs and itemsize {itemsize}"
        got = call_answer(answer, case, batch, inputs, outputs, itemsize)
        forward, backward = read_pair(got, case, "a pair (forward, backward)")
        compared: dict[str, float] = {}
        for name, one in (("forward", forward), ("backward", backward)):
            numbers = _triple(one, f"{case}, the {name} pass")
            for what, number in zip(("FLOPs", "bytes", "intensity"), numbers, strict=True):
                compared[f"the {what} of the {name} pass"] = number
        yield Case(case, compared)


def _triple(got: Any, place: str) -> list[float]:
    """Return three numbers, from a tuple or whatever else holds three."""
    try:
        numbers = [*got]
    except TypeError:
        numbers = []
    if len(numbers) != 3 or isinstance(got, (str, dict)):
        kind = f"a {type(got).__name__}" + (f" of length {len(numbers)}" if numbers else "")
        raise Wrong(f"{place}: got {kind}, not a tuple (FLOPs, bytes, FLOPs per byte)")
    return [read_number(number, place, "your answer holds") for number in numbers]


FLOPS, MOVED = "flops = 2 * batch * inputs * outputs", "moved = itemsize * (x + weight + y)"
FLOPS_BACK = "flops_back = 2 * flops"
MOVED_BACK = "moved_back = itemsize * ((y + weight + x) + (y + x + weight))"
RETURN = "return (flops, moved, flops / moved), (flops_back, moved_back, flops_back / moved_back)"

mistakes = [
    Mistake(
        "counts multiplications only",
        "you count only multiplications: a multiply-add is 2 FLOPs",
        edits={FLOPS: "flops = batch * inputs * outputs"},
        violates="A multiply-add is 2 FLOPs",
    ),
    Mistake(
        "one addition fewer",
        "you count n − 1 additions for a sum of n products. By convention these are n "
        "multiply-adds of 2 FLOPs each",
        edits={FLOPS: "flops = batch * outputs * (2 * inputs - 1)"},
    ),
    Mistake(
        "FLOPs without the batch",
        "these are the FLOPs of one row of x: multiply them by `batch`",
        edits={FLOPS: "flops = 2 * inputs * outputs"},
    ),
    Mistake(
        "forgets the output",
        "you count only what the matmul reads: it also writes y, batch · outputs elements",
        edits={MOVED: "moved = itemsize * (x + weight)"},
        violates="and writes its result",
    ),
    *(
        Mistake(
            f"forgets the {what}",
            f"the bytes of the {what} are missing: they are read from memory too",
            edits={MOVED: f"moved = itemsize * ({counted})"},
            violates="reads both of its operands",
        )
        for what, counted in (("weight", "x + y"), ("input", "weight + y"))
    ),
    *(
        Mistake(
            f"itemsize of {one}",
            f"only {one} is multiplied by `itemsize`: put the sum of the three into parentheses",
            edits={MOVED: f"moved = {moved}"},
        )
        for one, moved in (("x", "itemsize * x + weight + y"), ("y", "x + weight + y * itemsize"))
    ),
    Mistake(
        "always 4 bytes",
        "you count 4 bytes per number for every dtype: multiply by `itemsize`",
        edits={MOVED: "moved = 4 * (x + weight + y)"},
        violates="numbers of `itemsize` bytes",
    ),
    Mistake(
        "elements instead of bytes",
        "these are elements, not bytes: multiply by `itemsize`",
        edits={MOVED: "moved = x + weight + y"},
    ),
    *(
        Mistake(
            name,
            "`itemsize` is in bytes, not in bits: leave out the factor of 8",
            edits={MOVED: f"moved = {factor} * itemsize * (x + weight + y)"},
        )
        for name, factor in (("bits instead of bytes", 8), ("itemsize taken for bits", 1 / 8))
    ),
    Mistake(
        "counts a bias",
        "you count a bias of `outputs` numbers, but the layer has none",
        edits={MOVED: "moved = itemsize * (x + weight + y + outputs)"},
        violates="no bias",
    ),
    Mistake(
        "the weight read for each row",
        "you count the weight once for each row of x: it is read once for the whole batch",
        edits={MOVED: "moved = itemsize * (x + batch * weight + y)"},
    ),
    Mistake(
        "bytes over FLOPs",
        "this is bytes per FLOP: divide the FLOPs by the bytes",
        edits={RETURN: RETURN.replace("flops / moved", "moved / flops")},
        violates="FLOPs per byte",
    ),
    Mistake(
        "FLOPs per element",
        "your intensity is in FLOPs per element, so `itemsize` makes no difference: divide by the "
        "bytes",
        edits={RETURN: RETURN.replace(" / ", " * itemsize / ")},
    ),
    Mistake(
        "twice in backward",
        "your backward pass has twice the intensity of the forward pass, but it moves twice as "
        "many bytes, too",
        edits={RETURN: RETURN.replace("/ moved_back", "/ moved")},
    ),
    Mistake(
        "whole division",
        "your FLOPs per byte have lost their fraction, as `//` or `int` would do: use `/`",
        edits={RETURN: RETURN.replace(" / ", " // ")},
    ),
    Mistake(
        "one matmul in backward",
        "your backward pass has as many FLOPs as the forward pass: it computes two gradients with "
        "one matmul each",
        edits={FLOPS_BACK: "flops_back = flops"},
        violates="the backward pass is two matmuls",
    ),
    Mistake(
        "backward with the forward pass",
        "these are the FLOPs of forward and backward together: count the backward pass alone",
        edits={FLOPS_BACK: "flops_back = 3 * flops"},
    ),
    Mistake(
        "four times in backward",
        "these are the FLOPs of four matmuls: double the forward FLOPs only once",
        edits={FLOPS_BACK: "flops_back = 4 * flops"},
    ),
    Mistake(
        "grad_y read once",
        "you count the gradient of y once in the backward pass: each of the two matmuls reads it "
        "from memory",
        edits={MOVED_BACK: "moved_back = itemsize * (y + 2 * x + 2 * weight)"},
        violates="Each matmul reads both",
    ),
    Mistake(
        "gradients not written",
        "the backward pass also writes the gradients of x and of the weight: count them too",
        edits={MOVED_BACK: "moved_back = itemsize * (2 * y + x + weight)"},
    ),
    Mistake(
        "gradients only",
        "you count the bytes of one matmul in the backward pass: there are two, with three "
        "matrices each",
        edits={MOVED_BACK: "moved_back = itemsize * (y + x + weight)"},
    ),
]

linear_intensity = Exercise(card, right, cases, mistakes, tolerance=1e-5)
