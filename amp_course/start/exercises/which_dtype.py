"""The exercise of the start page, which shows how exercises work."""

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from amp_course.checking import Card, Case, Exercise, Mistake, short

card = Card(
    chapter="start",
    name="which_dtype",
    number=1,
    title="Half plus single",
    difficulty=1,
    importance=3,
    minutes=1,
    lines=1,
    takes="value",
    task="A float16 tensor is added to a float32 tensor. Which torch dtype does the sum have? Put "
    "it in place of the three dots in `which_dtype = ...`.",
    hints=(
        "The sum must be able to hold either number. Which of the two dtypes can?",
        "Try it in another cell: `(torch.ones(1).half() + torch.ones(1)).dtype`.",
    ),
    why="Dtypes meet in every line of a model, and autocast (chapter 04) decides by rules like "
    "this one.",
    alternative="`torch.result_type(a, b)` and `torch.promote_types(torch.float16, "
    "torch.float32)` give it without adding.",
)

right = torch.float32
KINDS: dict[Any, str] = {
    str: "a string",
    torch.Tensor: "a tensor",
    (tuple, list, set): "a container",
    (type, np.dtype): "a type of another kind",
}


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Name the kind of dtype, or of object, that the answer is."""
    if not isinstance(answer, torch.dtype):
        kinds = (name for kind, name in KINDS.items() if isinstance(answer, kind))
        kind = next(kinds, "something else")
    elif answer.is_floating_point:
        kind = "a narrower float" if answer.itemsize == 1 else str(answer)
    else:
        kind = "not floating-point"
    it = short(re.sub(" at 0x[0-9a-f]+", "", repr(answer)), 60)
    yield Case("", {"kind": kind}, {"it": it})


mistakes = [
    Mistake(
        "the narrower wins",
        "torch promotes to the dtype that holds both, not to the narrower one. A single fp32 "
        "tensor makes the whole sum fp32, which is how a model quietly loses its half precision",
        answer=torch.float16,
        violates="Which torch dtype does the sum have",
    ),
    Mistake(
        "wider than both",
        "torch promotes to the wider of the two and no further, and neither of them is float64",
        answer=torch.float64,
    ),
    Mistake(
        "the other 16 bits",
        "bfloat16 has fewer significand bits than either of the two, so it holds neither",
        answer=torch.bfloat16,
    ),
    Mistake(
        "narrower than both",
        "`{it}` is narrower than both. torch promotes to the dtype that holds both",
        answer=torch.float8_e4m3fn,
    ),
    Mistake(
        "not floating-point",
        "`{it}` is not a real floating-point dtype. Both tensors have one, and so does their sum",
        answer=torch.int32,
    ),
    Mistake(
        "a string",
        "`{it}` is a string. Dtypes are objects, such as `torch.float64`, without quotes",
        answer="torch.float32",
        violates="torch dtype",
    ),
    Mistake(
        "the sum itself",
        "that is a tensor, not a dtype. Give the `.dtype` of the sum",
        answer=torch.ones(2),
    ),
    Mistake(
        "a container",
        "`{it}` is a tuple, a list or a set. Give the dtype alone, with no brackets and no comma",
        answer=(torch.float32,),
    ),
    Mistake(
        "a type of another kind",
        "`{it}` is a type, but not one of torch's dtypes. These are objects such as "
        "`torch.float64`",
        answer=float,
    ),
]

which_dtype = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={"kind": "`{it}` is not a torch dtype, such as `torch.float64`"},
)
