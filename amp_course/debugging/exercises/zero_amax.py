"""Patient 9 of chapter 11: float8 turns padding into NaN."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.zero_amax import through_float8 as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, run_answer

card = Card(
    chapter="debugging",
    name="zero_amax",
    number=9,
    title="Padding becomes NaN in float8",
    difficulty=3,
    importance=3,
    minutes=8,
    lines=6,
    task="float8 (E4M3) ends at 448. So `through_float8` multiplies each row by `448 / amax`, "
    "where `amax` is the largest magnitude in the row, casts the product to float8, and divides "
    "by the same factor (chapter 12 has the details). Write `zero_amax(x)`, a `through_float8` "
    "without the fault. A row of zeros stays zeros, and a NaN stays NaN. Rows with a finite `448 "
    "/ amax` come back as they do now; in rows with a smaller `amax`, down to 1e-40, each value "
    "is right to 1/8 of `amax`. The gradient passes straight through, in each row. Name the fault "
    "in its first line, by `cause(…)`.",
    hints=(
        "What is `scale` for a row of zeros, and what is `x * scale`?",
        "448 / amax is inf not only for 0, but for everything below 1.32e-36, too. What is the "
        "largest finite scale in fp32?",
        "`scale = (448 / amax).clamp(max=torch.finfo(torch.float32).max)`; the cause is "
        "'division-by-zero'.",
    ),
    why="Padding, a dead ReLU and a gradient of 0 all give rows of zeros. A floor for `amax` must "
    "fit the numbers of the tensor.",
    alternative="divide instead: `scale = (amax / "
    "448).clamp(min=torch.finfo(torch.float32).tiny)`, then `x / scale` and `stored * scale`.",
)


def right(x: Any) -> Any:
    cause("division-by-zero")
    amax = x.abs().amax(dim=-1, keepdim=True)
    scale = (448 / amax).clamp(max=torch.finfo(torch.float32).max)
    stored = (x * scale).to(torch.float8_e4m3fn)
    back = stored.to(torch.float32) / scale
    return x + (back - x).detach()


CASES = (  # the case, the largest value of each row, and which row gets a NaN
    ("for ordinary rows", (2.0, 0.03, 500.0), None),
    ("for rows of zeros", (2.0, 0.0, 0.7, 0.0), None),
    ("for a NaN in one row", (4.0, 1.0), 1),
    ("for rows with an `amax` of 1e-9 and of 1e-20", (1e-9, 1e-20, 3.0), None),
    ("for a row with an `amax` of 1e-37", (0.5, 1e-37), None),
    ("for a row with an `amax` of 1e-40", (0.5, 1e-40), None),
    ("for nothing but zeros", (0.0, 0.0), None),
)
COLUMNS, OVERFLOWS, SHARE = 8, 448 / torch.finfo(torch.float32).max, 1 / 8


def draw_rows(sizes: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Draw rows with a given largest value and one 0,
    of values that do not lie halfway between two numbers of float8.
    """
    numbers = (
        torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    )  # all that are positive
    numbers = numbers[(numbers > 1.0) & (numbers < 448.0)]
    drawn = numbers[torch.randint(0, len(numbers), (len(sizes), COLUMNS), generator=generator)]
    drawn *= 1 + 0.01 * (torch.rand(drawn.shape, generator=generator) - 0.5)
    largest = torch.randint(0, COLUMNS, (len(sizes),), generator=generator)
    drawn[torch.arange(len(sizes)), largest] = 448.0
    drawn[torch.arange(len(sizes)), largest - 1] = 0.0
    drawn *= torch.randint(0, 2, drawn.shape, generator=generator) * 2.0 - 1
    return (drawn / 448 * torch.tensor(sizes, dtype=torch.float64)[:, None]).float()


ERROR = "the largest error, as a share of `amax`,"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Send rows of many sizes through float8, and a gradient back."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    causes = []
    for case, sizes, place in CASES:
        x = draw_rows(sizes, generator)
        if place is not None:
            x[place, 3] = torch.nan
        x.requires_grad_()
        got, named = run_answer(answer, case, x)
        result = read_tensor(got, case, "a tensor like `x`", x.shape)
        arriving = torch.randn(x.shape, generator=generator)
        if got.requires_grad:
            got.backward(arriving.to(got.dtype))
        rows = {size: result[row] for row, size in enumerate(sizes) if row != place}
        outputs: dict[str, Any] = {
            "the row": [row for size, row in rows.items() if size >= OVERFLOWS]
        }
        if 0.0 in rows:
            outputs["the row of zeros"] = rows[0.0] + 0.0  # 0.0 for -0.0
        if place is not None:
            outputs["what becomes of the NaN"] = float(result[place, 3])
        for row, size in enumerate(sizes):
            if 0 < size < OVERFLOWS:
                exact = x.detach()[row].double()
                error = float((result[row] - exact).abs().max() / exact.abs().max())
                outputs[ERROR] = "at most 1/8" if error <= SHARE else round(error, 3)
        outputs["the gradient"] = "missing" if x.grad is None else x.grad
        yield Case(case, outputs)
        causes.append(named)
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


AMAX, SCALE = (
    "amax = x.abs().amax(dim=-1, keepdim=True)",
    "scale = (448 / amax).clamp(max=torch.finfo(torch.float32).max)",
)
STORED, BACK = (
    "stored = (x * scale).to(torch.float8_e4m3fn)",
    "back = stored.to(torch.float32) / scale",
)
RETURN, BROKEN = "return x + (back - x).detach()", "scale = 448 / amax"

mistakes = [
    Mistake(
        "unchanged",
        "a row of zeros still becomes NaN, as 0 · inf and 0 / 0 are: its scale has to be a "
        "positive number, and finite. A floor for `amax` only helps from 1.32e-36 up, since 448 "
        "divided by anything smaller is inf in fp32, too",
        answer=patient,
        violates="a `through_float8` without the fault",
    ),
    Mistake(
        "tests for zero",
        "rows of zeros are fine now, but below 1.32e-36 `448 / amax` is inf in fp32, too: limit "
        "the scale",
        edits={SCALE: "scale = 448 / torch.where(amax == 0, 1.0, amax)"},
        violates="rows with a smaller `amax`",
    ),
    Mistake(
        "zeros for tiny rows",
        "rows that are too small for a finite `448 / amax` come back as zeros: give them the "
        "largest finite scale",
        edits={SCALE: "scale = torch.where((448 / amax).isinf(), 1.0, 448 / amax)"},
    ),
    Mistake(
        "a floor of 1e-12",
        "1e-12 is larger than the `amax` of some rows: one with an `amax` of 1e-20 rounds to 0. "
        "Take a floor that only just keeps the scale finite",
        edits={SCALE: "scale = 448 / amax.clamp(min=1e-12)"},
        violates="come back as they do now",
    ),
    Mistake(
        "adds 1e-12",
        "1e-12 is not small compared with the `amax` of small rows, and changes their scale: take "
        "a limit, which leaves all other rows as they are",
        edits={SCALE: "scale = 448 / (amax + 1e-12)"},
    ),
    Mistake(
        "replaces NaN",
        "you put 0 where the result is NaN, which stops the gradient there, and hides a NaN that "
        "was in `x`: repair the scale, and not the result",
        edits={SCALE: BROKEN, RETURN: "return (x + (back - x).detach()).nan_to_num()"},
        violates="a NaN stays NaN",
    ),
    Mistake(
        "one scale for all",
        "all rows share one scale, by which small rows lose digits or round to 0: keep one scale "
        "per row",
        edits={AMAX: "amax = x.abs().amax()"},
    ),
    Mistake(
        "no straight-through",
        "the gradient passes through float8 as well, and is rounded there: return `x + (back - "
        "x).detach()`",
        edits={RETURN: "return back"},
        violates="The gradient passes straight through",
    ),
    Mistake(
        "no gradient for zeros",
        "rows of zeros get no gradient, so what makes them cannot learn: let it pass in all rows",
        edits={RETURN: "return torch.where(amax == 0, 0.0, x + (back - x).detach())"},
        violates="in each row",
    ),
]

zero_amax = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages=describe_cause(
        "In the patient, the scale of the row of padding is inf, and 0 · inf is NaN."
    ),
)
