"""Exercise 4 of chapter 02: a total of many 16-bit terms, against the exact sum."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import find_format
from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor

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
    "sum fits into the terms' dtype. A tensor of any dtype may come back, as long as its values "
    "are right to a few roundings.",
    hints=(
        "In which dtype is the number that grows?",
        "Casting at the end is too late: the terms are already gone. It is the total that has to "
        "be wide, all the time.",
        "`total = torch.zeros_like(terms[0], dtype=torch.float32)`; then `total += term` for "
        "each. An addition in place keeps the dtype of the left side.",
    ),
    why="A running loss or an accumulated gradient in 16 bits stops growing after some hundred "
    "(bf16) or thousand (fp16) terms, silently.",
    alternative="Kahan's sum in 16 bits: a second 16-bit number carries what each addition rounds "
    "away. Optimizers for pure bf16 do that.",
)


def right(terms: list[Tensor]) -> Any:
    total = torch.zeros_like(terms[0], dtype=torch.float32)
    for term in terms:
        total += term
    return total


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """A few terms; many that nearly cancel; many: `equal` ones lose much even in sums of a hundred;
    small and large ones.
    """
    size = draw.choice((-1.0, 1.0)) * 2.0 ** draw.randint(-3, 4)
    for dtype, many, small, large in (
        (torch.float16, 3000, 1e-4, 1e4),
        (torch.bfloat16, 1000, 1e-12, 1e30),
    ):
        name = str(dtype).removeprefix("torch.")
        place = torch.arange(many, dtype=torch.float64).view(-1, 1, 1)
        like_noise = (place * torch.tensor([[0.6180339887, 0.4142135624]])).frac()  # (many, 1, 2)
        signs = (like_noise[:500] > 0.5) * 2.0 - 1  # all their partial sums are exact in 16 bits
        equal = torch.full(
            (many, 1, 1), 1.234375 if dtype == torch.bfloat16 else 1.216796875, dtype=torch.float64
        )
        falling = torch.where(place < 100, 8.0, 0.08).double()
        one_of_many = torch.zeros(5000, 1, 1).index_fill(
            0, torch.tensor([4321]), 0.001
        )  # fp16 rounds their mean by a tenth
        few = torch.tensor(
            [[[7.0, 1]], [[-2, 9]], [[5, 4]], [[11, -3]], [[1, 8]], [[-6, 2]], [[4, 13]]]
        )
        cases = {
            f"for one term of {name}": torch.tensor([[[3.0, -0.5]]]),
            f"for 7 terms of {name}": few * size,
            f"for 7 other terms of {name}": few.flip(0) * few * size,
            f"for 5 terms of {name} and shape ()": few[2:, 0, 0],
            f"for 501 terms of {name} that nearly cancel": torch.cat(
                [signs, 12 - signs.sum(dim=0, keepdim=True)]
            ),
            f"for {many:,} terms of {name}": torch.cat(
                [0.7 + like_noise / 4, equal, falling, -equal / 8], dim=2
            ),
            f"for {many:,} small terms of {name}": torch.full((many, 1, 2), small),
            f"for 5 large terms of {name}": torch.full((5, 1, 1), large),
            f"for 5,000 terms of {name}, all 0 but one of 0.001": one_of_many,
        }
        for case, numbers in cases.items():
            terms = [*numbers.to(dtype)]
            if len(terms) == 7:
                terms[4] = terms[1]
            given, before = [*terms], torch.stack(terms)
            exact = before.double().sum(dim=0)
            got = read_tensor(call_answer(answer, case, given), case)
            total = got.double()
            if got.shape == exact.shape:  # a few roundings are none
                total = exact.where(
                    (total - exact).abs() <= 6 * find_format(dtype).eps * exact.abs(), total
                )
            outputs = {"the sum": total, "the terms after the call": _changed(given, terms, before)}
            yield Case(case, outputs, {"dtype": name}, {"wide": got.dtype.itemsize > 2})


def _changed(given: list[Tensor], terms: list[Tensor], before: Tensor) -> str:
    """Say what a call did to the list that it was given, and to the terms in it."""
    if len(given) != len(terms):
        return (
            f"makes {len(given)} terms of the {len(terms)} in the list"
            if given
            else "empties the list"
        )
    if any(one is not term for one, term in zip(given, terms, strict=True)):
        return "puts other tensors into the list, or reorders it"
    same = all(one.dtype == before.dtype and one.shape == before.shape[1:] for one in terms)
    return (
        "" if same and torch.equal(torch.stack(terms), before) else "changes the terms themselves"
    )


START, FOR = "total = torch.zeros_like(terms[0], dtype=torch.float32)", "for term in terms:"
ADD, RETURN, NARROW = "total += term", "return total", "total = torch.zeros_like(terms[0])"
FP16_ZERO = START.replace("float32", "float16")
SAID = {
    "the terms after the call": "{case}, your function {got}. It has to leave list and terms as "
    "they are"
}

mistakes = [
    Mistake(
        "16-bit total",
        "the total is kept in {dtype} and gets stuck where one more term is less than half the "
        "gap to the next number: keep it in float32 all the time",
        edits={START: NARROW},
        violates="one term or thousands",
    ),
    Mistake(
        "a total of shape ()",
        "the total becomes {dtype} with the first term: `torch.tensor(0.0)`, of shape (), does "
        "not widen tensors of other shapes. Start from `torch.zeros_like(terms[0], "
        "dtype=torch.float32)`",
        edits={START: "total = torch.tensor(0.0)", ADD: "total = total + term"},
    ),
    Mistake(
        "casts only the result",
        "what you return is wider, but a sum got stuck in {dtype} on the way: add in float32 from "
        "the first term",
        edits={START: NARROW, RETURN: "return total.float()"},
    ),
    Mistake(
        "fp16 total",
        "the total is kept in float16, whatever the dtype of the terms, and gets stuck: keep it "
        "in float32",
        edits={START: FP16_ZERO},
        violates="fp16 or bf16 tensors",
    ),
    Mistake(
        "an fp16 start",
        "the total of float16 terms is kept in float16, and gets stuck: keep it in float32, for "
        "terms of any dtype",
        edits={START: FP16_ZERO, ADD: "total = total + term"},
    ),
    Mistake(
        "bf16 through fp16",
        "bf16 numbers go through float16, whose range is narrower at both ends: keep float32, or "
        "the terms' dtype",
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
        "a tensor that comes twice in the list is added only once: add all terms, in a loop over "
        "the list",
        edits={FOR: "for term in dict.fromkeys(terms):"},
        violates="the same tensor may come twice",
    ),
    Mistake(
        "the mean times the number",
        "the mean of many terms is rounded before it is multiplied, and in float16 it may be "
        "tiny: add in float32, `torch.stack(terms).sum(dim=0, dtype=torch.float32)`",
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
        "you add up the elements of the tensors too: add element by element, so that the sum has "
        "the terms' shape",
        edits={RETURN: "return total.sum()"},
        violates="element by element",
    ),
]

steady_sum = Exercise(card, right, cases, mistakes, tolerance=5e-3, messages=SAID)
