"""Exercise 3 of chapter 05: the rule that finds the loss scale."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    call_answer,
    families,
    read_number,
    read_pair,
    show_number,
)

card = Card(
    chapter="scaler",
    name="update_rule",
    number=3,
    title="The rule that finds the scale",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=8,
    task="Write `update_rule(scale, streak, found_inf, growth, backoff, interval)`: given the "
    "state and whether this step found inf or NaN, return the next scale and the next streak of "
    "clean steps, as torch's scaler computes them.",
    hints=(
        "There are two branches: found, or clean. Which of them sets the streak to 0, and when?",
        "Found: the scale times backoff, and 0. Clean: count this step, then ask whether the "
        "streak has reached the interval.",
        "A scale never grows beyond float32: ask `torch.tensor(scale * growth).isfinite()`, which "
        "is in float32. The streak restarts at 0 either way.",
    ),
    why="A larger scale every 2,000 steps costs at most one skipped step; one that is too small "
    "loses gradients at every step.",
    alternative="call torch's own kernel, `torch._amp_update_scale_`, which changes a scale and a "
    "streak in tensors.",
)

Next = tuple[float, float]


def reference(
    scale: float, streak: int, found: bool, growth: float, backoff: float, interval: int
) -> Next:
    now, clean = torch.tensor(scale), torch.tensor(streak, dtype=torch.int32)
    torch._amp_update_scale_(now, clean, torch.tensor(float(found)), growth, backoff, interval)
    return now.item(), float(clean.item())


USUAL = [1.25 * 2.0**10, *(2.0**power for power in (-3, -9, -20, -40, -126))]
# Twice the second is more than 3.4e38, but still in float32
TOP = [2.0**126, 1.9990234375 * 2.0**126, 1.5 * 2.0**127]


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Every streak, clean and found, at usual and tiny scales, and where growth leaves float32."""
    usual = [*USUAL, 2.0 ** draw.randint(11, 16)]
    for growth, backoff, interval in (
        (2.0, 0.5, draw.randint(3, 5)),
        (4.0, 0.25, 6),
        (1.5, 0.75, 2),
        (2.0, 0.5, 1),
    ):
        rule = f"growth {growth:g}, backoff {backoff:g}, interval {interval}"
        for output, scales in {"scale": usual, "scale at the top of float32": TOP}.items():
            nexts, streaks = Results(what="the next scale"), Results(what="the next streak")
            for scale, streak, found in itertools.product(scales, range(interval), (False, True)):
                case = f"with scale {show_number(scale)}, streak {streak}, {rule} and "
                case += "inf found" if found else "nothing found"
                got = call_answer(answer, case, scale, streak, found, growth, backoff, interval)
                first, second = read_pair(got, case, "the pair (scale, streak)")
                nexts[case], number = read_number(first, case), read_number(second, case)
                streaks[case] = int(number) if number.is_integer() else number
            outputs = {f"the next {output}": nexts, "the next streak": streaks}
            yield Case("", outputs, {"interval": interval})


def _unguarded(s: float, k: int, f: bool, g: float, b: float, n: int) -> Next:
    return (s * b, 0.0) if f else (s * g, 0.0) if k + 1 == n else (s, k + 1.0)


def _streak(change: Callable[..., float]) -> Callable[..., Next]:
    """Follow the right rule, with another streak."""
    return lambda s, k, f, *rule: (
        reference(s, k, f, *rule)[0],
        change(s, k, f, *reference(s, k, f, *rule)),
    )


mistakes = [
    Mistake(
        "grows on a skipped step",
        "the scale grows on a skipped step. After inf or NaN it backs off, whatever the streak",
        answer=lambda s, k, f, g, b, n: reference(s, k, f and k + 1 < n, g, b, n),
        violates="whether this step found inf or NaN",
    ),
    Mistake(
        *families.KEEPS_THE_STREAK_AFTER_A_SKIP,
        answer=_streak(lambda s, k, f, scale, streak: k if f else streak),
        violates="streak of clean steps",
    ),
    Mistake(
        "grows late or never",
        "the scale does not grow at clean step number {interval} in a row. Count this step first, "
        "then compare",
        answer=lambda s, k, f, g, b, n: (s * b, 0.0) if f else (s, k + 1.0),
    ),
    Mistake(
        "grows one step early",
        "the scale grows too early. It grows only after {interval} clean steps in a row",
        answer=lambda s, k, f, g, b, n: (
            (s * g, 0.0) if not f and k + 2 == n else reference(s, k, f, g, b, n)
        ),
    ),
    Mistake(
        *families.KEEPS_THE_STREAK_AFTER_GROWTH,
        answer=_streak(lambda s, k, f, scale, streak: streak if f else k + 1),
    ),
    Mistake(
        *families.GROWS_TO_INF,
        answer=_unguarded,
        violates="as torch's scaler computes them",
    ),
    Mistake(
        "clamps at the top",
        "where growth would be inf, torch leaves the scale unchanged",
        answer=lambda *state: (
            min(_unguarded(*state)[0], torch.finfo(torch.float32).max),
            _unguarded(*state)[1],
        ),
    ),
    Mistake(
        "the streak goes on at the top",
        "the streak goes on where the scale may not grow. It restarts at 0 there, as after a "
        "growth",
        answer=_streak(lambda s, k, f, new, streak: streak if f or new != s else k + 1),
    ),
    Mistake(
        "tests the old scale",
        "a scale below 2^127 grows to inf if growth is above 2. Ask whether `scale * growth` is "
        "finite in float32",
        answer=lambda *state: (reference if state[0] >= 2.0**127 else _unguarded)(*state),
    ),
    *[
        Mistake(
            f"{families.FLOOR_OF_1[0]}{where}",
            families.FLOOR_OF_1[1],
            answer=lambda s, k, f, *rule, always=always: (
                max(reference(s, k, f, *rule)[0], 1.0 if f or always else 0.0),
                reference(s, k, f, *rule)[1],
            ),
        )
        for where, always in ((" after a skip", False), ("", True))
    ],
    *[
        Mistake(
            name,
            "the scale changes by a factor other than the `growth` or `backoff` that was passed in",
            answer=lambda s, k, f, g, b, n, own=own: reference(
                s, k, f, own[0] or g, own[1] or b, n
            ),
        )
        for name, own in {
            "always halves": (None, 0.5),
            "always doubles": (2.0, None),
            "always halves or doubles": (2.0, 0.5),
        }.items()
    ],
]

update_rule = Exercise(card, reference, cases, mistakes)
