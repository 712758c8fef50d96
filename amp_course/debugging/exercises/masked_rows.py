"""Exercise 5 of chapter 11: a model that returns NaN after a batch whose loss is finite."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.masked_rows import attend as faulty
from amp_course.debugging.clinic.trials import Runner, describe_cause

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
    "unchanged. Name the fault, and the op that `first_nonfinite` names, in its first "
    'line, with `cause("…", "…")`.',
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
    cause("masked-row", "_softmax")
    hidden = ~keep[:, None, :]
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
    return weights @ values


FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
CASES = (  # the dtype, what is kept of three sequences of five keys, which scores
    ("in fp32, with padding in each sequence", FP32, "11100 00111 01011", ""),
    ("in fp32, with a sequence of nothing but padding", FP32, "11100 00000 11111", ""),
    ("in bf16, with a sequence of nothing but padding", BF16, "11110 00000 01101", ""),
    ("in fp16, with a sequence of nothing but padding", FP16, "00000 00000 11010", ""),
    ("in fp16, with scores below −16 in a sequence of padding", FP16, "11111 00000 01110", "low"),
    ("in fp16, with nothing but padding", FP16, "00000 00000 00000", ""),
    ("in fp32, with as many queries as keys", FP32, "11100 00000 01011", "square"),
    ("in fp32, with scores from −20,000 to 20,000", FP32, "11100 00000 01011", "large"),
    ("in fp16, with scores from −20,000 to 20,000", FP16, "11100 01011 00000", "large"),
)


def draw_inputs(
    dtype: torch.dtype, keep: Tensor, scores: str, generator: torch.Generator
) -> tuple[list[Tensor], Tensor]:
    """Draw queries, keys and values, (3, 4 or 5, 8) each, and the gradient that arrives.

    scores: "low" for scores from −62 to −22 in the second sequence; "large" for −20,000 for the
            first sequence's real tokens, 20,000 for the others', and the opposite for padding
    """
    count = 5 if scores == "square" else 4
    queries, keys, values, arriving = (
        torch.randn(3, many, 8, generator=generator) for many in (count, 5, 5, count)
    )
    if scores == "low":
        queries[1] = -14.0 * (torch.rand(count, 8, generator=generator) / 2 + 0.75)
        keys[1] = torch.rand(5, 8, generator=generator) / 2 + 0.75
    if scores == "large":
        sign = torch.where(keep, 1.0, -1.0) * torch.tensor([[-1.0], [1.0], [1.0]])
        if dtype == FP16:  # all alike
            queries, keys = torch.full((3, count, 8), 84.0), 84.0 * sign[:, :, None].expand(3, 5, 8)
        else:
            queries[:, :, 0], keys[:, :, 0] = 240.0, 240.0 * sign
    return [one.to(dtype).requires_grad_() for one in (queries, keys, values)], arriving


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Attend and go back, in each dtype, to sequences with some padding and with nothing else,
    and with large scores.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, dtype, kept, scores in CASES:
        keep = torch.tensor([[place == "1" for place in row] for row in kept.split()])
        leaves, arriving = draw_inputs(dtype, keep, scores, generator)
        arguments = dict(zip(("queries", "keys", "values", "keep"), (*leaves, keep), strict=True))
        before = {name: one.detach().clone() for name, one in arguments.items()}
        got = run(case, *arguments.values())
        output = read_tensor(got, case, shape=arriving.shape)
        gradients = [torch.zeros_like(one) for one in leaves]
        if got.requires_grad:
            gradients = list(
                torch.autograd.grad(
                    got, leaves, arriving.to(got.dtype), allow_unused=True, materialize_grads=True
                )
            )
        finite = [bool(one.isfinite().all()) for one in (output, *gradients)]
        if scores == "large" and dtype == FP16:  # a sum of rounding errors, times 84
            gradients[0] = gradients[0].isfinite()
        yield Case(
            case,
            {
                "the output": output.clone(),
                "the gradient of the queries": gradients[0],
                "the gradient of the keys": gradients[1],
                "the gradient of the values": gradients[2],
                "the arguments that your function changes": [
                    name
                    for name, one in arguments.items()
                    if not torch.equal(one.detach(), before[name])
                ],
            },
            evidence={"finite": finite if finite[0] else []},
        )
    yield run.last_case(with_op=True)


HIDDEN, FILL, WEIGHTS, RETURN = (
    "hidden = ~keep[:, None, :]",
    "scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)",
    "weights = scores.softmax(dim=-1).masked_fill(hidden, 0.0)",
    "return weights @ values",
)
ADD_INF = "scores = scores + torch.where(hidden, -torch.inf, 0.0).to(scores.dtype)"
ADD = "scores = scores + hidden.to(scores.dtype) * "
ADD_FP32S_LOWEST = f"{ADD}torch.finfo(torch.float32).min"
SOFTMAX = "weights = scores.softmax(dim=-1)"
NORMALIZED = "weights / (weights.sum(dim=-1, keepdim=True) + 1e-9)"
NO_EMPTY_ROWS = f"{SOFTMAX}.masked_fill(~keep.any(dim=-1)[:, None, None], 0.0)"
OPENED = f"empty = ~keep.any(dim=-1)\nkeep[empty] = True\n{HIDDEN}"


def fill_with(number: str) -> str:
    """Return the line that fills the scores of padding with a number."""
    return f"scores = scores.masked_fill(hidden, {number})"


mistakes = [
    Mistake(
        "unchanged",
        "the softmax of a row of −inf is NaN. Fill with a finite number, and set the weights of "
        "padding to 0 after the softmax",
        answer=faulty,
        violates="an `attend` without the fault",
    ),
    *(
        Mistake(
            f"fills with too high a number{how}",
            "some scores of real tokens are below the number that stands for padding. Fill with "
            "`torch.finfo(scores.dtype).min`",
            edits={FILL: fill_with("-100.0"), WEIGHTS: weights},
            violates="with scores as large as the dtype holds",
        )
        for how, weights in (("", WEIGHTS), (", and attends to it", NO_EMPTY_ROWS))
    ),
    Mistake(
        "fills with too high a number, and keeps the weights of padding",
        "nothing but padding gives its mean, and some scores of real tokens are below those of "
        "padding. Fill with `torch.finfo(scores.dtype).min`, and set the weights of padding to 0",
        edits={FILL: fill_with("-1e4"), WEIGHTS: SOFTMAX},
    ),
    Mistake(
        "zeros for NaN in the weights",
        "the gradients go back through a softmax that gave NaN, and 0 times NaN is NaN. Fill with "
        "a finite number instead of −inf",
        edits={FILL: ADD_INF, WEIGHTS: f"{SOFTMAX}.nan_to_num(0.0)"},
        violates="and all gradients are 0",
    ),
    *(
        Mistake(
            f"zeros for NaN in the output{how}",
            "the gradients go back through weights of NaN, and 0 times NaN is NaN. Fill with a "
            "finite number instead of −inf",
            edits={FILL: fill, WEIGHTS: SOFTMAX, RETURN: f"return ({RETURN[7:]}).nan_to_num(0.0)"},
        )
        for how, fill in (("", ADD_INF), (", after `masked_fill`", fill_with("-torch.inf")))
    ),
    Mistake(
        "the mean of the padding",
        "for nothing but padding, the output is the mean of the padding. Set the weights of "
        "padding to 0 after the softmax",
        edits={WEIGHTS: SOFTMAX},
        violates="the output and all gradients are 0",
    ),
    *(
        Mistake(
            f"attends to {what}",
            "a sequence of nothing but padding attends to it. Its output has to be 0",
            edits={HIDDEN: f"empty = ~keep.any(dim=-1, keepdim=True)\n{opened}[:, None, :]"},
        )
        for what, opened in (
            ("the padding", "hidden = ~(keep | empty)"),
            ("its first key", "hidden = ~torch.cat([keep[:, :1] | empty, keep[:, 1:]], 1)"),
        )
    ),
    Mistake(
        "fills with −1e9, and keeps the weights of padding",
        "fp16 cannot hold −1e9, and for nothing but padding the output is its mean. Fill with "
        "`torch.finfo(scores.dtype).min`, and set the weights of padding to 0 after the softmax",
        edits={FILL: fill_with("-1e9"), WEIGHTS: SOFTMAX},
    ),
    *(
        Mistake(
            f"fills with {what}",
            "a 16-bit dtype cannot hold so low a number. Use `torch.finfo(scores.dtype).min`",
            edits={FILL: fill_with(number)},
            violates="fp32, fp16 and bf16",
        )
        for what, number in (("−1e9", "-1e9"), ("fp32's lowest", "torch.finfo(torch.float32).min"))
    ),
    Mistake(
        "adds −1e9",
        "in fp16 a number such as −1e9 becomes −inf, and a row of −inf gives NaN. Fill with "
        "`torch.finfo(scores.dtype).min`",
        edits={FILL: f"{ADD}-1e9"},
    ),
    Mistake(
        "adds fp32's lowest number",
        "the lowest number of fp32 becomes −inf in fp16 and bf16, and a row of −inf gives NaN. "
        "Fill with `torch.finfo(scores.dtype).min`",
        edits={FILL: ADD_FP32S_LOWEST},
    ),
    Mistake(
        "adds fp32's lowest number, and keeps the weights of padding",
        "for nothing but padding, fp32 gives the mean of the padding, and 16 bits give NaN, where "
        "the lowest number of fp32 is −inf. Fill with `torch.finfo(scores.dtype).min`, and set "
        "the weights of padding to 0",
        edits={FILL: ADD_FP32S_LOWEST, WEIGHTS: SOFTMAX},
    ),
    Mistake(
        "adds the lowest number",
        "in fp16, a score below −16 plus −65504 is −inf, and the softmax of a row of −inf is NaN. "
        "Replace the score by the lowest number, with `masked_fill`",
        edits={FILL: f"{ADD}torch.finfo(scores.dtype).min"},
    ),
    Mistake(
        "masks only after the softmax",
        "padding takes part in the softmax, so the real weights add up to less than 1. Mask the "
        "scores, too",
        edits={FILL: "pass"},
        violates="All else is as in `attend`",
    ),
    Mistake(
        "an eps of 1e-9",
        "1e-9 is 0 in fp16, so padding still gives 0 / 0. Fill the scores, and let `softmax` "
        "divide",
        edits={FILL: "pass", WEIGHTS: f"weights = scores.exp() * ~hidden\nweights = {NORMALIZED}"},
    ),
    Mistake(
        "a sum of 0",
        "padding gives a sum of 0 to divide by. Fill the scores with a finite number, and let "
        "`softmax` divide",
        edits={
            FILL: ADD_INF,
            WEIGHTS: "weights = scores.exp()\nweights = weights / weights.sum(-1, keepdim=True)",
        },
    ),
    Mistake(
        "exp of the scores",
        "`exp` of a large score is inf, and of a very low one 0. Use `softmax`",
        edits={
            FILL: "pass",
            WEIGHTS: f"weights = scores.float().exp() * ~hidden\nweights = "
            f"({NORMALIZED}).to(scores.dtype)",
        },
    ),
    Mistake(
        "the wrong way round",
        "the real tokens are masked, not the padding. `keep` is True for what stays",
        edits={HIDDEN: HIDDEN.replace("~", "")},
        violates="`keep` (batch, keys) is True for real tokens",
    ),
    Mistake(
        "writes into the mask",
        "your function writes into `keep`. Make a new mask, `keep | empty[:, None]`",
        edits={
            HIDDEN: OPENED,
            RETURN: "return (weights @ values).masked_fill(empty[:, None, None], 0.0)",
        },
        violates="the arguments stay unchanged",
    ),
    Mistake(
        "float32 comes back",
        "the output is in fp32. End with `.to(queries.dtype)`",
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
        "In the faulty script, one sequence is nothing but padding, and the softmax of a row of "
        "−inf is NaN."
    ),
)
