"""Exercise 3 of chapter 12: one block of MXFP4."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.bits import FP4_E2M1, round_to
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
    name="mx_block",
    number=3,
    title="A block of 32 numbers in MXFP4",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=6,
    task="Write `mx_block(block)` for 32 float32 numbers: return `(elements, scale)`, so that "
    "`elements * scale` is close to block. The scale is 2 to the power of floor(log2 amax) − 2, "
    "exactly, also where amax is just below a power of two; for a block of zeros it may be any "
    "positive number. The elements are numbers of E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their "
    "negatives) in float32, rounded to nearest, ties to even (to the neighbour whose last bit is "
    "0: 2.5 to 2, 3.5 to 4, 5 to 4); what lies past ±6 becomes ±6. Magnitudes are 0, or go from "
    "1e-30 to 1e30. block stays unchanged.",
    hints=(
        "amax / scale lies between 4 and 8. What becomes of 7.9? Is the scale that the rule "
        "gives too small?",
        "`torch.frexp(amax).exponent - 1` is floor(log2 amax), exactly: a logarithm in float32 is "
        "rounded, and may reach the next whole number. `round_to(x, FP4_E2M1)`, from "
        "`amp_course.bits`, rounds as required.",
        "`exponent = torch.frexp(amax).exponent - 3`, `scale = torch.ldexp(torch.ones(()), "
        "exponent)`, and `round_to((block / scale).clamp(-6, 6), FP4_E2M1)`. For amax = 0, "
        "`frexp` gives 0, so nothing is divided by 0.",
    ),
    why="This is the rule of the OCP standard. It needs no division, since a power of two only "
    "shifts exponents, but it lets the largest number of a block saturate, by up to a quarter.",
    alternative="rounding by a table: `torch.bucketize` with the middles 0.25, 0.75, 1.25, 1.75, "
    "2.5, 3.5 and 5, if you treat ties with care.",
)


def right(block: Any) -> Any:
    amax = block.abs().max()
    exponent = torch.frexp(amax).exponent - 1  # floor(log2 amax); 0 for amax = 0
    scale = torch.ldexp(torch.ones(()), exponent - 2)
    scaled = block / scale
    elements = round_to(scaled.clamp(-6, 6), FP4_E2M1)
    return elements, scale


NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
NEAR_TIES = (*(tie + off for tie in TIES[:-1] for off in (-0.002, 0.002)), 5.002)
BELOW_8 = 8 * (1 - 2.0**-24)  # in float32
CASES: dict[str, tuple[tuple[float, ...], float]] = {  # numbers, and what to multiply them by
    "for numbers of E2M1, up to 6": (NUMBERS, 1.0),
    "for numbers of E2M1, up to 1.5": (NUMBERS, 0.25),
    "for numbers close to ties": ((*NEAR_TIES, 6.0), 1.0),
    "for ties": ((*TIES, 6.0), 1.0),
    "where amax is 2^4": ((*NUMBERS[:-1], 0.7, 3.2), 4.0),
    "where amax is 7.5": ((*NUMBERS, 7.5, 6.9, 6.2, 0.3), 1.0),
    "where the largest magnitude is that of −5.5": ((-5.5, 1.1, 0.6, 2.2), 1.0),
    "where amax is just below 2^40": ((*NUMBERS, BELOW_8, 5.2), 2.0**37),
    "for numbers up to 4e-29": ((*NUMBERS, 0.6), 2.0**-97),
    "for numbers up to 1e30": ((*NUMBERS, 0.6), 2.0**97),
    "for one number that is not 0": ((4.4,), 0.5),
    "for a block of zeros": ((0.0,), 1.0),
}


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Fixed blocks, shuffled and with both signs, then a drawn one."""
    drawn = *(draw.uniform(0, 7.9) for _ in range(20)), draw.uniform(4.1, 7.9)
    blocks = {**CASES, "for a drawn block": (drawn, 2.0 ** draw.randint(-20, 20))}
    for case, (numbers, unit) in blocks.items():
        signed = [*numbers, *(-one for one in numbers[1:])][:32]  # the first keeps its sign
        signed += [0.0] * (32 - len(signed))
        draw.shuffle(signed)
        block = (torch.tensor(signed, dtype=torch.float64) * unit).float()
        before = block.clone()
        got = call_answer(answer, case, block)
        first, second = read_pair(got, case, "the pair (elements, scale)")
        elements = read_tensor(first, case, "a tensor of 32 elements", (32,))
        number = read_number(second, case, "the scale that you return is")
        scale = torch.tensor(number).item()  # in float32, as `amax / 6` may be a float
        outputs: dict[str, Any] = {"the scale": scale} if any(numbers) else {}
        outputs["the elements"] = elements.double() + 0.0  # 0.0 for -0.0
        if not any(numbers):
            outputs["the scale"] = "positive and finite" if 0 < scale < torch.inf else scale
        outputs["the dtype of the elements"] = elements.dtype
        outputs["block"] = "unchanged" if torch.equal(block, before) else "changed"
        yield Case(case, outputs, evidence={"NaN": bool(elements.isnan().any())})


def on_grid(scaled: Tensor, to_integer: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    """Round as E2M1 does, but by any rule and with no largest number: 7.5 → 8."""
    step = torch.ldexp(torch.ones_like(scaled), torch.frexp(scaled).exponent.clamp(min=1) - 2)
    return to_integer(scaled.abs() / step) * step * scaled.sign()


AMAX = "amax = block.abs().max()"
SCALE = "scale = torch.ldexp(torch.ones(()), exponent - 2)"
SCALED = "scaled = block / scale"
ELEMENTS = "elements = round_to(scaled.clamp(-6, 6), FP4_E2M1)"
RETURN = "return elements, scale"
LOG2 = "scale = torch.where(amax > 0, 2 ** torch.{}(torch.log2(amax.double(){})).float(), 1.0)"
LOG2_OF_0 = "scale = 2 ** torch.floor(torch.log2(amax.double())).float() / 4"

mistakes = [
    Mistake(
        "rounds up",
        "the logarithm of amax is rounded up, so the largest element is at most 4, and 6 is never "
        "used. Round it down, with floor",
        edits={SCALE: f"{LOG2.format('ceil', '')} / 4"},
    ),
    Mistake(
        "rounds up past the range",
        "the factor 6 / amax is rounded up to a power of two (or amax / 6 down), so elements reach "
        "12, past the range, and saturate. The rule is floor(log2 amax) − 2",
        edits={SCALE: LOG2.format("floor", " / 6")},
    ),
    Mistake(
        "lets nothing saturate",
        "amax / 6 is rounded up to a power of two, so that nothing saturates. That is a good "
        "rule, torchao's RCEIL, but this exercise follows the OCP standard",
        edits={SCALE: LOG2.format("ceil", " / 6")},
        violates="floor(log2 amax) − 2",
    ),
    Mistake(
        "rounds to nearest",
        "the logarithm of amax is rounded to nearest. Take its floor",
        edits={SCALE: f"{LOG2.format('round', '')} / 4"},
    ),
    Mistake(
        "forgets emax",
        "the largest exponent of an element, 2, is not subtracted, so no element exceeds 2, and 3, "
        "4 and 6 are never used",
        edits={SCALE: SCALE.replace(" - 2", "")},
    ),
    Mistake(
        "adds emax",
        "the largest exponent of an element, 2, is added. Subtract it",
        edits={SCALE: SCALE.replace(" - 2", " + 2")},
    ),
    Mistake(
        "subtracts the bias",
        "you subtract 1, which is the exponent bias of E2M1. Its largest exponent is 2: 6 = 1.5 · "
        "2^2",
        edits={SCALE: SCALE.replace(" - 2", " - 1")},
    ),
    Mistake(
        "no power of two",
        "`amax / 6` is not a power of two, and MXFP4 stores only an exponent for the scale",
        edits={SCALE: "scale = torch.where(amax > 0, amax / 6, 1.0)"},
        violates="The scale is 2 to the power of",
    ),
    Mistake(
        "a logarithm in float32",
        "just below a power of two, the logarithm in float32 is rounded up to a whole number, so "
        "the scale is twice too large. Take the exponent from `torch.frexp`, or the logarithm in "
        "float64",
        edits={SCALE: f"{LOG2.replace('.double()', '').format('floor', '')} / 4"},
        violates="also where amax is just below a power of two",
    ),
    *(
        Mistake(
            f"zeros {effect}",
            "log2(0) is −inf, so the scale of a block of zeros is 0, and 0 / 0 is NaN. Use any "
            "other scale there",
            edits={SCALE: LOG2_OF_0, ELEMENTS: elements},
            violates="for a block of zeros",
        )
        for effect, elements in (
            ("raise", ELEMENTS),
            ("give NaN", "elements = on_grid(scaled).clamp(-6, 6)"),
        )
    ),
    Mistake(
        "a floor of 1e-12",
        "a floor of 1e-12 for amax is too high: smaller numbers become 0",
        edits={AMAX: f"{AMAX}.clamp(min=1e-12)"},
        violates="from 1e-30 to 1e30",
    ),
    Mistake(
        *families.LARGEST_NOT_MAGNITUDE,
        edits={AMAX: "amax = block.max()"},
    ),
    Mistake(
        "not saturated",
        "an element is 8, which E2M1 does not have. What lies past 6 becomes 6",
        edits={ELEMENTS: "elements = on_grid(scaled)"},
        violates="what lies past ±6 becomes ±6",
    ),
    Mistake(
        "ties away from 0",
        "ties go away from 0. They have to go to the neighbour whose last bit is 0, which is 0, 1, "
        "2 or 4",
        edits={ELEMENTS: "elements = on_grid(scaled, lambda x: torch.floor(x + 0.5)).clamp(-6, 6)"},
        violates="ties to even",
    ),
    Mistake(
        "ties towards 0",
        "ties go towards 0, as they do if you take the first of the nearest numbers in a table. "
        "They have to go to the neighbour whose last bit is 0, which is 0, 1, 2 or 4",
        edits={ELEMENTS: "elements = on_grid(scaled, lambda x: torch.ceil(x - 0.5)).clamp(-6, 6)"},
    ),
    Mistake(
        "cuts off",
        "elements are cut off towards 0. Round them to nearest",
        edits={ELEMENTS: "elements = on_grid(scaled, torch.floor).clamp(-6, 6)"},
        violates="rounded to nearest",
    ),
    Mistake(
        "integers",
        "elements are rounded to integers, but E2M1 has 0.5 and 1.5, and not 5",
        edits={ELEMENTS: "elements = scaled.round().clamp(-6, 6)"},
        violates="numbers of E2M1",
    ),
    Mistake(
        "no 0.5",
        "0.5 is missing. It is the subnormal number of E2M1",
        edits={ELEMENTS: f"{ELEMENTS}\nelements = elements * (elements.abs() >= 1)"},
    ),
    Mistake(
        "in 16 bits",
        "the elements come back in another dtype. Return float32",
        edits={RETURN: "return elements.half(), scale"},
        violates="in float32, rounded to nearest",
    ),
    Mistake(
        "returns what comes back",
        "you return `elements * scale`. The elements are what is stored, before the scale",
        edits={RETURN: "return elements * scale, scale"},
    ),
    Mistake(
        "returns the exponent",
        "you return the exponent of the scale. Return 2 to that power",
        edits={RETURN: "return elements, exponent - 2"},
    ),
    Mistake(
        "inverts the scale",
        "the elements are right, but the scale is inverted. Return the factor that elements are "
        "multiplied by to get block back",
        edits={RETURN: "return elements, 1 / scale"},
        violates="so that `elements * scale` is close to block",
    ),
    Mistake(
        *families.MULTIPLIES_BY_THE_SCALE,
        edits={SCALED: "scaled = block * scale"},
    ),
    Mistake(
        *families.DIVIDES_IN_PLACE,
        edits={SCALED: "scaled = block.div_(scale)"},
        violates="block stays unchanged",
    ),
]

mx_block = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={"block": "{case}, your function changes the block. Work on a copy"},
)
