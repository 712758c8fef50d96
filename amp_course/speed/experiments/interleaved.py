"""Time several ways of doing one thing in turn, in one run, and compare them round by round.

A round gives every side one block of steps. What slows the machine for a while slows all sides of
that round, so the ratio of two sides is taken within each round. The median of these ratios is the
answer, and their quartiles say how far to trust it. By default torch computes on one thread
meanwhile: two threads wait for each other whenever another program takes a core, which would hide
the cause that an experiment shows. For single ops use torch.utils.benchmark.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from amp_course.kit.measure import CpuWait, Timing, busy_text, clock, order_of_round, seconds_text
from amp_course.kit.report import Block, Page, Table
from amp_course.kit.threads import one_thread

Side = Callable[[], object]
LEAST_ROUNDS, FEWEST_ROUNDS = 5, 3  # when time is up, and when twice that time is
MARGIN = 1.02  # a difference below 2 % comes and goes on a machine that other programs use
_MOST_STEPS = 200  # in a block
_CHEAP = 0.02  # seconds: a block of steps this short begins with one that is not timed


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one side ran as another, over the rounds: above 1 it is faster.

    clear: True if so many rounds agree on which side is faster that it is hardly chance
    """

    median: float
    q1: float
    q3: float
    clear: bool = True

    @property
    def verdict(self) -> Literal["faster", "slower", "same"]:
        """Return "same" unless it is clear and both quartiles are more than 2 % from 1."""
        if not self.clear:
            return "same"
        return "faster" if self.q1 > MARGIN else "slower" if self.q3 < 1 / MARGIN else "same"

    @property
    def quartiles(self) -> str:
        return f"{number_text(self.q1)} to {number_text(self.q3)}"

    def describe(self, who: str, base: str, plural: bool = False) -> str:
        """Write it as a clause.

        Example: describe("AMP", "fp32") → "AMP is 1.80 times as fast as fp32 (quartiles 1.70 to
                 1.90)"
        """
        if self.verdict == "same":
            return (
                f"between {who} and {base} there is no difference that this run can tell "
                f"({number_text(self.median)} times as fast, quartiles {self.quartiles})"
            )
        verb, adverb, times = "are" if plural else "is", "fast", self
        if self.verdict == "slower":
            verb, adverb = "take" if plural else "takes", "long"
            times = Ratio(1 / self.median, 1 / self.q3, 1 / self.q1)
        return (
            f"{who} {verb} {number_text(times.median)} times as {adverb} as {base} "
            f"(quartiles {times.quartiles})"
        )


@dataclass(frozen=True, repr=False)
class Comparison(Page):
    """The sides of one run, timed in turn.

    seconds: side → seconds a step, one number a round
    base:    side → the side that the table compares it with
    results: side → what its first call returned, if that was a number, such as a loss: sides that
             do the same work agree
    waited:  the share of the time in which this process or a worker of it waited for a CPU; None
             if not known
    """

    seconds: Mapping[str, tuple[float, ...]]
    base: Mapping[str, str]
    results: Mapping[str, float | None]
    waited: float | None = None

    @property
    def busy(self) -> str:
        """Why these times show nothing; "" on a quiet machine."""
        return busy_text(self.waited)

    def timing(self, side: str) -> Timing:
        return Timing(self.seconds[side])

    def ratio(self, side: str, base: str) -> Ratio:
        """Return how many times as fast `side` is as `base`, from the ratio of each round."""
        pairs = zip(self.seconds[side], self.seconds[base], strict=True)
        ratios = Timing(tuple(other / own for own, other in pairs))
        return Ratio(ratios.median, ratios.q1, ratios.q3, _is_clear(ratios.samples))

    def describe(
        self, side: str, base: str, *, who: str = "", than: str = "", plural: bool = False
    ) -> str:
        """Write in a clause how `side` compares with `base`, under the names `who` and `than`."""
        return self.ratio(side, base).describe(who or side, than or base, plural)

    def blocks(self) -> Iterator[Block]:
        """Return the table of the sides; without ratios if the machine was too busy."""
        rows = [["", "time", "quartiles", "times as fast", "quartiles", "compared with"]]
        for side in self.seconds:
            timing, base = self.timing(side), self.base[side]
            ratio = self.ratio(side, base)
            times = f"{seconds_text(timing.q1)} to {seconds_text(timing.q3)}"
            row = [side, seconds_text(timing.median), times, "", "", ""]
            if side != base:
                row[3:] = number_text(ratio.median), ratio.quartiles, base
            rows.append(row)
        yield Table([row[:3] for row in rows] if self.busy else rows)


def compare(
    sides: Mapping[str, Side],
    device: torch.device | str = "cpu",
    *,
    rounds: int = 15,
    steps: int | None = None,
    seconds: float = 1.0,
    base: Mapping[str, str] | None = None,
    single: bool = True,
    crowded: Collection[str] = (),
) -> Comparison:
    """Give each side a block of `steps` steps in each of `rounds` rounds, in about `seconds`.

    steps:   None takes as many as there is time for
    base:    side → the side that the table compares it with; by default the first
    single:  True to compute on one thread meanwhile
    crowded: sides that wait for a CPU because their own threads get in each other's way

    Each side's first call is not timed. The order changes from round to round. If time runs out
    there are fewer rounds, but at least 5, or 3 if these take twice as long.
    Example: compare({"fp32": train, "AMP": train_amp}).ratio("AMP", "fp32").median → 1.8
    """
    names, results, pace = list(sides), {}, {}
    taken = {name: list[float]() for name in names}
    wait = CpuWait()
    with one_thread() if single else nullcontext():
        for name, side in sides.items():
            started = time.perf_counter()
            results[name] = _number(side())
            first = time.perf_counter() - started
            pace[name] = first if first > seconds / 10 else clock(side, device)
        if steps is None:
            steps = max(1, min(_MOST_STEPS, int(seconds / rounds / sum(pace.values())) - 1))
        began = time.perf_counter()
        for number in range(rounds):
            used = time.perf_counter() - began
            if (number >= LEAST_ROUNDS and used > seconds) or (
                number >= FEWEST_ROUNDS and used > 2 * seconds
            ):
                break
            for name in order_of_round(names, number):
                if pace[name] < _CHEAP:
                    sides[name]()  # brings this side's weights back into the caches
                with nullcontext() if name in crowded else wait:
                    taken[name].append(clock(sides[name], device, steps))
    return Comparison(
        {name: tuple(times) for name, times in taken.items()},
        dict.fromkeys(names, names[0]) | dict(base or {}),
        results,
        wait.share,
    )


def _is_clear(ratios: tuple[float, ...]) -> bool:
    """Return True if equal sides would differ in so many rounds in less than 7 % of runs.

    Of 3 or 4 rounds chance can do more, so each has to differ by a tenth.
    """
    rounds = len(ratios)
    if rounds < LEAST_ROUNDS:
        return min(ratios) > 1.1 or max(ratios) < 1 / 1.1
    against = min(sum(one <= 1 for one in ratios), sum(one >= 1 for one in ratios))
    return sum(math.comb(rounds, number) for number in range(against + 1)) * 2 / 2**rounds < 0.07


def number_text(number: float) -> str:
    """Write a number with three figures from 1 on: 1.234 → "1.23", 0.0123 → "0.012"."""
    for least, places in ((99.95, 0), (9.995, 1), (0.0995, 2)):
        if number >= least:
            return f"{number:,.{places}f}"
    return f"{number:.3f}"


def sentences(*clauses: str) -> str:
    """Join clauses that are not empty as sentences: each gets a capital and a full stop."""
    return " ".join(
        f"{one[0].upper()}{one[1:]}{'' if one[-1] in '.!?' else '.'}" for one in clauses if one
    )


def _number(result: object) -> float | None:
    if isinstance(result, Tensor) and result.numel() == 1:
        return float(result)
    return float(result) if isinstance(result, int | float) else None
