"""Exercise 4 of chapter 03: ALiBi's bias, exact far out in a long context."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    call_answer,
    read_tensor,
    show_value,
)

card = Card(
    chapter="positions",
    name="exact_alibi",
    number=4,
    title="ALiBi for long contexts",
    difficulty=2,
    importance=3,
    minutes=8,
    lines=2,
    task="Write `exact_alibi(slopes, queries, keys)`: the bias −slope · (query − key), of shape "
    "(heads, queries, keys) and in float32, right to the last bit, for positions up to a million, "
    "for any slopes, in float32 or bf16, and under autocast too. Keys after their query are "
    "masked elsewhere, so your values there do not matter.",
    hints=(
        "Which step is exact in integers? Do it before anything becomes a float.",
        "`queries[:, None] - keys[None, :]` is the distance, an integer. Only one product remains, "
        "and it has to be elementwise.",
        "`-slopes.float()[:, None, None] * distance`: float32 times an integer tensor is float32.",
    ),
    why="A bias grows with distance, so unlike cos and sin it cannot be cast last. In bf16, "
    "neighbours share it past 256 steps.",
    alternative="`torch.mul(-slopes.float().view(-1, 1, 1), (queries.view(-1, 1) - "
    "keys).float())`, as the distance is exact in float32 up to 2^24.",
)


def right(slopes: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    slopes = slopes.float()
    distance = queries[:, None] - keys[None, :]  # between integers: exact
    bias = -slopes[:, None, None] * distance
    return bias


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Near and far queries, keys at all distances, slopes of several kinds, with autocast or
    not.
    """
    positions = (  # queries, keys
        ([0, 1, 5, 9], [*range(12)]),
        # From 26 keys on, cdist rounds.
        ([40_000, 40_001, 39_990], [*range(39_970, 40_002), 0, 1, 33_000, 300, 39_700]),
        (
            [1_000_000, 999_999],
            [0, 1, 255, 257, 70_001, 499_999, 931_111, 999_001, 999_998, 999_999, 1_000_000],
        ),
        (
            [917_503],
            [65_519, 65_521, 131_071, 917_501, 917_502, 917_503, *draw.sample(range(900_000), 3)],
        ),
    )
    slopes = (
        torch.tensor([0.5, 0.25]),
        torch.tensor([0.3, 0.7, 0.011, draw.uniform(0.02, 1.2)]),
        torch.tensor([0.70703125, 0.0010986328125], dtype=torch.bfloat16),
    )
    for (queries, keys), some, autocast in itertools.product(positions, slopes, (False, True)):
        region = ", under bf16 autocast" if autocast else ""
        case = f"for slopes in {show_value(some.dtype)}{region}"
        given = some.clone(), torch.tensor(queries), torch.tensor(keys)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            raw = call_answer(answer, case, *given)
        got = read_tensor(raw, case, "the bias, a tensor", (len(some), len(queries), len(keys)))
        places = itertools.product(some.tolist(), queries, keys)
        bias = {
            f"for query {q:,}, key {k:,} and slope {slope:.4g}{region}": value + 0.0  # −0 is 0
            for (slope, q, k), value in zip(places, got.float().flatten().tolist(), strict=True)
            if k <= q
        }
        kept = given[0].equal(some) and [one.tolist() for one in given[1:]] == [queries, keys]
        outputs = {
            "the arguments": "as before" if kept else "changed",
            "the bias": Results(bias),
            "the dtype": Results({case: show_value(got.dtype)}, "the dtype of the bias"),
        }
        yield Case("", outputs, {"case": case})


START, RETURN = "slopes = slopes.float()", "return bias"
DISTANCE = "distance = queries[:, None] - keys[None, :]"
IDS = "distance = queries.{0}[:, None] - keys.{0}[None, :]"

mistakes = [
    *(
        Mistake(
            name,
            "the positions were rounded to 16 bits before they were subtracted, so neighbours "
            "became one. Subtract the integers",
            edits={START: f"dtype = slopes.dtype\n{START}", DISTANCE: IDS.format(cast)},
            violates="positions up to a million",
        )
        for name, cast in {
            "position ids in bf16": "bfloat16().float()",
            "casts position ids to fp16": "half().float()",
            "position ids as the slopes": "to(dtype)",
        }.items()
    ),
    Mistake(
        "position ids and product as the slopes",
        "positions and product are in the dtype of the slopes, and bf16 holds every integer only "
        "up to 256. Subtract the integers, and multiply by `slopes.float()`",
        edits={START: "pass", DISTANCE: IDS.format("to(slopes.dtype)")},
    ),
    *(
        Mistake(
            f"casts the distance to {name}",
            "the distance was rounded to bf16, which holds every integer only up to 256. Keep it "
            "an integer",
            edits={
                START: f"dtype = slopes.dtype\n{START}",
                DISTANCE: f"{DISTANCE}\ndistance = distance.to({dtype}).float()",
            },
        )
        for name, dtype in {"bf16": "torch.bfloat16", "the dtype of the slopes": "dtype"}.items()
    ),
    Mistake(
        "casts the bias to bf16",
        "the bias was rounded to bf16, and no cast restores the digits. It grows with distance, "
        "so keep it in float32",
        edits={RETURN: "return bias.bfloat16()"},
        violates="in float32",
    ),
    Mistake(
        "keeps the dtype of the slopes",
        "bf16 slopes make the product bf16. Start from `slopes.float()`; a `.float()` at the end "
        "comes too late",
        edits={START: "pass"},
        violates="in float32 or bf16",
    ),
    Mistake(
        "a matmul",
        "under autocast the product comes out in bf16, as a matmul does, and no cast restores the "
        "digits. Multiply elementwise",
        edits={
            "bias = -slopes[:, None, None] * distance": "bias = (-slopes[:, None] @ "
            "distance.float().view(1, -1)).view(-1, *distance.shape)"
        },
        violates="under autocast too",
    ),
    Mistake(
        "rounds the slopes to bf16",
        "the slopes were rounded to bf16, which costs up to one part in 512. Keep float32 slopes "
        "as they are",
        edits={START: "slopes = slopes.bfloat16().float()"},
        violates="any slopes",
    ),
    Mistake(
        "positive",
        "the bias is positive, which favours far keys. It is −slope · (query − key)",
        edits={RETURN: "return -bias"},
    ),
    Mistake(
        "slope · key",
        "you return slope · key. Softmax ignores the difference, but large numbers cost digits in "
        "later steps",
        edits={RETURN: "return (slopes[:, None, None] * keys).expand_as(bias)"},
        violates="(query − key)",
    ),
    Mistake(
        "two products",
        "two rounded products were subtracted. Subtract the integer positions first, then "
        "multiply once",
        edits={
            RETURN: "return slopes[:, None, None] * keys - slopes[:, None, None] * queries[:, None]"
        },
        violates="right to the last bit",
    ),
    Mistake(
        "positions counted from 0",
        "the positions that were passed in are not used, and keys may come from a cache. Use "
        "`queries` and `keys`",
        edits={
            DISTANCE: "distance = torch.arange(len(queries))[:, None] - "
            "torch.arange(len(keys))[None, :]"
        },
    ),
]

exact_alibi = Exercise(
    card,
    right,
    cases,
    mistakes,
    show=lambda value: f"{value:,.9g}" if isinstance(value, float) else value,
    messages={
        "the arguments": "{case}, your function changes the tensors that it is given, which the "
        "caller still needs"
    },
)
