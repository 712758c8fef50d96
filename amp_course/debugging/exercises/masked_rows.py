"""Patient 5 of chapter 11: a model that returns NaN after a batch whose loss is finite."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.masked_rows import attend as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, run_answer

card = Card(
    chapter="debugging",
    name="masked_rows",
    number=5,
    title="A finite loss, then only NaN",
    difficulty=3,
    importance=5,
    minutes=8,
    lines=7,
    task="Write `masked_rows(queries, keys, values, keep)`, an `attend` without the fault. It "
    "works in fp32, fp16 and bf16, with scores as large as the dtype holds, and returns the dtype "
    "that it gets. `keep` (batch, keys) is True for real tokens; where a sequence has none, the "
    "output and all gradients are 0. All else is as in `attend`, and the arguments stay "
    "unchanged. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "What is the softmax of a row in which every score is −inf? And what does the backward "
        "pass make of that?",
        "Replacing the NaN afterwards repairs only the output. Fill with a finite number that "
        "every dtype can hold, so that no NaN comes up at all.",
        "`scores.masked_fill(hidden, torch.finfo(scores.dtype).min)` before the softmax, "
        "`.masked_fill(hidden, 0.0)` after it, with `hidden = ~keep[:, None, :]`; the cause is "
        "'masked-row'.",
    ),
    why="A loss that leaves out padding is finite, but 0 times NaN is NaN: the gradients that go "
    "back through the row are all NaN.",
    alternative="`torch.nn.functional.scaled_dot_product_attention(queries, keys, values, "
    "attn_mask=keep[:, None, :])`, which gives zeros for such rows since torch 2.5.",
)


def right(queries: Tensor, keys: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    cause("masked-row")
    hidden = ~keep[:, None, :]
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
    return weights @ values


# The case in words, the dtype, what is kept of three sequences of five keys, how many queries there
# are, which scores
CASES = (
    ("in fp32, with padding in each sequence", torch.float32, ("11100", "00111", "01011"), 4, ""),
    (
        "in fp32, with a sequence of nothing but padding",
        torch.float32,
        ("11100", "00000", "11111"),
        4,
        "",
    ),
    (
        "in bf16, with a sequence of nothing but padding",
        torch.bfloat16,
        ("11110", "00000", "01101"),
        4,
        "",
    ),
    (
        "in fp16, with a sequence of nothing but padding",
        torch.float16,
        ("00000", "00000", "11010"),
        4,
        "",
    ),
    (
        "in fp16, with scores below −16 in a sequence of padding",
        torch.float16,
        ("11111", "00000", "01110"),
        4,
        "low",
    ),
    ("in fp16, with nothing but padding", torch.float16, ("00000", "00000", "00000"), 4, ""),
    ("in fp32, with as many queries as keys", torch.float32, ("11100", "00000", "01011"), 5, ""),
    (
        "in fp32, with scores from −20,000 to 20,000",
        torch.float32,
        ("11100", "00000", "01011"),
        4,
        "large",
    ),
    (
        "in fp16, with scores from −20,000 to 20,000",
        torch.float16,
        ("11100", "01011", "00000"),
        4,
        "large",
    ),
)


def draw_inputs(
    dtype: torch.dtype, keep: Tensor, count: int, scores: str, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw queries, keys, values and the gradient that arrives, (3, count or 5, 8) each.

    scores: "low" for scores between −62 and −22 in the second sequence; "large" for real tokens at
            −20,000 in the first and
    at 20,000 in the others, and for padding the other way round: within a few units in fp32, and
    all alike in fp16
    """
    queries, keys, values, arriving = (
        torch.randn(3, many, 8, generator=generator) for many in (count, 5, 5, count)
    )
    if scores == "low":
        queries[1] = -14.0 * (torch.rand(count, 8, generator=generator) / 2 + 0.75)
        keys[1] = torch.rand(5, 8, generator=generator) / 2 + 0.75
    if scores == "large":
        sign = torch.where(keep, 1.0, -1.0) * torch.tensor([[-1.0], [1.0], [1.0]])
        if dtype == torch.float16:
            queries, keys = torch.full((3, count, 8), 84.0), 84.0 * sign[:, :, None].expand(3, 5, 8)
        else:
            queries[:, :, 0], keys[:, :, 0] = 240.0, 240.0 * sign
    return queries, keys, values, arriving


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Attend and go back, in each dtype, to sequences with some padding and with nothing else,
    and to large scores.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, dtype, kept, count, scores in CASES:
        keep = torch.tensor([[place == "1" for place in row] for row in kept])
        drawn = draw_inputs(dtype, keep, count, scores, generator)
        leaves = [one.to(dtype).requires_grad_() for one in drawn[:3]]
        given = [one.detach().clone() for one in (*leaves, keep)]
        got, named = run_answer(answer, case, *leaves, keep)
        causes.append(named)
        output = read_tensor(got, case, shape=(3, count, 8))
        changed = [
            not torch.equal(one.detach(), old)
            for one, old in zip((*leaves, keep), given, strict=True)
        ]
        gradients: Any = [None] * 3
        if got.requires_grad:
            gradients = torch.autograd.grad(got, leaves, drawn[3].to(got.dtype), allow_unused=True)
        gradients = [
            torch.zeros_like(a) if b is None else b
            for a, b in zip(given[:3], gradients, strict=True)
        ]
        mended = bool(output.isfinite().all())
        finite = [bool(one.isfinite().all()) for one in gradients] if mended else []
        noisy = scores == "large" and dtype == torch.float16  # a sum of rounding errors, times 84
        yield Case(
            case,
            {
                "the output": output.clone(),
                "the gradient of the queries": gradients[0].isfinite() if noisy else gradients[0],
                "the gradient of the keys": gradients[1],
                "the gradient of the values": gradients[2],
                "the arguments that your function changes": [
                    name
                    for name, one in zip(
                        ("queries", "keys", "values", "keep"), changed, strict=True
                    )
                    if one
                ],
            },
            evidence={"finite": finite},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


HIDDEN, FILL = (
    "hidden = ~keep[:, None, :]",
    "scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)",
)
WEIGHTS, RETURN = (
    "weights = scores.softmax(dim=-1).masked_fill(hidden, 0.0)",
    "return weights @ values",
)
ADD_INF = "scores = scores + torch.where(hidden, -torch.inf, 0.0).to(scores.dtype)"
SOFTMAX = "weights = scores.softmax(dim=-1)"
EXP = "weights = scores.exp() * ~hidden"
EXP_FP32 = EXP.replace("scores", "scores.float()")
NORMALISED = "weights = (weights / (weights.sum(dim=-1, keepdim=True) + 1e-9)).to(scores.dtype)"
EMPTY = f"empty = ~keep.any(dim=-1)\nkeep[empty] = True\n{HIDDEN}"

mistakes = [
    Mistake(
        "unchanged",
        "where a sequence is nothing but padding, its rows of weights are NaN, as `softmax` of a "
        "row of −inf is: fill with a finite number, and set the weights of padding to 0 after the "
        "softmax",
        answer=patient,
        violates="an `attend` without the fault",
    ),
    Mistake(
        "fills with too high a number",
        "the number that stands for padding, −100 or −10,000 perhaps, is not low enough: where "
        "the scores of real tokens are lower, padding gets all the weight. Fill with "
        "`torch.finfo(scores.dtype).min`",
        edits={FILL: "scores = scores.masked_fill(hidden, -100.0)"},
        violates="with scores as large as the dtype holds",
    ),
    Mistake(
        "zeros for NaN in the weights",
        "the output is right now, and the gradients are not: they still go back through a softmax "
        "that gave NaN, and 0 times NaN is NaN. Fill with a finite number instead of −inf",
        edits={FILL: ADD_INF, WEIGHTS: f"{SOFTMAX}.nan_to_num(0.0)"},
        violates="and all gradients are 0",
    ),
    Mistake(
        "zeros for NaN in the output",
        "the output is right now, and the gradients are not: they go back through weights of NaN, "
        "and 0 times NaN is NaN. Fill with a finite number instead of −inf, so that the weights "
        "are never NaN",
        edits={
            FILL: ADD_INF,
            WEIGHTS: SOFTMAX,
            RETURN: "return (weights @ values).nan_to_num(0.0)",
        },
    ),
    Mistake(
        "the mean of the padding",
        "where a sequence is nothing but padding, all weights are equal, so the output is the "
        "mean of the padding: set the weights of padding to 0 after the softmax",
        edits={WEIGHTS: SOFTMAX},
        violates="the output and all gradients are 0",
    ),
    Mistake(
        "attends to the padding",
        "a sequence of nothing but padding attends to its padding now: no NaN, but its output has "
        "to be 0",
        edits={HIDDEN: "hidden = ~(keep | ~keep.any(dim=-1, keepdim=True))[:, None, :]"},
    ),
    Mistake(
        "fills with −1e9",
        "fp16 ends at −65504, so you cannot fill with a lower number, such as −1e9: take "
        "`torch.finfo(scores.dtype).min`",
        edits={FILL: "scores = scores.masked_fill(hidden, -1e9)"},
        violates="fp32, fp16 and bf16",
    ),
    Mistake(
        "adds −1e9",
        "in fp16 a number such as −1e9 becomes −inf, so the softmax of a row of padding is NaN "
        "there: fill with `torch.finfo(scores.dtype).min`",
        edits={FILL: "scores = scores + hidden.to(scores.dtype) * -1e9"},
    ),
    Mistake(
        "adds fp32's lowest number",
        "the lowest number of fp32 becomes −inf in fp16 and bf16, so the softmax of a row of "
        "padding is NaN there: fill with `torch.finfo(scores.dtype).min`",
        edits={FILL: "scores = scores + hidden.to(scores.dtype) * torch.finfo(torch.float32).min"},
    ),
    Mistake(
        "adds fp32's lowest number, and keeps the weights of padding",
        "a sequence of nothing but padding gives the mean of the padding in fp32, and NaN in 16 "
        "bits, where the lowest number of fp32 becomes −inf: fill with "
        "`torch.finfo(scores.dtype).min`, and set the weights of padding to 0 after the softmax",
        edits={
            FILL: "scores = scores + hidden.to(scores.dtype) * torch.finfo(torch.float32).min",
            WEIGHTS: SOFTMAX,
        },
    ),
    Mistake(
        "adds the lowest number",
        "added to −65504, a score below −16 gives −inf in fp16, and a row of −inf has a softmax "
        "of NaN: put the lowest number in place of the score, by `masked_fill`",
        edits={FILL: "scores = scores + hidden.to(scores.dtype) * torch.finfo(scores.dtype).min"},
    ),
    Mistake(
        "masks only after the softmax",
        "padding takes part in the softmax, so the weights of the real tokens add up to less than "
        "1: mask the scores as well",
        edits={FILL: "pass"},
        violates="All else is as in `attend`",
    ),
    Mistake(
        "an eps of 1e-9",
        "1e-9 is 0 in fp16, so a sequence of padding still gives 0 / 0 there: fill the scores, "
        "and let `softmax` divide",
        edits={
            FILL: "pass",
            WEIGHTS: f"{EXP}\nweights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-9)",
        },
    ),
    Mistake(
        "a sum of 0",
        "where a sequence is nothing but padding, the weights are divided by a sum of 0, which "
        "gives NaN, and `exp` of a large score is inf: fill the scores with a finite number, and "
        "let `softmax` divide",
        edits={
            FILL: ADD_INF,
            WEIGHTS: "weights = scores.exp()\nweights = weights / weights.sum(-1, keepdim=True)",
        },
    ),
    Mistake(
        "exp of the scores",
        "`exp` of a large score is inf, and of a very low one 0, even in fp32. `softmax` "
        "subtracts the largest score first: fill the scores, and leave the rest to it",
        edits={FILL: "pass", WEIGHTS: f"{EXP_FP32}\n{NORMALISED}"},
    ),
    Mistake(
        "the wrong way round",
        "the real tokens are masked, and the padding is not: `keep` is True for what stays",
        edits={HIDDEN: HIDDEN.replace("~", "")},
        violates="`keep` (batch, keys) is True for real tokens",
    ),
    Mistake(
        "writes into the mask",
        "your function writes into `keep`, which the caller still needs: make a new mask, `keep | "
        "empty[:, None]`",
        edits={
            HIDDEN: EMPTY,
            RETURN: "return (weights @ values).masked_fill(empty[:, None, None], 0.0)",
        },
        violates="the arguments stay unchanged",
    ),
    Mistake(
        "fp32 comes back",
        "the values are right, but fp32 comes back: end with `.to(queries.dtype)`",
        edits={RETURN: "return weights.float() @ values.float()"},
        violates="returns the dtype that it gets",
    ),
]

masked_rows = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=2e-2,
    messages=describe_cause(
        "In the patient, one sequence is nothing but padding, and the softmax of a row of −inf is "
        "NaN."
    ),
)
