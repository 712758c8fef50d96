"""Judge a step with two losses and two optimizers under one scaler: who stepped, with which gradient, how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from amp_course.checking import Wrong
from amp_course.checking.values import fresh
from amp_course.patterns.judges.gradients import near
from amp_course.patterns.judges.pair import INF, NAN, Pair, about_exception

# What is planted into the gradients of the two heads, iteration by iteration.
_PLANTED = ((1.0, 1.0), (1.0, INF), (1.0, 1.0), (NAN, 1.0), (1.0, 1.0), (1.0, 1.0))


def judge(answer: Callable[..., Any]) -> None:
    """`train_step(body, heads, inputs, targets, loss_fn, optimizers, scaler)`: both losses, both steps, one update."""
    pair = Pair(fresh())
    for number, planted in enumerate(_PLANTED):
        _play(answer, pair, number, planted)


def _play(answer: Callable[..., Any], pair: Pair, number: int, planted: tuple[float, float]) -> None:
    inputs, targets = pair.draw()
    pair.plant = [*planted]
    scale, before, true = pair.scaler.get_scale() or pair.scale, pair.steps(), pair.true(inputs, targets)
    apart = [pair.true(inputs, targets, shares)[0] for shares in ((1.0, 0.0), (0.0, 1.0))]
    try:
        answer(pair.body, pair.heads, inputs, targets, pair.loss_fn, pair.optimizers, pair.scaler)
    except (AssertionError, RuntimeError) as error:
        about_exception(error, pair)
        raise
    _about_passes(pair, number + 1, scale)
    _about_scaler(pair, number + 1)
    for place in range(2):
        taken = pair.steps()[place] - before[place]
        _about_step(place, taken, number)
        if taken:
            _about_gradient(pair, place, true, apart, scale, number)


def _about_passes(pair: Pair, turns: int, scale: float) -> None:
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


def _about_scaler(pair: Pair, turns: int) -> None:
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


def _about_step(place: int, taken: int, number: int) -> None:
    name, other = ("first", "second") if place == 0 else ("second", "first")
    bad = not abs(_PLANTED[number][place]) < INF
    if not bad and not taken and number and not abs(_PLANTED[number - 1][place]) < INF:
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


def _about_gradient(pair: Pair, place: int, true: list[Tensor], apart: list[Tensor], scale: float, number: int) -> None:
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
    if number:
        raise Wrong(
            f"the {name} optimizer's gradients are not those of this iteration alone: clear those of both optimizers, "
            "once an iteration, skipped or not"
        )
    raise Wrong(f"the {name} optimizer's gradients are not those of the sum of both losses")
