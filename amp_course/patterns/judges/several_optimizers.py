"""Judge two losses and two optimizers under one scaler: their step, and clipping both by one norm.

A step is judged by who stepped, with which gradient, how often; clipping by whether one's overflow can poison the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import number
from amp_course.checking.values import fresh
from amp_course.patterns.judges.small_trainings import INF, NAN, Pair, near

# What is planted into the gradients of the two heads, iteration by iteration.
_PLANTED = ((1.0, 1.0), (1.0, INF), (1.0, 1.0), (NAN, 1.0), (1.0, 1.0), (1.0, 1.0))


def judge_two_optimizers(answer: Callable[..., Any]) -> None:
    """`train_step(body, heads, inputs, targets, loss_fn, optimizers, scaler)`: both losses, both steps, one update."""
    pair = Pair(fresh())
    for turn, planted in enumerate(_PLANTED):
        _play_step(answer, pair, turn, planted)


def _play_step(answer: Callable[..., Any], pair: Pair, turn: int, planted: tuple[float, float]) -> None:
    inputs, targets = pair.draw()
    pair.plant = [*planted]
    scale, before, true = pair.scaler.get_scale() or pair.scale, pair.steps(), pair.true(inputs, targets)
    apart = [pair.true(inputs, targets, shares)[0] for shares in ((1.0, 0.0), (0.0, 1.0))]
    try:
        answer(pair.body, pair.heads, inputs, targets, pair.loss_fn, pair.optimizers, pair.scaler)
    except (AssertionError, RuntimeError) as error:
        _explain_exception(error, pair)
        raise
    _check_passes(pair, turn + 1, scale)
    _check_scaler(pair, turn + 1)
    for place in range(2):
        taken = pair.steps()[place] - before[place]
        _check_step(place, taken, turn)
        if taken:
            _check_gradient(pair, place, true, apart, scale, turn)


def _check_passes(pair: Pair, turns: int, scale: float) -> None:
    notes, seen = pair.notes, pair.notes.count()
    if seen["forward"] > turns:
        raise Wrong(
            "the body ran twice in one iteration: both heads can use the same features. That is what `retain_graph` "
            "is for"
        )
    if str(notes.layer_dtypes[-1:]) != "[torch.float16]":
        raise Wrong("the body did not run under fp16 autocast: forward passes and losses belong into the region")
    if seen["loss"] < 2 * turns:
        raise Wrong("`loss_fn` has to be called for each head, with its own targets")
    if not all(notes.loss_in_autocast):
        raise Wrong("a loss was computed outside of the autocast region: move both into the `with` block")
    if seen["backward"] < 2 * turns:
        raise Wrong("only one of the losses went backward: call `backward()` on each, or once on their sum")
    if any(notes.backward_in_autocast):
        raise Wrong("`backward()` ran inside the autocast region: end the `with` block before it")
    starts = notes.backward_scales[-2:]
    if starts == [scale, scale]:
        return
    if 1.0 in starts and scale in starts:
        raise Wrong(
            f"one loss was scaled by {scale:,.0f} and the other was not: in the body, their gradients are added up, "
            f"one of them {scale:,.0f} times too small. `scaler.scale` for both"
        )
    if starts == [scale / 2, scale / 2]:
        raise Wrong("the losses were averaged: the loss of the body is their sum")
    if starts == [1.0, 1.0]:
        raise Wrong("no loss was scaled: `scaler.scale(loss).backward()` for both")
    raise Wrong(
        f"`backward()` started from {starts[0]:,.0f} and {starts[1]:,.0f}, and the scale is {scale:,.0f}: both losses "
        "are scaled once, by the scaler that was handed in. A scaler for each optimizer would add up gradients of two "
        "scales in the body"
    )


def _check_scaler(pair: Pair, turns: int) -> None:
    seen = pair.notes.count()
    if pair.stray():
        raise Wrong(
            "`optimizer.step()` was called directly: nobody unscaled, and nobody would skip. `scaler.step` for each "
            "optimizer"
        )
    if seen["scaler.step"] < 2 * turns:
        raise Wrong(
            f"`scaler.step` ran {seen['scaler.step']} times in {turns} iterations with two optimizers: call it for "
            "both, whatever the other one found. Each of them is skipped by its own gradients only"
        )
    if seen["update"] > turns:
        raise Wrong(
            "`scaler.update()` ran once for each optimizer: after the first one the scale may be another, and the "
            "second optimizer's gradients would be divided by a scale that they never had. One update, after both "
            "steps"
        )
    if seen["update"] < turns:
        raise Wrong("`scaler.update()` has to run once an iteration, after both steps")


def _check_step(place: int, taken: int, turn: int) -> None:
    name, other = ("first", "second") if place == 0 else ("second", "first")
    bad = not abs(_PLANTED[turn][place]) < INF
    if not bad and not taken and turn and not abs(_PLANTED[turn - 1][place]) < INF:
        raise Wrong(
            f"the {name} optimizer found inf or NaN again, one iteration after it was there: its gradients were not "
            "cleared. Clear those of both optimizers, skipped or not"
        )
    if bad and taken:
        raise Wrong(
            f"the {name} optimizer stepped although its gradients held inf or NaN: was it told that they are clean?"
        )
    if not bad and not taken:
        raise Wrong(
            f"the {name} optimizer's gradients were clean and it did not step: what the {other} one finds must not "
            "stop it"
        )
    if taken > 1:
        raise Wrong(f"the {name} optimizer stepped {taken} times in one iteration")


def _check_gradient(pair: Pair, place: int, true: list[Tensor], apart: list[Tensor], scale: float, turn: int) -> None:
    got, want, name = pair.witnesses[place].gradients(-1), true[place], ("first", "second")[place]
    if got is None:
        raise Wrong(
            f"the {name} optimizer stepped while one of its parameters had no gradient: when were they cleared?"
        )
    if near(got, want):
        return
    if near(got, want * scale) or near(got, want / scale):
        raise Wrong(
            f"the {name} optimizer's gradients carry the scale, or were divided twice: leave that to `scaler.step`"
        )
    if near(got, want / 2):
        raise Wrong("the gradients are half of what they should be: the losses are added up, not averaged")
    if place == 0:
        body = sum(p.numel() for p in pair.body.parameters())
        if near(got[:body], apart[0][:body]):
            raise Wrong(
                "the second loss does not reach the body: its head was given detached features, or its gradients were "
                "cleared"
            )
        if near(got[:body], apart[1][:body]):
            raise Wrong(
                "the first loss's gradients were cleared before the second `backward()`: clear once an iteration"
            )
    if turn:
        raise Wrong(
            f"the {name} optimizer's gradients are not those of this iteration alone: clear those of both optimizers, "
            "once an iteration, skipped or not"
        )
    raise Wrong(f"the {name} optimizer's gradients are not those of the sum of both losses")


# What is planted into either head's gradients, and the limit as a share of the norm.
_TURNS = (
    ((1.0, 1.0), 0.4),
    ((1.0, 1.0), 2.0),
    ((1.0, NAN), 0.5),
    ((1.0, 1.0), 0.5),
    ((INF, 1.0), 0.5),
    ((1.0, 1.0), 0.3),
)


def judge_clip_both(answer: Callable[..., Any]) -> None:
    """`clip_both(optimizers, scaler, max_norm)`, after `backward()` → the true gradients' norm before clipping."""
    pair = Pair(fresh())
    for turn, (planted, share) in enumerate(_TURNS):
        _play_clipping(answer, pair, turn, planted, share)


def _play_clipping(
    answer: Callable[..., Any], pair: Pair, turn: int, planted: tuple[float, float], share: float
) -> None:
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
        _explain_exception(error, pair)
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
        _check_clean_turn(pair, true, norm, norm * share, scale, taken)
    else:
        _check_bad_turn(pair, planted, taken)
    _check_norm(got, norm, scale, planted)


def _check_bad_turn(pair: Pair, planted: tuple[float, float], taken: list[int]) -> None:
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


def _check_clean_turn(
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


def _check_norm(got: Any, norm: float, scale: float, planted: tuple[float, float]) -> None:
    value = number(got, "the norm")
    if planted != (1.0, 1.0) or abs(value - norm) <= 0.02 * norm:
        return
    if abs(value - norm * scale) <= 0.02 * norm * scale:
        raise Wrong(f"the norm that you return is that of the scaled gradients, {scale:,.0f} times too large")
    raise Wrong(f"the norm of all gradients before clipping is {norm:.4g}, and you return {value:.4g}")


def _explain_exception(error: Exception, pair: Pair) -> None:
    """Say what is behind the messages that torch has for two losses and two optimizers; return for any other."""
    text, updates = str(error), pair.notes.count()["update"]
    if "backward through the graph a second time" in text:
        raise Wrong(
            "the two losses share the body's graph, and the first `backward()` freed it. Keep it for the second one, "
            "`scaler.scale(loss_a).backward(retain_graph=True)`, or call `backward()` once, on the sum"
        ) from error
    if "already been called" in text and updates == 0 < sum(pair.steps()):
        raise Wrong(
            "`scaler.update()` is missing: the scaler still thinks itself in the first iteration. Call it once, after "
            "both steps"
        ) from error
    if "already been called" in text:
        raise Wrong(
            f"torch raised: {text.split('.')[0]}. Each optimizer is unscaled once and stepped once before the one "
            "`update()`"
        ) from error
