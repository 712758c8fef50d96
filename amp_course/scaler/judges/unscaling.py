"""Judge unscaling: every gradient divided, in float32, in place, and every inf and NaN found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.values import fresh

INF, NAN = float("inf"), float("nan")
_SHAPES = ((3, 4), (5,), (2, 2), (6,))  # the third parameter has no gradient; the last two are a group of their own


def judge(answer: Callable[..., Any]) -> None:
    """`unscale_and_check(optimizer, scale)` → found, the gradients divided: bit for bit as torch's scaler does it."""
    generator = fresh()
    # Nothing at all, then each kind of bad number in the first gradient, then the other places: so that a find that is
    # missing tells what is overlooked, the kind or the place.
    for place, bad in ((None, 0.0), (0, INF), (0, NAN), (0, -INF), (1, INF), (3, INF), (3, NAN), (3, -INF)):
        _one(answer, generator, place, bad)


def _scene(parameters: list[Tensor], gradients: list[Tensor | None]) -> torch.optim.Optimizer:
    held = [nn.Parameter(value.clone()) for value in parameters]
    for parameter, gradient in zip(held, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    return torch.optim.SGD([{"params": held[:2]}, {"params": held[2:]}], lr=0.1)


def _held(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _one(answer: Callable[..., Any], generator: torch.Generator, place: int | None, bad: float) -> None:
    scale = 2.0 ** int(torch.randint(8, 17, (), generator=generator))
    weights = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    scaled: list[Tensor | None] = []
    for number, shape in enumerate(_SHAPES):
        exponent = torch.randint(-22, 12, shape, generator=generator).float()
        scaled.append(None if number == 2 else torch.randn(shape, generator=generator) * 2.0**exponent)
    largest = torch.finfo(torch.float32).max
    scaled[1] = torch.tensor([0.9 * largest, 0.8 * largest, 1e-7, -3.0, 2e5])  # finite, and so they have to stay
    if place is not None:
        victim = scaled[place]
        assert victim is not None
        victim.view(-1)[int(torch.randint(victim.numel(), (), generator=generator))] = bad
    wanted = _scene(weights, scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    scaler.unscale_(wanted)
    optimizer = _scene(weights, scaled)
    parameters = _held(optimizer)
    try:
        got = answer(optimizer, scale)
    except (AttributeError, TypeError) as error:
        if "NoneType" in str(error):
            raise Wrong(
                "one of the parameters has no gradient (`parameter.grad` is None), as those of a frozen layer or of one that "
                "was not used: pass it over"
            ) from error
        raise
    if any(parameters[n].grad is None and scaled[n] is not None for n in range(len(_SHAPES))):
        raise Wrong("a gradient that was there is None now: unscaling changes gradients and does not clear them")
    if parameters[2].grad is not None:
        raise Wrong("a parameter that had no gradient has one now: pass over what is None")
    for parameter, weight in zip(parameters, weights, strict=True):
        if not torch.equal(parameter.detach(), weight):
            raise Wrong(
                "the **parameters** were divided by the scale, and they never were multiplied: what carries the scale is "
                "`parameter.grad`"
            )
    _about_gradients(parameters, _held(wanted), scaled, scale, place is not None)
    _about_found(_truth(got), place, bad)


def _about_gradients(
    got: list[nn.Parameter], wanted: list[nn.Parameter], scaled: list[Tensor | None], scale: float, bad: bool
) -> None:
    there = [n for n, gradient in enumerate(scaled) if gradient is not None]
    if any(got[n].grad is not None and got[n].grad.dtype != torch.float32 for n in there):  # type: ignore[union-attr]
        raise Wrong("a gradient is not float32 any more: it has its parameter's dtype, and the step reads it so")

    def alike(n: int, other: Tensor | None) -> bool:
        mine = got[n].grad
        return mine is not None and other is not None and torch.allclose(mine, other, rtol=0, atol=0, equal_nan=True)

    right = [n for n in there if alike(n, wanted[n].grad)]
    untouched = [n for n in there if alike(n, scaled[n])]
    if right == there:
        return
    if untouched == there:
        raise Wrong(
            "the gradients are what they were: `gradient = gradient / scale` makes a new tensor and leaves `parameter.grad` "
            "alone. Divide in place, `parameter.grad.div_(scale)`"
        )
    if untouched and len(right) + len(untouched) == len(there):
        if bad:
            raise Wrong(
                f"{len(untouched)} of {len(there)} gradients still carry the scale: you stop once an inf or NaN is found. "
                "Unscale all of them first, or the others stay half done; note what you find, and return at the end"
            )
        if untouched == [3]:
            raise Wrong(
                "the second parameter group still carries the scale: an optimizer may have several, "
                "`for group in optimizer.param_groups: for parameter in group['params']: …`"
            )
        raise Wrong(
            f"{len(untouched)} of {len(there)} gradients still carry the scale: a `return` or `break` in the loop?"
        )
    for n in there:
        mine, before = got[n].grad, scaled[n]
        assert mine is not None and before is not None
        if n in right:
            continue
        if alike(n, (before.half() / scale).float()) or alike(n, (before / scale).half().float()):
            lost = int(((mine == 0) & (before != 0)).sum())
            raise Wrong(
                f"the gradients went through fp16, and {lost} of {before.numel()} in one of them are 0 again, "
                "while what is large becomes inf: that is what the scale had saved them from. Divide in float32"
            )
        if alike(n, before / scale / scale):
            raise Wrong(f"the gradients are {scale:,.0f} times too small: they were divided by the scale twice")
        if alike(n, before * scale):
            raise Wrong("the gradients were multiplied by the scale once more: divide by it")
        if not before.isfinite().all() and mine.isfinite().all():
            raise Wrong("an inf or NaN was replaced by a number: report it and leave it, the step is skipped anyway")
    raise Wrong("the gradients are not those that went in, divided by the scale, to the last bit")


def _truth(got: Any) -> bool:
    if got is None:
        raise Wrong("your function returned None: give back whether an inf or NaN was found")
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, (bool, int, float)) or got not in (0, 1):
        raise Wrong(
            f"your function returned a {type(got).__name__}: give back True or False, whether inf or NaN was found"
        )
    return bool(got)


def _about_found(found: bool, place: int | None, bad: float) -> None:
    if place is None:
        if found:
            raise Wrong(
                "all gradients were finite and you found something. A sum or a norm of large finite numbers can overflow "
                "too: ask each element, `torch.isfinite(gradient).all()`"
            )
        return
    if found:
        return
    if bad != bad:
        raise Wrong(
            "a NaN was missed: NaN is not inf, and every comparison with it is false. `torch.isfinite` finds both"
        )
    if bad < 0:
        raise Wrong("a −inf was missed: compare sizes (`.abs()`), or ask `torch.isfinite`")
    where = ("first", "second", "third", "last")[place]
    raise Wrong(f"an inf in the {where} parameter's gradient was missed: one bad element anywhere is enough to skip")
