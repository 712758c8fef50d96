"""Exercise 6 of chapter 02: round at random, to either neighbour with the right probability."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_tensor

card = Card(
    chapter="underflow",
    name="stochastic_rounding",
    number=6,
    title="Round at random, and be right on average",
    difficulty=4,
    importance=3,
    minutes=12,
    lines=4,
    task="Write `stochastic_rounding(x, spacing, generator)`: round each element to a multiple of "
    "its spacing, a power of two, up or down, so that the mean is x. The mean of 20,000 draws has "
    "to be within 6 standard errors. Draw from the generator: for each element independently of "
    "the others, and new numbers on every call.",
    hints=(
        "How often should a number go up that lies 0.3 of the way from its lower neighbour to the "
        "upper one?",
        "Count in spacings: `steps = x / spacing`. Add noise, uniform from 0 to 1, with a draw "
        "for each element. Which rounding do you need then?",
        "`torch.floor(x / spacing + torch.rand(x.shape, generator=generator)) * spacing`. Use "
        "`floor`, not `trunc`: they differ below zero.",
    ),
    why="With it, pure bf16 weights can learn without master copies: an update of a tenth of a "
    "spacing moves one weight in ten.",
    alternative="on bits: add a random 16-bit integer to the float32 pattern and clear its low 16 "
    "bits, which gives bf16. The sign is a separate bit there, so clearing rounds both signs "
    "alike.",
)


def right(x: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    steps = x / spacing
    below = torch.floor(steps)
    noise = torch.rand(x.shape, generator=generator)
    up = noise < steps - below
    rounded = below + up
    return rounded * spacing


DRAWS = 20_000
SAME = f"the same in all {DRAWS:,} draws"
# A number, in spacings: its spacing
NUMBERS = {
    2.3: 0.25,
    5.7: 1.0,
    0.11: 4.0,
    -2.3: 0.25,
    -5.7: 0.125,
    -0.11: 4.0,
    -7.5: 0.5,
    3.0037: 0.5,
    -1.0041: 2.0,
}
RARE = {-2.9998: 0.5, -4.9998: 0.25, 1.0002: 0.5, 5.0002: 2.0}
EXACT = {3.0: 1.0, 0.0: 4096.0, -2.0: 0.25}
FRACTIONS = (1, 200, 400, 499, 501, 600, 800, 999)
GRID = torch.tensor([k + f / 1000 for k in (-3, -2, 1, 2) for f in FRACTIONS])


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Round the same numbers 20,000 times in one call, then look at the draws in small calls.

    A right answer fails, and one whose probability is off by 0.04 passes, less than once in 100,000
    checks. Noise of 8 bits, as in bf16, never moves 3.0037 up if it is added, and moves −2.9998 up
    too often if it is compared.
    """

    def call(steps: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
        got = call_answer(answer, "", steps * spacing, spacing.clone(), generator)
        return read_tensor(got, shape=steps.shape).double() / spacing

    seed = draw.getrandbits(31)
    numbers = NUMBERS | RARE | EXACT
    size = torch.tensor([1.0, 2.0 ** draw.randint(-6, -1)])
    table = (size * torch.tensor([*numbers.items()])).unsqueeze(2).expand(-1, -1, DRAWS)
    rows = call(table[:, 0], table[:, 1], torch.Generator().manual_seed(seed))
    values, exact, shares = dict[str, str](), dict[str, str](), dict[str, str]()
    odd = seen = ""
    for row, number in zip(rows, numbers, strict=True):
        case, chance = f"for {number:g} spacings", number % 1
        share = (row > number).double().mean().item()
        if number not in RARE:
            want = f"{math.floor(number)} or {math.ceil(number)}" if chance else f"{number:g}"
            got = (values if chance else exact)[case] = _values(row, number)
            if got != want and not odd:
                odd = f"{case}, the result in spacings is {got}; only {want} is right"
                odd += f", the latter in {100 * chance:.3g} % of the draws" if got == SAME else ""
        if chance:
            shares[case] = _compare(share, chance)
            if shares[case] and not seen:
                seen = (
                    f"{case}, {100 * share:.4g} % of the draws go up instead of "
                    f"{100 * chance:.4g} %"
                )

    same = torch.full((2, 64), 2.5), torch.full((2, 64), 0.25)
    generator = torch.Generator().manual_seed(seed)
    first, second = call(*same, generator), call(*same, generator)
    again = call(*same, generator.manual_seed(seed))
    ups = torch.stack([(call(*same, generator) > 2.5).sum() for _ in range(600)]).double()
    # 1 on average; below 0.6 or above 1.4 less than once in 10⁸ checks
    spread = (ups - 64).square().mean().item() / 32
    outputs = {
        "the values": values,
        "the shares": shares,
        "the exact values": exact,
        "the second call": "the same" if torch.equal(first, second) else "different",
        "the same seed": "the same" if torch.equal(first, again) else "different",
        "two equal rows": "the same" if torch.equal(first[0], first[1]) else "different",
        "the spread": "too little" if spread < 0.6 else "too much" if spread > 1.4 else "",
    }
    # If nothing is random: which numbers go up, if these are the same in every call
    ways = {
        tuple((call(GRID, torch.ones_like(GRID), generator) > GRID).tolist())
        for _ in range(60 if set(values.values()) == {SAME} else 0)
    }
    far = bool(((rows - torch.tensor([*numbers])[:, None]).abs() > 2).any())
    evidence = {"way": ways if len(ways) == 1 else set(), "far": far}
    yield Case("", outputs, {"seen": seen, "odd": odd}, evidence)


def _values(row: Tensor, number: float) -> str:
    """Name the results for a number: "2 or 3". All beyond its neighbours count as one."""
    below, above = math.floor(number), math.ceil(number)
    if not bool(row.isfinite().all()):
        return "inf or NaN"
    if len(between := row[row != row.round()].unique()):
        often = "always" if bool((row == row[0]).all()) else "sometimes"
        many = len(between) > DRAWS / 20
        return "one of thousands of numbers" if many else f"{often} {between[0].item():.4g}"
    masks = {f"{below}": row == below, f"{above}": row == above}
    masks |= {f"below {below}": row < below, f"above {above}": row > above}
    # A few are ignored: floor(x + noise) in float32, which is right, moves an exact number once in
    # 10⁶ draws.
    found = [kind for kind, mask in masks.items() if int(mask.sum()) > 20]
    if below < above and found in ([f"{below}"], [f"{above}"]):
        return SAME
    beyond = [kind for kind in found if " " in kind]
    often = "" if not beyond else "always " if beyond == found else "sometimes "
    return often + " or ".join(beyond or found)


def _compare(share: float, chance: float) -> str:
    """Compare a share with the right probability: "" if it is within 6 standard errors."""
    for name, one in (("", chance), ("half", 0.5), ("the other neighbour's", 1 - chance)):
        if abs(share - one) <= 6 * math.sqrt(one * (1 - one) / DRAWS):
            return name
    return "too often" if share > chance else "too rarely"


BELOW = "below = torch.floor(steps)"
STEPS, NOISE = "steps = x / spacing", "noise = torch.rand(x.shape, generator=generator)"
UP, ROUNDED = "up = noise < steps - below", "rounded = below + up"
RETURN = "return rounded * spacing"
MULTIPLES = "the results are not multiples of the spacing: divide by it, round, multiply by it"
FLOOR = "Use `floor` for the lower neighbour, and `steps - floor(steps)` as the chance to go up"

mistakes = [
    Mistake(
        "rounds to nearest",
        "this rounds to nearest, the same way on every call, so less than half a spacing is "
        "always lost: round up or down at random",
        edits={ROUNDED: "rounded = torch.round(steps)"},
        violates="up or down",
    ),
    Mistake(
        "one draw for all",
        "equal numbers in a row all go the same way: draw for each element separately, with "
        "`torch.rand(x.shape, …)`",
        edits={NOISE: "noise = torch.rand((), generator=generator)"},
        violates="for each element independently",
    ),
    Mistake(
        *families.SAME_DRAWS,
        edits={NOISE: "noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))"},
        violates="new numbers on every call",
    ),
    Mistake(
        *families.DRAWS_FROM_ELSEWHERE,
        edits={NOISE: "noise = torch.rand(x.shape)"},
        violates="Draw from the generator",
    ),
    Mistake(
        "truncates negative numbers the wrong way",
        "negative numbers are rounded one spacing too close to zero: use `torch.floor`, not "
        "`.trunc()` or `.int()`",
        edits={ROUNDED: "rounded = torch.trunc(steps + noise)"},
        violates="so that the mean is x",
    ),
    Mistake(
        "a negative fraction",
        "a negative number goes the same way in every draw, as its fraction is negative after "
        f"`trunc` or `frac`. {FLOOR}",
        edits={BELOW: "below = torch.trunc(steps)"},
    ),
    Mistake(
        "goes up from above",
        "a negative number may go up past both neighbours, since `trunc` gives the upper one "
        f"already. {FLOOR}",
        edits={BELOW: "below = torch.trunc(steps)", UP: "up = noise < (steps - below).abs()"},
    ),
    Mistake(
        "one spacing too high",
        "the results are one spacing too high, as `ceil` gives them after noise is added: use "
        "`torch.floor`",
        edits={ROUNDED: "rounded = torch.ceil(steps + noise)"},
    ),
    Mistake(
        "noise, then to nearest",
        "the results are half a spacing too high on average, as noise from 0 to 1 is added and "
        "the sum rounded to nearest: round it down, with `torch.floor`",
        edits={ROUNDED: "rounded = torch.round(steps + noise)"},
    ),
    Mistake(
        "noise of another width",
        "the noise is not one spacing wide: add it to `x / spacing`, not to x",
        edits={ROUNDED: "rounded = torch.floor((x + noise) / spacing)"},
    ),
    Mistake(
        "no rounding",
        MULTIPLES,
        edits={RETURN: "return x + (noise - 0.5) * spacing"},
        violates="to a multiple of its spacing",
    ),
    Mistake(
        "ignores the spacing",
        MULTIPLES,
        edits={STEPS: "steps = x", RETURN: "return rounded"},
        violates="its spacing",
    ),
    Mistake(
        "not multiplied back",
        "you return the number of spacings: multiply it by the spacing at the end",
        edits={RETURN: "return rounded"},
    ),
    Mistake(
        *families.TOSSES_A_COIN,
        edits={UP: "up = noise < 0.5"},
        violates="mean of 20,000 draws",
    ),
    Mistake(
        "the other neighbour's chance",
        "this is the other neighbour's probability: go up if the draw is below what `floor` cuts "
        "off. Here, {seen}",
        edits={UP: "up = noise > steps - below"},
    ),
]

stochastic_rounding = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        "the values": "{odd}",
        "the exact values": "{odd}",
        "the shares": "{seen}",
        "the second call": "a second call with the same generator gives the same result: draw new "
        "numbers from it on each call",
        "the same seed": "a generator with the same seed gives another result: draw only from "
        "that generator",
        "two equal rows": "two equal rows of `x` give the same result in one call: draw for each "
        "element",
        "the spread": "the number of elements that go up, among 128, varies {got} from call to "
        "call, so the draws for different elements are not independent",
    },
)
