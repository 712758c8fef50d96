"""Exercise 4 of chapter 02: a total of many 16-bit terms, compared with the exact sum."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="underflow",
    name="steady_sum",
    number=4,
    title="A sum that does not stand still",
    difficulty=2,
    importance=5,
    minutes=6,
    lines=4,
    task="Write `steady_sum(terms)`: add a list of fp16 or bf16 tensors of one shape and dtype, "
    "element by element, as a loop that accumulates gradients or a loss does. There may be one "
    "term or thousands, the same tensor may come twice, and list and terms stay unchanged. The "
    "sum fits into the terms' dtype. The result may have any dtype, as long as its values are "
    "right to a few roundings.",
    hints=(
        "In which dtype is the number that grows?",
        "Casting at the end is too late: the terms are already lost. The total has to be wide all "
        "the time.",
        "`total = torch.zeros_like(terms[0], dtype=torch.float32)`; then `total += term` for "
        "each. An addition in place keeps the dtype of the left side.",
    ),
    why="A running loss or an accumulated gradient in 16 bits silently stops growing after some "
    "hundred (bf16) or thousand (fp16) terms.",
    alternative="Kahan's sum in 16 bits: a second 16-bit number carries what each addition rounds "
    "away. Optimizers for pure bf16 do that.",
)


def right(terms: list[Tensor]) -> Any:
    total = torch.zeros_like(terms[0], dtype=torch.float32)
    for term in terms:
        total += term
    return total


TERMS = "the terms after the call"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """A few terms; many that nearly cancel; many, of which `equal` ones lose much even in sums of a
    hundred; small and large ones.
    """
    size = draw.choice((-1.0, 1.0)) * 2.0 ** draw.randint(-3, 4)
    for dtype, many, small, large, one in (
        (torch.float16, 3000, 1e-4, 1e4, 1.216796875),
        (torch.bfloat16, 1000, 1e-12, 1e30, 1.234375),
    ):
        name = dtype_name(dtype)
        place = torch.arange(many, dtype=torch.float64).view(-1, 1, 1)
        noise = (place * torch.tensor([[0.6180339887, 0.4142135624]])).frac()  # (many, 1, 2)
        signs = (noise[:500] > 0.5) * 2.0 - 1  # all their partial sums are exact in 16 bits
        equal = torch.full_like(place, one)
        falling = torch.where(place < 100, 8.0, 0.08).double()
        # The mean of these is rounded by a tenth in fp16.
        one_of_many = torch.zeros(5000, 1, 1)
        one_of_many[4321] = 0.001
        few = torch.tensor([[7.0, 1], [-2, 9], [5, 4], [11, -3], [1, 8], [-6, 2], [4, 13]])
        few = few.unsqueeze(1)
        for what, numbers in {
            "one term of {}": torch.tensor([[[3.0, -0.5]]]),
            "7 terms of {}": few * size,
            "7 other terms of {}": few.flip(0) * few * size,
            "5 terms of {} and shape ()": few[2:, 0, 0],
            "501 terms of {} that nearly cancel": torch.cat([signs, 12 - signs.sum(0, True)]),
            f"{many:,} terms of {{}}": torch.cat([0.7 + noise / 4, equal, falling, -equal / 8], 2),
            f"{many:,} small terms of {{}}": torch.full((many, 1, 2), small),
            "5 large terms of {}": torch.full((5, 1, 1), large),
            "5,000 terms of {}, all 0 but one of 0.001": one_of_many,
        }.items():
            case, terms = f"for {what.format(name)}", [*numbers.to(dtype)]
            if len(terms) == 7:
                terms[4] = terms[1]
            given, before = [*terms], torch.stack(terms)
            exact = before.double().sum(dim=0)
            got = read_tensor(call_answer(answer, case, given), case)
            total = got.double()
            if got.shape == exact.shape:  # ignore a few roundings
                near = (total - exact).abs() <= 6 * torch.finfo(dtype).eps * exact.abs()
                total = exact.where(near, total)
            wide = len(terms) > 1 and got.dtype.itemsize > 2  # one may come back as it started
            outputs = {"the sum": total, TERMS: _changed(given, terms, before)}
            yield Case(case, outputs, {"dtype": name}, {"wide": wide})


def _changed(given: list[Tensor], terms: list[Tensor], before: Tensor) -> str:
    """Say what a call did to the list that it was given, and to the terms in it."""
    if not given:
        return "empties the list"
    if len(given) != len(terms):
        return f"makes {len(given)} terms of the {len(terms)} in the list"
    if any(one is not term for one, term in zip(given, terms, strict=True)):
        return "puts other tensors into the list, or reorders it"
    same = all(one.dtype == before.dtype and one.shape == before.shape[1:] for one in terms)
    unchanged = same and torch.equal(torch.stack(terms), before)
    return "" if unchanged else "changes the terms themselves"


START, FOR = "total = torch.zeros_like(terms[0], dtype=torch.float32)", "for term in terms:"
ADD, RETURN, NARROW = "total += term", "return total", "total = torch.zeros_like(terms[0])"
FP16_ZERO = START.replace("float32", "float16")

mistakes = [
    Mistake(
        "16-bit total",
        "the total is kept in {dtype}, and gets stuck when a term is less than half the gap to the "
        "next number: keep it in float32 all the time",
        edits={START: NARROW},
        violates="one term or thousands",
    ),
    Mistake(
        "a total of shape ()",
        "the total becomes {dtype} with the first term, since `torch.tensor(0.0)`, of shape (), "
        "does not widen tensors of other shapes: start from `torch.zeros_like(terms[0], "
        "dtype=torch.float32)`",
        edits={START: "total = torch.tensor(0.0)", ADD: "total = total + term"},
    ),
    Mistake(
        "casts the result only",
        "you return a wider dtype, but the sum got stuck in {dtype} before: add in float32 from "
        "the first term",
        edits={START: NARROW, RETURN: "return total.float()"},
    ),
    Mistake(
        "fp16 total",
        "the total is kept in float16 for terms of any dtype, and gets stuck: keep it in float32",
        edits={START: FP16_ZERO},
        violates="fp16 or bf16 tensors",
    ),
    Mistake(
        "an fp16 start",
        "the total of float16 terms is kept in float16, and gets stuck: keep it in float32 for "
        "terms of any dtype",
        edits={START: FP16_ZERO, ADD: "total = total + term"},
    ),
    Mistake(
        "bf16 through fp16",
        "bf16 numbers are converted to float16, whose range is smaller at both ends: keep float32 "
        "or the terms' dtype",
        edits={RETURN: "return total.half()"},
        violates="fits into the terms' dtype",
    ),
    Mistake(
        "writes into the first term",
        "you add into the first term, in its 16 bits: `total = terms[0]` makes no copy. Start "
        "from a float32 zero",
        edits={START: "total = terms[0]", FOR: "for term in terms[1:]:"},
        violates="list and terms stay unchanged",
    ),
    Mistake(
        "each tensor once",
        "a tensor that is in the list twice is added only once: add all terms, in a loop over the "
        "list",
        edits={FOR: "for term in dict.fromkeys(terms):"},
        violates="the same tensor may come twice",
    ),
    Mistake(
        "the mean times the number",
        "the mean of many terms is rounded before it is multiplied, and may be tiny in float16: "
        "add in float32 with `torch.stack(terms).sum(dim=0, dtype=torch.float32)`",
        edits={RETURN: "return torch.stack(terms).mean(dim=0) * len(terms)"},
    ),
    Mistake(
        "the mean",
        "this is the mean of the terms: return their sum",
        edits={RETURN: "return total / len(terms)"},
    ),
    Mistake(
        "the first term twice",
        "the first term is added twice: if the total starts with it, loop over `terms[1:]`",
        edits={START: "total = terms[0].float()"},
    ),
    Mistake(
        "adds the elements too",
        "you also add up the elements of the tensors: add element by element, so that the sum has "
        "the terms' shape",
        edits={RETURN: "return total.sum()"},
        violates="element by element",
    ),
]

steady_sum = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=5e-3,
    messages={TERMS: "{case}, your function {got}: leave the list and its terms unchanged"},
)
