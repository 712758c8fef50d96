"""Exercise 1 of chapter 09: FLOPs per byte of a linear layer,
against those of the ops that PyTorch really calls.
"""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import linear

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    edited,
    read_number,
    read_pair,
)
from amp_course.speed.counting import MATMUL, count_ops, fake_tensors, totals

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
        "of y. So how do FLOPs and bytes of the backward pass compare with those of the forward "
        "pass?",
        "A matmul has `2 * batch * inputs * outputs` FLOPs, and moves `(batch * inputs + outputs "
        "* inputs + batch * outputs) * itemsize` bytes.",
    ),
    why="Half the bytes are twice the intensity, so even an op that is bound by memory gains from "
    "16 bits.",
    alternative="`count_ops()` around the layer's own call on fake tensors: the check does it so, "
    "and it works for any layer.",
)

Pass = tuple[float, float, float]
DTYPES = {1: torch.float8_e5m2, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


@functools.cache
def right(batch: int, inputs: int, outputs: int, itemsize: int) -> tuple[Pass, Pass]:
    """Count the ops of a layer, on fake tensors."""
    with fake_tensors():
        x, weight = (
            torch.empty(rows, inputs, dtype=DTYPES[itemsize], requires_grad=True)
            for rows in (batch, outputs)
        )
        with count_ops() as forward:
            y = linear(x, weight)
        grad_y = torch.empty_like(y)
        with count_ops() as backward:
            y.backward(grad_y)
    counts = [totals(counter.calls, MATMUL) for counter in (forward, backward)]
    one, two = ((count.flops, count.bytes, count.flops / count.bytes) for count in counts)
    return one, two


def formula(batch: int, inputs: int, outputs: int, itemsize: int) -> tuple[Pass, Pass]:
    """Compute the same: what the mistakes are made of."""
    x, weight, y = batch * inputs, outputs * inputs, batch * outputs
    flops = 2 * batch * inputs * outputs
    moved = itemsize * (x + weight + y)
    flops_back = 2 * flops
    moved_back = itemsize * ((y + weight + x) + (y + x + weight))
    return (flops, moved, flops / moved), (flops_back, moved_back, flops_back / moved_back)


SIZES = (
    (8, 16, 32, 4),
    (8, 16, 32, 2),
    (1, 48, 20, 2),
    (100, 8, 8, 8),
    (64, 48, 24, 1),
    (512, 1024, 4096, 2),
)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Small layers, one row, a layer as large as in a transformer, and drawn ones."""
    sizes = [draw.sample(range(2, 300), 3) for _ in range(3)]
    for batch, inputs, outputs, itemsize in (
        *SIZES,
        *((*size, draw.choice([1, 2, 4, 8])) for size in sizes),
    ):
        case = f"for batch {batch}, {inputs} inputs, {outputs} outputs and itemsize {itemsize}"
        got = read_pair(
            call_answer(answer, case, batch, inputs, outputs, itemsize),
            case,
            "a pair (forward, backward)",
        )
        compared: dict[str, Any] = {}
        for name, one in zip(("forward", "backward"), got, strict=True):
            numbers = zip(
                ("FLOPs", "bytes", "intensity"),
                _triple(one, f"{case}, the {name} pass"),
                strict=True,
            )
            compared |= {f"the {what} of the {name} pass": number for what, number in numbers}
        yield Case(case, compared, {"itemsize": itemsize})


def _triple(got: Any, place: str) -> list[float]:
    """Return three numbers, from a tuple or whatever else holds three."""
    try:
        numbers = [*got]
    except TypeError:
        numbers = []
    if len(numbers) != 3 or isinstance(got, (str, dict)):
        kind = f"a {type(got).__name__}" + (f" of length {len(numbers)}" if numbers else "")
        raise Wrong(f"{place}: {kind} came, not a tuple (FLOPs, bytes, FLOPs per byte)")
    return [read_number(number, place, "your answer holds") for number in numbers]


FLOPS, MOVED = "flops = 2 * batch * inputs * outputs", "moved = itemsize * (x + weight + y)"
FLOPS_BACK, MOVED_BACK = (
    "flops_back = 2 * flops",
    "moved_back = itemsize * ((y + weight + x) + (y + x + weight))",
)
RETURN = "return (flops, moved, flops / moved), (flops_back, moved_back, flops_back / moved_back)"


def _with(line: str, instead: str) -> Any:
    """Return the formula with one line changed."""
    return edited(formula, {line: instead})


mistakes = [
    Mistake(
        "counts multiplications only",
        "these are the multiplications alone: each has an addition, and both count",
        answer=_with(FLOPS, "flops = batch * inputs * outputs"),
        violates="A multiply-add is 2 FLOPs",
    ),
    Mistake(
        "one addition fewer",
        "a sum of n products has n − 1 additions, but by convention a matmul counts n "
        "multiply-adds, 2 FLOPs each",
        answer=_with(FLOPS, "flops = batch * outputs * (2 * inputs - 1)"),
    ),
    Mistake(
        "FLOPs without the batch",
        "these are the FLOPs of one row of x: there are `batch` rows",
        answer=_with(FLOPS, "flops = 2 * inputs * outputs"),
    ),
    Mistake(
        "forgets the output",
        "you count what the matmul reads, and not what it writes: y has batch · outputs elements",
        answer=_with(MOVED, "moved = itemsize * (x + weight)"),
        violates="and writes its result",
    ),
    Mistake(
        "forgets the weight",
        "the weight is missing from the bytes: it is read from memory too, and in a small batch "
        "it is most of them",
        answer=_with(MOVED, "moved = itemsize * (x + y)"),
        violates="reads both of its operands",
    ),
    Mistake(
        "forgets the input",
        "x is missing from the bytes: its batch · inputs elements are read from memory too",
        answer=_with(MOVED, "moved = itemsize * (weight + y)"),
    ),
    Mistake(
        "always 4 bytes",
        "you count 4 bytes a number whatever the dtype: bytes halve with it, so multiply by "
        "`itemsize`",
        answer=_with(MOVED, "moved = 4 * (x + weight + y)"),
        violates="numbers of `itemsize` bytes",
    ),
    Mistake(
        "elements instead of bytes",
        "these are elements, not bytes: multiply by `itemsize`",
        answer=_with(MOVED, "moved = x + weight + y"),
    ),
    Mistake(
        "bits instead of bytes",
        "these are bits: `itemsize` is in bytes already, so there is no factor of 8",
        answer=_with(MOVED, "moved = 8 * itemsize * (x + weight + y)"),
    ),
    Mistake(
        "itemsize taken for bits",
        "these are bytes divided by 8: `itemsize` is in bytes, not in bits",
        answer=_with(MOVED, "moved = itemsize * (x + weight + y) / 8"),
    ),
    Mistake(
        "counts a bias",
        "this counts a bias of `outputs` numbers, and the layer has none",
        answer=_with(MOVED, "moved = itemsize * (x + weight + y + outputs)"),
        violates="no bias",
    ),
    Mistake(
        "the weight read for each row",
        "the weight is counted once for each row of x: it is read once, for the whole batch",
        answer=_with(MOVED, "moved = itemsize * (x + batch * weight + y)"),
    ),
    Mistake(
        "bytes over FLOPs",
        "this is bytes per FLOP: divide the FLOPs by the bytes",
        answer=_with(RETURN, RETURN.replace("flops / moved", "moved / flops")),
        violates="FLOPs per byte",
    ),
    Mistake(
        "whole division",
        "your FLOPs per byte have lost their fraction, as by `//` or `int`: divide by `/`",
        answer=_with(RETURN, RETURN.replace(" / ", " // ")),
    ),
    Mistake(
        "one matmul in backward",
        "the backward pass has as many FLOPs here as the forward pass: it computes two gradients, "
        "by a matmul each",
        answer=_with(FLOPS_BACK, "flops_back = flops"),
        violates="the backward pass is two matmuls",
    ),
    Mistake(
        "backward with the forward pass",
        "these are the FLOPs of forward and backward together: the backward pass alone has two "
        "matmuls",
        answer=_with(FLOPS_BACK, "flops_back = 3 * flops"),
    ),
    Mistake(
        "four times in backward",
        "these are four matmuls: the factor 2 of a multiply-add is in the forward FLOPs already, "
        "so only double those",
        answer=_with(FLOPS_BACK, "flops_back = 4 * flops"),
    ),
    Mistake(
        "grad_y read once",
        "the gradient of y is counted once in the backward pass: each of the two matmuls reads it "
        "from memory",
        answer=_with(MOVED_BACK, "moved_back = itemsize * (y + 2 * x + 2 * weight)"),
        violates="Each matmul reads both",
    ),
    Mistake(
        "gradients not written",
        "the backward pass also writes: the gradients of x and of the weight, as large as x and "
        "the weight",
        answer=_with(MOVED_BACK, "moved_back = itemsize * (2 * y + x + weight)"),
    ),
    Mistake(
        "gradients only",
        "you count the bytes of one matmul in the backward pass: there are two, of three matrices "
        "each",
        answer=_with(MOVED_BACK, "moved_back = itemsize * (y + x + weight)"),
    ),
]

linear_intensity = Exercise(card, right, cases, mistakes, tolerance=1e-5)
