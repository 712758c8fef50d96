"""Exercise 9 of chapter 11: float8 turns padding into NaN."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.zero_amax import through_float8 as faulty
from amp_course.debugging.clinic.trials import Runner, describe_cause

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


def draw_rows(sizes: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Draw rows of 8 with a given largest value and one 0; no value lies halfway between two
    numbers of float8.
    """
    positive = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = positive[(positive > 1.0) & (positive < 448.0)]
    rows = numbers[torch.randint(0, len(numbers), (len(sizes), 8), generator=generator)]
    rows *= 1 + 0.01 * (torch.rand(rows.shape, generator=generator) - 0.5)
    for row in rows:
        row[:2] = torch.tensor([448.0, 0.0])
        row *= torch.randint(0, 2, (8,), generator=generator) * 2.0 - 1
        row.copy_(row[torch.randperm(8, generator=generator)])
    return (rows / 448 * torch.tensor(sizes, dtype=torch.float64)[:, None]).float()


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Send rows of many sizes through float8, and a gradient back."""
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    overflows = 448 / torch.finfo(torch.float32).max
    for case, sizes, nan in (  # the largest value of each row, and which row gets a NaN
        ("for ordinary rows", (2.0, 0.03, 500.0), None),
        ("for rows of zeros", (2.0, 0.0, 0.7, 0.0), None),
        ("for a NaN in one row", (4.0, 1.0), 1),
        ("for rows with an `amax` of 1e-9 and of 1e-20", (1e-9, 1e-20, 3.0), None),
        ("for a row with an `amax` of 1e-37", (0.5, 1e-37), None),
        ("for a row with an `amax` of 1e-40", (0.5, 1e-40), None),
        ("for nothing but zeros", (0.0, 0.0), None),
    ):
        x = draw_rows(sizes, generator)
        if nan is not None:
            x[nan, 3] = torch.nan
        x.requires_grad_()
        got = run(case, x)
        result = read_tensor(got, case, "a tensor like `x`", x.shape)
        if got.requires_grad:
            got.backward(torch.randn(x.shape, generator=generator).to(got.dtype))
        rows = {size: result[row] for row, size in enumerate(sizes) if row != nan}
        outputs: dict[str, Any] = {
            "the row": [row for size, row in rows.items() if size >= overflows]
        }
        if 0.0 in rows:
            outputs["the row of zeros"] = rows[0.0] + 0.0  # makes 0.0 of -0.0
        if nan is not None:
            outputs["what becomes of the NaN"] = float(result[nan, 3])
        if 0 < sizes[-1] < overflows:
            exact = x.detach()[-1].double()
            error = float((result[-1] - exact).abs().max() / exact.abs().max())
            outputs["the largest error, as a share of `amax`,"] = (
                "at most 1/8" if error <= 1 / 8 else round(error, 3)
            )
        outputs["the gradient"] = "missing" if x.grad is None else x.grad
        yield Case(case, outputs)
    yield run.last_case()


SCALE = "scale = (448 / amax).clamp(max=torch.finfo(torch.float32).max)"
RETURN = "return x + (back - x).detach()"

mistakes = [
    Mistake(
        "unchanged",
        "a row of zeros still becomes NaN, like 0 · inf and 0 / 0. Its scale has to be positive "
        "and finite. A floor for `amax` helps only from 1.32e-36 up, since 448 divided by "
        "anything smaller is inf in fp32 too",
        answer=faulty,
        violates="a `through_float8` without the fault",
    ),
    Mistake(
        "tests for zero",
        "below 1.32e-36 `448 / amax` is inf in fp32 too. Limit the scale",
        edits={SCALE: "scale = 448 / torch.where(amax == 0, 1.0, amax)"},
        violates="rows with a smaller `amax`",
    ),
    Mistake(
        "zeros for tiny rows",
        "rows too small for a finite `448 / amax` become zeros. Use the largest finite scale",
        edits={SCALE: "scale = torch.where((448 / amax).isinf(), 1.0, 448 / amax)"},
    ),
    Mistake(
        "a floor of 1e-12",
        "1e-12 is above the `amax` of some rows. Use the lowest floor that keeps the scale finite",
        edits={SCALE: "scale = 448 / amax.clamp(min=1e-12)"},
        violates="come back as they do now",
    ),
    Mistake(
        "adds 1e-12",
        "1e-12 changes the scale of small rows. Use a limit, which leaves other rows unchanged",
        edits={SCALE: "scale = 448 / (amax + 1e-12)"},
    ),
    Mistake(
        "replaces NaN",
        "NaN in the result becomes 0, without a gradient, even if `x` has NaN. Correct the scale",
        edits={
            SCALE: "scale = 448 / amax",
            RETURN: "return (x + (back - x).detach()).nan_to_num()",
        },
        violates="a NaN stays NaN",
    ),
    Mistake(
        "one scale for all",
        "all rows share one scale, so small rows lose digits. Keep one scale per row",
        edits={"amax = x.abs().amax(dim=-1, keepdim=True)": "amax = x.abs().amax()"},
    ),
    Mistake(
        "no straight-through",
        "float8 rounds the gradient too. Return `x + (back - x).detach()`",
        edits={RETURN: "return back"},
        violates="The gradient passes straight through",
    ),
    Mistake(
        "no gradient for zeros",
        "rows of zeros get no gradient. Let it pass in all rows",
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
        "In the faulty script, the scale of the row of padding is inf, and 0 · inf is NaN."
    ),
)
