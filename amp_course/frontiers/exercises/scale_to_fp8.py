"""Exercise 1 of chapter 12: one scale for a whole tensor."""

import math
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
    call_answer,
    families,
    read_number,
    read_pair,
    read_tensor,
)

card = Card(
    chapter="frontiers",
    name="scale_to_fp8",
    number=1,
    title="One scale for a whole tensor",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=5,
    task="Write `scale_to_fp8(x)`: quantise a float32 or bf16 tensor to E4M3 with one scale for "
    "all of it. Return `(q, scale)`, with q in `torch.float8_e4m3fn`, so that `q.float() * scale` "
    "is close to x. The largest magnitude in q is 448. The scale is a number in float32 "
    "precision; for a tensor of zeros it may be any positive number. Magnitudes are 0, or go from "
    "1e-30 to 1e30. x stays unchanged.",
    hints=(
        "Which number of x has to become 448? By what do you multiply q to get x back?",
        "`amax = x.abs().max()`; q is x divided by `amax / 448`. In which dtype do you "
        "compute that if x is bf16? What if amax is 0?",
        "`amax = x.abs().max().float()`, `scale = torch.where(amax > 0, amax / 448, 1.0)`, then "
        "`(x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)`.",
    ),
    why="This is current scaling. `scaled_mm` multiplies two such tensors, and multiplies the "
    "result by both scales.",
    alternative="multiply by `448 / amax` and return `amax / 448`: with 1 for an amax of 0, both "
    "stay finite.",
)


def right(x: Any) -> Any:
    amax = x.abs().max().float()
    scale = torch.where(amax > 0, amax / 448, 1.0)
    scaled = x.float() / scale
    q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
    return q, scale


CASES = {  # the largest magnitude with its sign, the shape
    "for numbers up to 3": (3.0, (4, 6)),
    "where the largest magnitude is that of −3": (-3.0, (4, 6)),
    "for a bf16 tensor": (3.140625, (3, 5)),
    "for numbers up to 700": (700.0, (24,)),
    "for numbers up to 1e-20": (1e-20, (2, 3, 4)),
    "for numbers up to 1e-29": (-1e-29, (4, 6)),
    "for numbers up to 1e30": (1e30, (4, 6)),
    "for a tensor of shape ()": (5.0, ()),  # positive: spellings of `x.max()` agree
    "for a tensor of zeros": (0.0, (2, 3)),
}


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Tensors of many magnitudes, whose numbers meet no tie however the division is written."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, (amax, shape) in CASES.items():
        x = make_tensor(amax, shape, generator)
        x = x.bfloat16() if "bf16" in case else x
        before = x.clone()
        first, second = read_pair(call_answer(answer, case, x), case, "the pair (q, scale)")
        q = read_tensor(first, case, "a tensor, as the first of the pair", shape)
        scale = read_number(second, case, "the scale that you return is")
        values = q.double()
        outputs: dict[str, Any] = {"the dtype of q": q.dtype, "q": values, "the scale": scale}
        if not amax:
            outputs["q"] = values + 0.0  # 0.0 for -0.0
            outputs["the scale"] = "positive and finite" if 0 < scale < torch.inf else scale
        outputs["x"] = "unchanged" if torch.equal(x, before) else "changed"
        evidence = {} if q.dtype == torch.float8_e4m3fn else {"q": values}
        yield Case(case, outputs, evidence=evidence)


def make_tensor(amax: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return numbers that are within 0.5 % of numbers of E4M3 once `amax` becomes 448."""
    positive = torch.arange(1, 126, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    places = torch.randint(0, len(positive), (math.prod(shape),), generator=generator)
    drawn = positive[places] * (1 + 0.01 * (torch.rand(places.shape, generator=generator) - 0.5))
    drawn *= torch.randint(0, 2, drawn.shape, generator=generator) * 2.0 - 1
    drawn[:3] = torch.tensor([448.0, 299.3, -0.0078])[: len(drawn)]  # both signs, and a subnormal
    return (drawn / 448 * amax).view(shape).float()


AMAX = "amax = x.abs().max().float()"
SCALE = "scale = torch.where(amax > 0, amax / 448, 1.0)"
SCALED = "scaled = x.float() / scale"
Q = "q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)"
RETURN = "return q, scale"
ROUNDED = (
    "the scale of a bf16 tensor is computed in bf16, which is off by up to 0.4 %. Convert "
    "with `.float()` first"
)
IN_BF16 = {AMAX: "amax = x.abs().max()", SCALED: "scaled = x / scale"}


def scale_of(quotient: str) -> dict[str, str]:
    return {SCALE: SCALE.replace("amax / 448", quotient)}


mistakes = [
    Mistake(
        "scale from the mean",
        "the scale comes from the mean magnitude, so larger numbers saturate. Take the largest "
        "magnitude",
        edits={AMAX: "amax = x.float().abs().mean()"},
    ),
    Mistake(
        *families.LARGEST_NOT_MAGNITUDE,
        edits={AMAX: "amax = x.max().float()"},
    ),
    Mistake(
        *families.INVERTS_THE_SCALE,
        edits={RETURN: "return q, 1 / scale"},
        violates="so that `q.float() * scale` is close to x",
    ),
    Mistake(
        "multiplies by the scale",
        "you multiply x by `amax / 448`. Divide by it, so that amax becomes 448",
        edits={SCALED: "scaled = x.float() * scale"},
    ),
    Mistake(
        "returns the numbers that come back",
        "you return `q.float() * scale`, which is what q stands for. Return q itself",
        edits={RETURN: "return q.float() * scale, scale"},
    ),
    Mistake(
        *families.KEEPS_FLOAT32,
        edits={RETURN: "return q.float(), scale"},
        violates="with q in `torch.float8_e4m3fn`",
    ),
    Mistake(
        "E5M2",
        "this is E5M2, the format for gradients. E4M3 is `torch.float8_e4m3fn`",
        edits={Q: Q.replace("e4m3fn", "e5m2")},
    ),
    Mistake(
        "E5M2's largest number",
        "57344 is the largest number of E5M2. E4M3 ends at 448, so most of q saturates",
        edits=scale_of("amax / 57344"),
    ),
    Mistake(
        "480",
        "480 would be the next number of E4M3, but its bit pattern means NaN. The largest number "
        "is 448",
        edits=scale_of("amax / 480"),
    ),
    Mistake(
        "fp16's largest number",
        "65504 is the largest number of fp16. E4M3 ends at 448, so most of q saturates",
        edits=scale_of("amax / 65504"),
    ),
    Mistake(
        "int8's largest number",
        "127 is the largest number of int8. E4M3 goes up to 448, and its small numbers need that "
        "range",
        edits=scale_of("amax / 127"),
        violates="The largest magnitude in q is 448",
    ),
    Mistake(
        "saturates the amax",
        "the scale is rounded down to a power of two, so amax lies past 448 and saturates. Divide "
        "by `amax / 448`",
        edits=scale_of("2 ** torch.floor(torch.log2(amax / 448))"),
    ),
    Mistake(
        "a power of two, rounded up",
        "the scale is rounded up to a power of two. Nothing saturates, but the largest magnitude "
        "has to be 448. Divide by `amax / 448`",
        edits=scale_of("2 ** torch.ceil(torch.log2(amax / 448))"),
    ),
    Mistake(
        "no scale",
        "the scale is always 1, so numbers past 448 saturate, and those below 2^-10 become 0",
        edits={SCALE: "scale = torch.ones(())"},
    ),
    Mistake(
        "zeros give NaN",
        "for a tensor of zeros the scale is 0, and 0 / 0 is NaN. Use another scale there",
        edits={SCALE: "scale = amax / 448"},
        violates="for a tensor of zeros",
    ),
    Mistake(
        "a floor of 1e-12",
        "a floor for amax, such as 1e-12, or such a number added to it, is too much. A tensor of "
        "smaller numbers, as gradients can be, does not reach 448 and may become 0. Use another "
        "scale only where amax is 0",
        edits={SCALE: "scale = amax.clamp(min=1e-12) / 448"},
        violates="from 1e-30 to 1e30",
    ),
    Mistake(
        "one scale per row",
        "you compute a scale for each row. That is often better, but the task asks for one: "
        "`x.abs().max()`",
        edits={AMAX: "amax = x.abs().amax(dim=-1, keepdim=True).float()"},
        violates="one scale for all of it",
    ),
    Mistake(
        "in the dtype of x",
        ROUNDED,
        edits=IN_BF16 | {SCALE: SCALE.replace("1.0", "torch.ones_like(amax)")},
        violates="in float32 precision",
    ),
    Mistake(
        "in the dtype of x, and zeros give NaN",
        f"{ROUNDED}. And for a tensor of zeros the scale is 0, and 0 / 0 is NaN, "
        "so use another scale there",
        edits=IN_BF16 | {SCALE: "scale = amax / 448"},
    ),
    Mistake(
        "rounds to integers",
        "you round to integers first, as for int8. The cast to float8 rounds already, and keeps "
        "small numbers that `round()` makes 0",
        edits={Q: Q.replace("scaled", "scaled.round()")},
    ),
    Mistake(
        *families.DIVIDES_IN_PLACE,
        edits={SCALED: "scaled = x.div_(scale)"},
        violates="x stays unchanged",
    ),
]

scale_to_fp8 = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-6,
    messages={"x": "{case}, your function changes x. Work on a copy"},
)
