"""Exercise 6 of chapter 02: rounding at random, against its two neighbours and the chance of
each.
"""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor

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
        "A number 0.3 of the way from its lower neighbour to the upper one: how often should it "
        "go up?",
        "Count in spacings: `steps = x / spacing`. Add noise, uniform from 0 to 1, a draw for "
        "each element; then which rounding?",
        "`torch.floor(x / spacing + torch.rand(x.shape, generator=generator)) * spacing`. `floor` "
        "and not `trunc`: they differ below zero.",
    ),
    why="With it, pure bf16 weights can learn without master copies: an update of a tenth of a "
    "spacing moves one weight in ten.",
    alternative="on bits: add a random 16-bit integer to the float32 pattern and clear its low 16 "
    "bits, which gives bf16. There the sign is a bit of its own, so cutting off rounds both signs "
    "alike.",
)


def right(x: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    steps = x / spacing
    below = torch.floor(steps)
    noise = torch.rand(x.shape, generator=generator)
    up = noise < steps - below
    rounded = below + up
    return rounded * spacing


DRAWS, FEW, CALLS = 20_000, 20, 600
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
RARE, EXACT = (
    {-2.9998: 0.5, -4.9998: 0.25, 1.0002: 0.5, 5.0002: 2.0},
    {3.0: 1.0, 0.0: 4096.0, -2.0: 0.25},
)
GRID = torch.tensor(
    [k + f / 1000 for k in (-3, -2, 1, 2) for f in (1, 200, 400, 499, 501, 600, 800, 999)]
)
SAME = f"the same in all {DRAWS:,} draws"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Round the same numbers 20,000 times in one call, then find out in small calls where the draws
    come from.

    A right answer fails, and one whose chance to go up is off by 0.04 passes, less than once in
    100,000 checks. Noise of 8 bits, as bf16's, never moves 3.0037 up if it is added, and moves
    −2.9998 up too often if it is compared with.
    """

    def call(steps: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
        got = call_answer(answer, "", steps * spacing, spacing.clone(), generator)
        return read_tensor(got, shape=steps.shape).double() / spacing

    seed = draw.getrandbits(31)
    size = torch.tensor(
        [1.0, 2.0 ** draw.randint(-6, -1)]
    )  # of spacings: the first, smallest and largest are not 1
    table = (
        (size * torch.tensor([*(NUMBERS | RARE | EXACT).items()]))
        .unsqueeze(2)
        .expand(-1, -1, DRAWS)
    )
    rows = call(table[:, 0], table[:, 1], torch.Generator().manual_seed(seed))
    values, exact, shares, odd, seen = dict[str, str](), dict[str, str](), dict[str, str](), "", ""
    for row, number in zip(rows, NUMBERS | RARE | EXACT, strict=True):
        case, share, chance = (
            f"for {number:g} spacings",
            (row > number).double().mean().item(),
            number % 1,
        )
        if number not in RARE:
            want = f"{math.floor(number)} or {math.ceil(number)}" if chance else f"{number:g}"
            got = (values if chance else exact)[case] = _values(row, number)
            rare = f", the latter in {100 * chance:.3g} % of the draws" if got == SAME else ""
            odd = odd or (
                ""
                if got == want
                else f"{case}, the result in spacings is {got}; only {want} is right{rare}"
            )
        shares[case] = _compare(share, chance) if chance else ""
        seen = seen or (
            shares[case]
            and f"{case}, {100 * share:.4g} % of the draws go up, and {100 * chance:.4g} % is right"
        )

    same, generator = (
        (torch.full((2, 64), 2.5), torch.full((2, 64), 0.25)),
        torch.Generator().manual_seed(seed),
    )
    first, second, again = (
        call(*same, generator),
        call(*same, generator),
        call(*same, generator.manual_seed(seed)),
    )
    ups = torch.stack([(call(*same, generator) > 2.5).sum() for _ in range(CALLS)]).double()
    spread = (
        ups - 64
    ).square().mean().item() / 32  # 1 on average; beyond 0.6 and 1.4 less than once in 10⁸ checks
    outputs = {
        "the values": values,
        "the shares": shares,
        "the exact values": exact,
        "the second call": "the same" if torch.equal(first, second) else "different",
        "the same seed": "the same" if torch.equal(first, again) else "different",
        "two equal rows": "the same" if torch.equal(first[0], first[1]) else "different",
        "the spread": "too little" if spread < 0.6 else "too much" if spread > 1.4 else "",
    }
    one_way = set(values.values()) == {
        SAME
    }  # then see which way each number goes, if that is the same in every call
    ways = {
        tuple((call(GRID, torch.ones_like(GRID), generator) > GRID).tolist())
        for _ in range(60 if one_way else 0)
    }
    yield Case("", outputs, {"seen": seen, "odd": odd}, {"way": ways if len(ways) == 1 else set()})


def _values(row: Tensor, number: float) -> str:
    """Say what a number became: "2 or 3". What lies beyond its neighbours is summed up,
    and a few are ignored.
    """
    below, above = math.floor(number), math.ceil(number)
    if not bool(row.isfinite().all()):
        return "inf or NaN"
    if len(between := row[row != row.round()].unique()):
        often = "always" if bool((row == row[0]).all()) else "sometimes"
        return (
            "one of thousands of numbers"
            if len(between) > DRAWS / 20
            else f"{often} {between[0].item():.4g}"
        )
    # subtle: in float32 floor(x + noise), which is right, moves an exact number once in 10⁶ draws
    masks = {f"{below}": row == below, f"{above}": row == above}
    masks |= {f"below {below}": row < below, f"above {above}": row > above}
    found = [kind for kind, mask in masks.items() if int(mask.sum()) > FEW]
    if below < above and found in ([f"{below}"], [f"{above}"]):
        return SAME
    beyond = [kind for kind in found if " " in kind]
    often = "" if not beyond else "always " if beyond == found else "sometimes "
    return often + " or ".join(beyond or found)


def _compare(share: float, chance: float) -> str:
    """Say how a share of ups compares with the chance: "" if it is within 6 standard errors."""
    for name, one in (("", chance), ("half", 0.5), ("the other neighbour's", 1 - chance)):
        if abs(share - one) <= 6 * math.sqrt(one * (1 - one) / DRAWS):
            return name
    return "too often" if share > chance else "too rarely"


STEPS, NOISE = "steps = x / spacing", "noise = torch.rand(x.shape, generator=generator)"
UP, ROUNDED, RETURN = (
    "up = noise < steps - below",
    "rounded = below + up",
    "return rounded * spacing",
)

SAID = {
    **dict.fromkeys(("the values", "the exact values"), "{odd}"),
    "the shares": "{seen}",
    "the second call": "a second call with the same generator gives the same result: each call "
    "has to draw new numbers from it",
    "the same seed": "a generator with the same seed gives another result: draw from that "
    "generator alone",
    "two equal rows": "two equal rows of `x` come out the same in one call: each element needs a "
    "draw of its own",
    "the spread": "the number of elements that go up, among 128, varies {got} from call to call, "
    "so the draws for different elements are not independent",
}

mistakes = [
    Mistake(
        "rounds to nearest",
        "this rounds to nearest, the same way on every call: less than half a spacing never gets "
        "through",
        edits={ROUNDED: "rounded = torch.round(steps)"},
        violates="up or down",
    ),
    Mistake(
        "one draw for all",
        "equal numbers in a row all go the same way: draw for each element on its own, "
        "`torch.rand(x.shape, …)`",
        edits={NOISE: "noise = torch.rand((), generator=generator)"},
        violates="for each element independently",
    ),
    Mistake(
        "the same draws on every call",
        "every call draws the same numbers. Draw from the given generator itself, do not set its "
        "seed or state, and do not draw from a copy of it or from another one with its seed",
        edits={NOISE: "noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))"},
        violates="new numbers on every call",
    ),
    Mistake(
        "draws from elsewhere",
        "the generator's seed does not decide the result: write `torch.rand(x.shape, "
        "generator=generator)`",
        edits={NOISE: "noise = torch.rand(x.shape)"},
        violates="Draw from the generator",
    ),
    Mistake(
        "truncates negative numbers the wrong way",
        "negative numbers come out one too near to zero: use `torch.floor`, not `.trunc()` or "
        "`.int()`",
        edits={ROUNDED: "rounded = torch.trunc(steps + noise)"},
        violates="so that the mean is x",
    ),
    Mistake(
        "no rounding",
        "many different numbers come out: divide by the spacing, round to a whole number, "
        "multiply again",
        edits={RETURN: "return x + (noise - 0.5) * spacing"},
        violates="to a multiple of its spacing",
    ),
    Mistake(
        "ignores the spacing",
        "this does not round to multiples of the spacing: divide by it first, and multiply by it "
        "at the end",
        edits={STEPS: "steps = x", RETURN: "return rounded"},
        violates="its spacing",
    ),
    Mistake(
        "not multiplied back",
        "you return how many spacings it is, and not the number: multiply by the spacing again at "
        "the end",
        edits={RETURN: "return rounded"},
    ),
    Mistake(
        "tosses a coin",
        "both neighbours come up equally often, and the nearer one has to come up more often: "
        "{seen}",
        edits={UP: "up = noise < 0.5"},
        violates="mean of 20,000 draws",
    ),
    Mistake(
        "the other neighbour's chance",
        "this is the other neighbour's chance: go up if the draw is below what `floor` cuts off. "
        "Here, {seen}",
        edits={UP: "up = noise > steps - below"},
    ),
]

stochastic_rounding = Exercise(card, right, cases, mistakes, messages=SAID)
