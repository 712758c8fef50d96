"""Judge a repaired RoPE by what comes out of it: in three dtypes, with and without autocast, near and far."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FloatFormat, find_format
from amp_course.checking import Wrong
from amp_course.checking.values import fresh, tensor_like
from amp_course.positions.rope import Rope, exact_angles, turned

_DTYPES = (  # of x, and whether under autocast to bf16, which on a CPU takes no fp16 inputs
    (torch.float32, False),
    (torch.float32, True),
    (torch.bfloat16, False),
    (torch.bfloat16, True),
    (torch.float16, False),
)
_TOLERANCE = {torch.float32: 0.02, torch.bfloat16: 0.1, torch.float16: 0.02}  # for drawn numbers of size 1 to 4


@dataclass(frozen=True)
class Case:
    """One call: drawn x (batch, heads, n, d) in a dtype, positions (n,), with autocast to bf16 or without."""

    x: Tensor
    positions: Tensor
    autocast: bool

    @property
    def where(self) -> str:
        """The call in words."""
        dtype = str(self.x.dtype).removeprefix("torch.")
        return f"for {dtype} x{' under bf16 autocast' if self.autocast else ''}, positions to {int(self.positions.max()):,}"


def judge(answer: Callable[..., Any]) -> None:
    """`rope(x, positions)` → x turned, in the dtype of x, for drawn x and positions."""
    for case in _cases():
        before = case.x.clone()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.autocast):
            got = tensor_like(answer(case.x, case.positions), case.x.shape, "the turned x")
            if torch.is_autocast_enabled("cpu") != case.autocast:
                raise Wrong(
                    "your function leaves autocast switched, and the rest of the model runs in that: put `with "
                    "torch.autocast(…, enabled=False):` around the lines that need it, which switches back"
                )
        if not torch.equal(case.x, before):
            raise Wrong("your function changed x itself: the caller still needs it, so return a new tensor")
        _compare(got, case)


def _cases() -> Iterator[Case]:
    generator, draw = fresh(), random.Random()
    size = 2 * draw.randint(8, 32)
    for first in (0, draw.randint(2_000, 9_000)):  # near first: what is wrong there is no matter of digits
        positions = first + torch.arange(24)
        # One draw for all: what passes by luck outside of autocast passes inside too, and is not put down to autocast.
        x = torch.randn(2, 3, 24, size, generator=generator)
        for dtype, autocast in _DTYPES:
            yield Case(x.to(dtype), positions, autocast)


def _compare(got: Tensor, case: Case) -> None:
    x = case.x
    if got.dtype != x.dtype:
        leak = "q and k would carry it into attention, where v waits in the narrow one: cast last, `.to(x.dtype)`"
        kept = "cast the result to `x.dtype`, whatever was computed in between"
        came = str(got.dtype).removeprefix("torch.")
        raise Wrong(f"{case.where}, {came} came out: {leak if got.dtype == torch.float32 else kept}")
    angles = exact_angles(case.positions, x.shape[-1])
    right = turned(x.double().float(), angles.cos(), angles.sin()).double()
    worst = _distance(got, right)
    # At the first positions an error of digits is faint, and its cause hard to tell: the far ones will show it.
    if worst <= _TOLERANCE[x.dtype] * (1 if case.positions[0] else 4):
        return
    if got.isnan().any():
        raise Wrong(f"{case.where}, NaN came out: is there a position or an angle that overflows in its dtype?")
    told = f"{case.where}, the result is off by {worst:.2g}"
    near = [(_distance(got, mistaken), name) for name, mistaken in _mistakes(case)]
    nearest = min(off for off, _ in near)
    # A result that comes from a mistake lies much nearer to it than to the right one. Of equals the first is told.
    if nearest < 0.25 * worst:
        raise Wrong(f"{told}: {next(name for off, name in near if off <= nearest + 0.02 * worst)}")
    raise Wrong(
        f"{told}: the turn of channel pair (c, c + d/2) at position p is p · 10000^(−2c/d), as in the code you were given"
    )


def _distance(got: Tensor, wanted: Tensor) -> float:
    return (got.double() - wanted.double()).abs().max().item()


def _mistakes(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Give each known mistake, in words, with what it makes of this case."""
    size, positions, low = case.x.shape[-1], case.positions, _low_format(case)
    product = "and what is lost there no `.float()` on the result brings back. "
    if case.autocast:
        yield (
            "the outer product of positions and frequencies is a matmul, which autocast runs in bf16 although both sides "
            f"are float32, {product}Multiply elementwise, `positions[:, None] * frequencies`, or switch autocast off "
            "around it",
            _turn(case, Rope(size, fault="matmul", fmt=BF16).angles(positions)),
        )
    if low is not None:
        name = low.name
        yield (
            f"the position ids were cast to {name}, where neighbours become one: keep them integers and use "
            "`positions.float()`",
            _turn(case, Rope(size, fault="ids", fmt=low).angles(positions)),
        )
        yield (
            f"the inverse frequencies were cast to {name}: an error of one part in {2 / low.eps:,.0f} is multiplied by the "
            "position. Compute them with dtype=torch.float32",
            _turn(case, Rope(size, fault="frequencies", fmt=low).angles(positions)),
        )
        yield (
            f"the angles were cast to {name} before cos and sin: thousands of radians have no digits left there for a "
            "fraction of a turn. Cast after cos and sin",
            _turn(case, Rope(size, fault="angles", fmt=low).angles(positions)),
        )
        both = Rope(size, fault="frequencies", fmt=low).inverse_frequencies()
        ids = positions.to(case.x.dtype if case.x.dtype != torch.float32 else torch.bfloat16)
        yield (
            f"position ids, frequencies and angles are all in {name}, the dtype of x: {product}Compute them in float32 "
            "and cast last",
            _turn(case, (ids[:, None] * both.to(ids.dtype)).float()),
        )
        yield (
            f"position ids and inverse frequencies were both cast to {name}: their product is wrong in whatever dtype",
            _turn(case, ids.float()[:, None] * both),
        )
    pairs = case.x.double().unflatten(-1, (-1, 2)).flip(-1)
    angles = exact_angles(positions, size)
    cos, sin = angles.cos(), angles.sin()
    first, second = pairs[..., 1], pairs[..., 0]
    yield (
        "you turn channels 2c and 2c + 1 together. That is a RoPE too (GPT-J's), but the code you were given pairs c with "
        "c + d/2, and trained weights depend on it",
        torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2),
    )
    yield "it turns the other way round: mind the sign of sin", _turn(case, -angles)


def _low_format(case: Case) -> FloatFormat | None:
    if case.x.dtype == torch.float32:
        return BF16 if case.autocast else None
    return find_format(case.x.dtype)


def _turn(case: Case, angles: Tensor) -> Tensor:
    return turned(case.x.float(), angles.cos(), angles.sin())
