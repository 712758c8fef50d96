"""Judge clipping by one norm over two optimizers, where one's overflow can poison the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import number
from amp_course.checking.values import fresh
from amp_course.patterns.judges.gradients import near
from amp_course.patterns.judges.pair import INF, NAN, Pair, about_exception

# What is planted into either head's gradients, and the limit as a share of the norm.
_TURNS = (
    ((1.0, 1.0), 0.4),
    ((1.0, 1.0), 2.0),
    ((1.0, NAN), 0.5),
    ((1.0, 1.0), 0.5),
    ((INF, 1.0), 0.5),
    ((1.0, 1.0), 0.3),
)


def judge(answer: Callable[..., Any]) -> None:
    """`clip_both(optimizers, scaler, max_norm)`, after `backward()` → the true gradients' norm before clipping."""
    pair = Pair(fresh())
    for turn, (planted, share) in enumerate(_TURNS):
        _play(answer, pair, turn, planted, share)


def _play(answer: Callable[..., Any], pair: Pair, turn: int, planted: tuple[float, float], share: float) -> None:
    inputs, targets = pair.draw()
    true = pair.true(inputs, targets)
    norm = float(torch.cat(true).norm())
    pair.plant = [*planted]
    for optimizer in pair.optimizers:
        optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        features = pair.body(inputs)
        losses = [nn.functional.cross_entropy(h(features), t) for h, t in zip(pair.heads, targets, strict=True)]
    pair.scaler.scale(losses[0] + losses[1]).backward()
    scale, before = pair.scaler.get_scale(), pair.steps()
    try:
        got = answer(pair.optimizers, pair.scaler, norm * share)
    except (AssertionError, RuntimeError) as error:
        if "non-finite" in str(error):
            raise Wrong(
                "`error_if_nonfinite=True` raised and ended the training at an overflow, which every run with a "
                "scaler has: catch the error and leave out both steps, or look at the norm yourself"
            ) from error
        about_exception(error, pair)
        raise
    taken = [now - then for now, then in zip(pair.steps(), before, strict=True)]
    if pair.stray():
        raise Wrong("`optimizer.step()` was called directly: the steps are `scaler.step(optimizer)`, for both")
    if pair.notes.count()["update"] != turn + 1:
        raise Wrong(
            f"`scaler.update()` ran {pair.notes.count()['update']} times in {turn + 1} calls: once in each, after "
            "both steps, and also when they were left out"
        )
    if planted == (1.0, 1.0):
        _about_clean_turn(pair, true, norm, norm * share, scale, taken)
    else:
        _about_bad_turn(pair, planted, taken)
    _about_norm(got, norm, scale, planted)


def _about_bad_turn(pair: Pair, planted: tuple[float, float], taken: list[int]) -> None:
    clean = planted.index(1.0)
    name, other = ("first", "second")[clean], ("second", "first")[clean]
    if not bool(torch.cat([pair.weights(0), pair.weights(1)]).isfinite().all()):
        raise Wrong(
            f"the {name} optimizer's weights are NaN now. A NaN of the {other} one made the common norm NaN, "
            "`clip_grad_norm_` multiplied the clean gradients by it, and `scaler.step` took that step: it had looked "
            "at them in `unscale_`, when they were still clean. If the norm is not finite, leave out both steps"
        )
    if any(taken):
        raise Wrong(
            f"the {other} optimizer's gradients held inf or NaN, and the {name} one stepped: with a norm of inf its "
            "clipped gradients are all 0, and momentum and weight decay move the weights anyway. If the norm is "
            "not finite, leave out both steps"
        )


def _about_clean_turn(
    pair: Pair, true: list[Tensor], norm: float, limit: float, scale: float, taken: list[int]
) -> None:
    if taken != [1, 1]:
        raise Wrong(f"all gradients were finite, and the optimizers stepped {taken[0]} and {taken[1]} times: once each")
    for place, witness in enumerate(pair.witnesses):
        got, name = witness.gradients(-1), ("first", "second")[place]
        if got is None:
            raise Wrong(f"the {name} optimizer had no gradients at its step: clearing is the caller's business")
        want = true[place] * min(1.0, limit / norm)
        if near(got, want):
            continue
        told = (
            f"the {name} optimizer's gradients have the norm {float(got.norm()):.4g}, and {float(want.norm()):.4g} is "
            "right"
        )
        alone = [float(one.norm()) for one in true]
        if near(got, true[place] * min(1.0, limit / alone[place])) and limit < norm:
            raise Wrong(
                f"each optimizer was clipped by its own norm, or not at all: {told}. One norm over all of them, one "
                "factor for both"
            )
        if near(got, true[place] * min(1.0, limit / sum(alone))):
            raise Wrong(f"the norm of both together is the root of the sum of squares, and not the sum: {told}")
        if float(got.norm()) < 20 * limit / scale:
            raise Wrong(
                f"{told}: you clipped before unscaling, or unscaled only one of the two. `scaler.unscale_` for both, "
                "then one norm"
            )
        raise Wrong(f"{told}. Unscale both, clip once over all parameters, step both")


def _about_norm(got: Any, norm: float, scale: float, planted: tuple[float, float]) -> None:
    value = number(got, "the norm")
    if planted != (1.0, 1.0) or abs(value - norm) <= 0.02 * norm:
        return
    if abs(value - norm * scale) <= 0.02 * norm * scale:
        raise Wrong(f"the norm that you return is that of the scaled gradients, {scale:,.0f} times too large")
    raise Wrong(f"the norm of all gradients before clipping is {norm:.4g}, and you return {value:.4g}")
