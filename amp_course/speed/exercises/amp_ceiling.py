"""Exercise 2 of chapter 09: Amdahl's law."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number

card = Card(
    chapter="speed",
    name="amp_ceiling",
    number=2,
    title="What AMP can buy at most",
    difficulty=1,
    importance=5,
    minutes=6,
    lines=3,
    task="Write `amp_ceiling(parts)`: how many times as fast does a step get? `parts` is a list "
    "of pairs (share, factor): a part's share of the step's time today, from 0 to 1, and how many "
    "times as fast it gets. A factor below 1 makes the part slower; `math.inf` makes it take no "
    "time. Time that no pair names stays as it is.",
    hints=(
        "Let the step take 1 second. How long does a part with share 0.6 take if it gets 4 times "
        "as fast?",
        "Each part takes `share / factor` afterwards, and the rest takes 1 minus all shares. Then "
        "compare before and after.",
        "`after = 1 - sum(share for share, _ in parts) + sum(share / factor for share, factor in "
        "parts)`; return `1 / after`.",
    ),
    why="If matmuls are half of the step, no GPU in the world makes it more than twice as fast by "
    "lowering them.",
    alternative="a weighted harmonic mean: `statistics.harmonic_mean(factors, weights=shares)`, "
    "with the rest as one more part of factor 1.",
)

Parts = Sequence[tuple[float, float]]


def right(parts: Parts) -> float:
    rest = 1 - sum(share for share, _ in parts)
    after = rest + sum(share / factor for share, factor in parts)
    return 1 / after


def _rest(parts: Parts) -> float:
    return 1 - sum(share for share, _ in parts)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """One part, several, slower ones, no rest, infinite factors, and drawn parts."""
    for parts in (
        [(0.5, 2.0)],
        [(0.1, 2.0), (0.6, 8.0)],
        [(0.6, 8.0), (0.1, 0.5), (0.05, 0.25)],
        [(0.4, 0.05)],
        [(0.75, 4.0), (0.25, 2.0)],
        [(0.4, math.inf), (0.1, 0.5)],  # not inf alone: "forgets the rest" would divide by 0
        [(0.5, math.inf), (0.3, 3.0)],
        [(0.2, 2.0), (0.2, 4.0)],
        [(0.2, 2.0), (0.2, 2.0)],
        [(0.3, 3.0), (0.03, 40.0), (0.02, 0.1), (0.25, 1.5), (0.1, 16.0)],
        *(
            [(draw.randint(5, 30) / 100, draw.randint(3, 120) / 10) for _ in range(count)]
            for count in (1, 2, 3)
        ),
    ):
        case = f"for {parts}"
        number = read_number(call_answer(answer, case, list(parts)), case)
        after = [f"{share:g} / {factor:g}" for share, factor in parts]
        after += [f"{_rest(parts):.3g}"] if _rest(parts) > 1e-9 else []
        factors = " and ".join(f"{factor:g}" for _, factor in parts)
        facts = {"factors": factors, "after": " + ".join(after)}
        yield Case(case, {"the speed-up": number}, facts)


def _gains(parts: Parts) -> list[float]:
    """Return the speed-up that each part would bring alone."""
    return [right([part]) for part in parts]


AFTER = "the step then takes {after} of its old time"

mistakes = [
    Mistake(
        "averages the factors",
        "this is the mean of the factors, weighted by the shares. Times add up, but factors do "
        "not: divide each share by its factor",
        answer=lambda parts: _rest(parts) + sum(s * f for s, f in parts),
        violates="how many times as fast does a step get",
    ),
    Mistake(
        "averages the factors, without the rest",
        "this multiplies shares by factors, but a part that gets faster takes less time: divide "
        "its share by its factor",
        answer=lambda parts: sum(s * f for s, f in parts),
    ),
    Mistake(
        "applies the factors to the whole step",
        "this applies {factors} to the whole step: each factor speeds up only its own share",
        answer=lambda parts: math.prod(f for _, f in parts),
        violates="a part's share of the step's time",
    ),
    Mistake(
        "the largest factor",
        "this is the largest factor, but it speeds up only its own share, not the whole step",
        answer=lambda parts: max(f for _, f in parts),
    ),
    Mistake(
        "adds the factors",
        "this is the sum of the factors, but speed-ups do not add up: add up times, and divide at "
        "the end",
        answer=lambda parts: sum(f for _, f in parts),
    ),
    Mistake(
        "the mean factor",
        "this is the plain mean of the factors: each factor counts by its share of the time",
        answer=lambda parts: sum(f for _, f in parts) / len(parts),
    ),
    Mistake(
        "forgets the rest",
        f"the rest of the step is missing, but it runs as before: {AFTER}",
        answer=lambda parts: 1 / sum(s / f for s, f in parts),
        violates="Time that no pair names stays as it is",
    ),
    Mistake(
        "the named parts alone",
        f"this is the speed-up of the named parts alone. The rest runs as before: {AFTER}",
        answer=lambda parts: sum(s for s, _ in parts) / sum(s / f for s, f in parts),
    ),
    Mistake(
        "inverts the factors",
        "a part that gets f times as fast takes `share / f`, not `share * f`",
        answer=lambda parts: 1 / (_rest(parts) + sum(s * f for s, f in parts)),
        violates="A factor below 1 makes the part slower",
    ),
    Mistake(
        "the time that is left",
        "this is the new time as a share of the old: return the old time divided by the new",
        answer=lambda parts: 1 / right(parts),
    ),
    Mistake(
        "the time that is saved",
        "this is the share of the time that is saved: return the old time divided by the new",
        answer=lambda parts: 1 - 1 / right(parts),
    ),
    Mistake(
        "1 plus the time that is saved",
        "this is 1 plus the share of the time that is saved, but a step that saves half of its "
        "time is twice as fast: divide the old time by the new",
        answer=lambda parts: 2 - 1 / right(parts),
    ),
    Mistake(
        "in percent",
        "this is in percent: twice as fast is 2",
        answer=lambda parts: 100 * right(parts),
    ),
    Mistake(
        "the gain alone",
        "this is 1 too low: a step that stays as it is has a speed-up of 1",
        answer=lambda parts: right(parts) - 1,
    ),
    Mistake(
        "one part after the other",
        "this multiplies the speed-ups of the parts, but the shares are of today's step, and a "
        f"part's share grows when another shrinks: {AFTER}",
        answer=lambda parts: math.prod(_gains(parts)),
    ),
    Mistake(
        "adds speed-ups",
        "this adds up what each part would gain alone: add up the times that are left, and divide "
        "at the end",
        answer=lambda parts: 1 + sum(gain - 1 for gain in _gains(parts)),
    ),
    Mistake(
        "ignores slower parts",
        f"a part with a factor below 1 takes longer: {AFTER}",
        answer=lambda parts: right([(s, max(f, 1.0)) for s, f in parts]),
        violates="makes the part slower",
    ),
    Mistake(
        "skips infinite factors",
        "you leave a part with an infinite factor as it was: it takes no time, since share / inf "
        "is 0",
        answer=lambda parts: right([(s, f) for s, f in parts if f < math.inf]),
        violates="`math.inf` makes it take no time",
    ),
    Mistake(
        "the first part alone",
        f"only the first part gets faster here: {AFTER}",
        answer=lambda parts: right(parts[:1]),
    ),
    Mistake(
        "the last part alone",
        f"only the last part gets faster here. Add up what all of them take: {AFTER}",
        answer=lambda parts: right(parts[-1:]),
    ),
    Mistake(
        "the best part alone",
        f"this is the best of the parts alone, but all of them change: {AFTER}",
        answer=lambda parts: max(_gains(parts)),
    ),
]

amp_ceiling = Exercise(card, right, cases, mistakes, tolerance=1e-6)
