"""Judge a test: it has to pass two right RoPEs, and to fail three that were shipped."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16
from amp_course.checking import Wrong
from amp_course.checking.explain import explain
from amp_course.positions.rope import turned

RopeFunction = Callable[[Tensor, Tensor], Tensor]
NEAR = 2 ** (BF16.significand_bits + 1)


class Watched:
    """A RoPE with a note of how it was asked: the farthest position, dtypes of x, whether under autocast."""

    def __init__(self, rope: RopeFunction) -> None:
        self.rope, self.calls, self.farthest = rope, 0, -1
        self.asked: set[tuple[torch.dtype, bool]] = set()

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        self.calls += 1
        self.farthest = max(self.farthest, int(positions.max()))
        self.asked.add((x.dtype, torch.is_autocast_enabled("cpu")))
        return self.rope(x, positions)


def right_ropes(base: float) -> dict[str, RopeFunction]:
    """Return two right RoPEs of different layouts: name → function."""

    def halves(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions.float()[:, None] * _frequencies(x, base)
        return turned(x, angles.cos(), angles.sin())

    def pairs(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions.double()[:, None] * _frequencies(x, base).double()
        complex_x = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(complex_x * torch.polar(torch.ones_like(angles), angles)).flatten(-2).to(x.dtype)

    return {"that pairs channels c and c + d/2": halves, "that pairs channels 2c and 2c + 1": pairs}


def broken_ropes(base: float) -> dict[str, RopeFunction]:
    """Return three RoPEs as they were shipped: what is wrong → function."""

    def ids(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions.to(torch.bfloat16).float()[:, None] * _frequencies(x, base)
        return turned(x, angles.cos(), angles.sin())

    def matmul(x: Tensor, positions: Tensor) -> Tensor:
        angles = (positions.float()[:, None] @ _frequencies(x, base)[None, :]).float()
        return turned(x, angles.cos(), angles.sin())

    def low(x: Tensor, positions: Tensor) -> Tensor:
        angles = (positions.float()[:, None] * _frequencies(x, base)).to(x.dtype)
        return turned(x, angles.cos(), angles.sin())

    return {
        "whose position ids are cast to bf16": ids,
        "whose outer product is a matmul": matmul,
        "whose cos and sin are computed in the dtype of x": low,
    }


def judge(answer: Callable[..., Any]) -> None:
    """`test_rope(rope)` → raises AssertionError for a broken RoPE and returns nothing for a right one."""
    base = random.choice((10_000.0, 100_000.0, 500_000.0))
    for name, rope in right_ropes(base).items():
        watched = Watched(rope)
        error = _run(answer, watched)
        if not watched.calls:
            raise Wrong("your test never calls the RoPE that it is given: `rope(x, positions)`")
        if error is not None:
            raise Wrong(
                f"your test fails a right RoPE, one {name}{_words(error)}. Compare scores q · k and not channels, which may "
                "be laid out in either way; and leave room for a bf16 result, good to 1 part in 100"
            )
    for name, rope in broken_ropes(base).items():
        watched = Watched(rope)
        if _run(answer, watched) is None:
            raise Wrong(f"your test passes a RoPE {name}: {_missing(name, watched)}")


def _run(answer: Callable[..., Any], rope: Watched) -> AssertionError | None:
    """Return the AssertionError that the test raised, or None if it passed; anything else is told."""
    try:
        returned = answer(rope)
    except AssertionError as error:
        return error
    except Exception as error:
        said = explain(error)
        raise Wrong(
            f"your test stopped with something that is no verdict. {said[:1].upper()}{said[1:]}. A test fails by `assert`; "
            "`rope` takes x (n, d) and positions (n,), integers"
        ) from error
    if returned is not None:
        raise Wrong(
            f"your test returned {type(returned).__name__}, and a runner such as pytest looks at no return value: a test "
            "that returns False passes. Write `assert`"
        )
    return None


def _missing(name: str, watched: Watched) -> str:
    dtypes = {dtype for dtype, _ in watched.asked}
    if watched.farthest <= NEAR:
        return (
            f"the farthest position that you asked for is {watched.farthest:,}, and up to {NEAR:,} bf16 holds every integer. "
            "Go to some thousands"
        )
    if "matmul" in name and not any(autocast for _, autocast in watched.asked):
        return "it is right in float32 and wrong under autocast, and you never called it in such a region"
    if "dtype of x" in name and not dtypes & {torch.bfloat16, torch.float16}:
        return "it is right for float32 x, and you gave it no other: training hands it bf16"
    return (
        "you looked where it is wrong and saw nothing. Shape, dtype and length of the vector survive every fault: compare "
        "the score q · k of a fixed offset, here and thousands of positions further, and keep the tolerance below a "
        "twentieth of |q| · |k|"
    )


def _words(error: AssertionError) -> str:
    text = " ".join(str(error).split())
    return f" (“{text[:80]}{'…' if len(text) > 80 else ''}”)" if text else ""


def _frequencies(x: Tensor, base: float) -> Tensor:
    return base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
