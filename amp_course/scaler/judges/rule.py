"""Judge the update rule: state by state, along schedules that torch's own scaler runs through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, show
from amp_course.checking.values import fresh

INF = float("inf")


@dataclass(frozen=True)
class Turn:
    """One update: the state before, what was found, the rule's numbers, and the state that torch made of it."""

    scale: float
    streak: int
    found: bool
    growth: float
    backoff: float
    interval: int
    scale_after: float
    streak_after: int

    def __str__(self) -> str:
        return (
            f"scale {show(self.scale)}, a streak of {self.streak} with growth after {self.interval}, "
            f"{'inf found' if self.found else 'nothing found'}"
        )


def judge(answer: Callable[..., Any]) -> None:
    """`update_rule(scale, streak, found_inf, growth, backoff, interval)` → (scale, streak), as torch's scaler has it."""
    for turn in turns():
        got = ask(answer, str(turn), turn.scale, turn.streak, turn.found, turn.growth, turn.backoff, turn.interval)
        if got is None:
            raise Wrong("your function returned None: return the pair (scale, streak)")
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(f"your function returned a {type(got).__name__}, not the pair (scale, streak)")
        _compare(number(got[0], f"the scale after {turn}"), number(got[1], f"the streak after {turn}"), turn)


def turns() -> Iterator[Turn]:
    """Run torch's scaler along drawn schedules: usual ones, one to fp32's limit, one from below 1."""
    generator = fresh()
    interval = int(torch.randint(3, 6, (), generator=generator))
    top = float(torch.randint(2**22, 2**23, (), generator=generator)) * 2.0**104  # doubled once, not twice
    for scale, growth, backoff, every, chance, steps in (
        (2.0**16, 2.0, 0.5, interval, 0.15, 40),
        (2.0**10, 4.0, 0.25, interval + 1, 0.1, 30),
        (3.0, 1.5, 0.75, 1, 0.3, 12),
        (top, 2.0, 0.5, 2, 0.0, 7),
        (2.0, 2.0, 0.5, interval, 0.8, 12),
    ):
        found = (torch.rand(steps, generator=generator) < chance).tolist()
        if chance:  # a backoff in the middle of a streak, and one where the scale would have grown
            found += [*[False] * (every - 1), True, *[False] * every, *[False] * (every // 2), True, False]
        yield from _run(scale, growth, backoff, every, found)


def _run(scale: float, growth: float, backoff: float, interval: int, found: list[bool]) -> Iterator[Turn]:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    scaler.scale(torch.ones(()))
    for bad in found:
        before = scaler.state_dict()
        parameter.grad = torch.tensor([INF if bad else 1.0])
        scaler.step(optimizer)
        scaler.update()
        after = scaler.state_dict()
        yield Turn(
            before["scale"],
            before["_growth_tracker"],
            bad,
            growth,
            backoff,
            interval,
            after["scale"],
            after["_growth_tracker"],
        )


def _compare(scale: float, streak: float, turn: Turn) -> None:
    right_scale = math.isclose(scale, turn.scale_after, rel_tol=1e-6)
    if right_scale and streak == turn.streak_after:
        return
    given = f"With {turn}: "
    if right_scale:
        raise Wrong(_about_streak(streak, turn) + f". {given}streak {turn.streak_after}, and yours is {streak:g}")
    raise Wrong(_about_scale(scale, turn) + f". {given}scale {show(turn.scale_after)}, and yours is {show(scale)}")


def _about_streak(streak: float, turn: Turn) -> str:
    if turn.found and streak > turn.streak:
        return "a skipped step counts as a clean one: it ends the streak, so the streak is 0 after it"
    if turn.found:
        return "the streak goes on after a backoff: a skipped step ends it, and the next growth needs a full new streak"
    if turn.streak + 1 == turn.interval and turn.scale_after == turn.scale:
        return "where growth would be inf, torch leaves the scale as it is, and the streak restarts at 0 anyway"
    if turn.streak + 1 == turn.interval:
        return "after a growth the streak restarts at 0; if it does not, the scale grows again too soon, or never again"
    return "a clean step makes the streak longer by one"


def _about_scale(scale: float, turn: Turn) -> str:
    last = turn.streak + 1 == turn.interval
    if turn.found and scale > turn.scale:
        return "the scale grows on a skipped step: whatever the streak was, inf or NaN means backoff"
    if turn.found and scale == turn.scale:
        if turn.scale <= 1.0 or turn.scale * turn.backoff < 1.0:
            return "the scale stops falling at 1: torch's rule has no floor, and a scale below 1 is the sign of a real fault"
        return "the scale does not back off: after inf or NaN multiply it by the backoff factor"
    if turn.found and scale == 1.0 and turn.scale_after < 1.0:
        return (
            "the scale stops falling at 1: torch's rule has no floor, and a scale below 1 is the sign of a real fault"
        )
    if turn.found:
        return "the scale backs off by a factor other than the one passed in"
    if scale > torch.finfo(torch.float32).max:
        return (
            "the scale grows past float32's largest number, where it is inf and every gradient with it: grow only if the result "
            "is finite in float32, as torch does"
        )
    if last and scale == turn.scale:
        return (
            f"the scale grows one step late: the {turn.interval}th clean step in a row is the one that makes it grow, so "
            "count this step before you compare"
        )
    if last and turn.scale_after == turn.scale:
        return "where growth would be inf, torch leaves the scale as it is"
    if last:
        return "the scale grows by a factor other than the one passed in"
    if scale > turn.scale:
        return f"the scale grows too early: only after {turn.interval} clean steps in a row"
    return "a clean step never lowers the scale"
