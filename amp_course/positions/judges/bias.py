"""Judge ALiBi biases: exact for drawn positions far out, for slopes that are no powers of two, and under autocast."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP16, FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.checking import Wrong
from amp_course.checking.values import tensor_like
from amp_course.positions.alibi import alibi_slopes, bias_from_cast_ids

Case = tuple[Tensor, Tensor, Tensor, bool]  # slopes, queries, keys, autocast


def judge(answer: Callable[..., Any]) -> None:
    """`alibi(slopes, queries, keys)` → −slope · distance in float32, exact to the last bit where key ≤ query."""
    for slopes, queries, keys, autocast in _cases():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            raw = answer(slopes.clone(), queries.clone(), keys.clone())
        shape = torch.Size([len(slopes), len(queries), len(keys)])
        _compare(tensor_like(raw, shape, "the bias (heads, queries, keys)"), (slopes, queries, keys, autocast))


def _cases() -> Iterator[Case]:
    draw = random.Random()
    for low, high in ((0, 0), (3_000, 60_000), (70_000, 900_000)):
        queries, keys = _positions(draw, low, high)
        # Where bf16 and fp16 give the same bias, no one could tell which of them an answer used.
        while low and torch.equal(*(_from_cast_ids(queries, keys, fmt) for fmt in (BF16, FP16))):
            queries, keys = _positions(draw, low, high)
        for heads in (8, 12):
            for autocast in (False, True):
                yield alibi_slopes(heads), queries, keys, autocast
        yield alibi_slopes(8).bfloat16(), queries, keys, True  # as a model cast to bf16 hands them over


def _positions(draw: random.Random, low: int, high: int) -> tuple[Tensor, Tensor]:
    first = draw.randint(low, high)
    far = max(0, first - draw.randint(600, 2_500))
    return first + 10 + torch.arange(6), torch.cat([far + torch.arange(5), first + torch.arange(16)])


def _from_cast_ids(queries: Tensor, keys: Tensor, fmt: FloatFormat) -> Tensor:
    seen = keys[None, :] <= queries[:, None]
    return bias_from_cast_ids(torch.ones(1), queries, keys, fmt)[0][seen]


def _compare(got: Tensor, case: Case) -> None:
    slopes, queries, keys, autocast = case
    exact = -slopes.double()[:, None, None] * (queries[:, None] - keys[None, :])
    seen = (keys[None, :] <= queries[:, None]).expand_as(exact)
    where = f"at positions around {int(queries[0]):,}{', under bf16 autocast' if autocast else ''}"
    if got.dtype == torch.float64:
        raise Wrong("float64 came out: attention scores are float32 at most, and so is the bias that is added to them")
    if got.dtype == torch.float32 and torch.equal(got[seen], exact.float()[seen]):
        return
    raise Wrong(_why(got.double()[seen], got.dtype, case, exact[seen], seen, where))


def _why(got: Tensor, dtype: torch.dtype, case: Case, exact: Tensor, seen: Tensor, where: str) -> str:
    slopes, queries, keys, _ = case
    if dtype != torch.float32:
        return (
            f"{where}, {str(dtype).removeprefix('torch.')} came out. cos and sin may be cast last, since they stay below 1; a "
            f"bias grows with distance, and past {2 / BF16.eps:,.0f} steps its neighbours become one. Leave it float32"
        )
    if got.isnan().any() or got.isinf().any():
        return f"{where}, NaN or inf came out: a position overflowed, as those past 65,519 do in fp16"
    if torch.equal(got, -exact) and exact.any():
        return "the bias is positive, so that far keys are preferred: it is minus slope times distance"
    key_only = (slopes.double()[:, None, None] * keys).expand_as(seen)[seen]
    if torch.allclose(got, key_only):
        return (
            "you return slope · key. That differs from the bias by a constant per query, so softmax does not mind; but "
            "the task asks for 0 at distance 0, and the large numbers cost digits in every later step"
        )
    distance = (queries[:, None] - keys[None, :]).double()
    for fmt in (BF16, FP16):
        if torch.equal(got, bias_from_cast_ids(slopes, queries, keys, fmt).double()[seen]):
            return (
                f"{where}, the positions were rounded to {fmt.name} before they were subtracted, and neighbours became one: "
                "subtract the integers"
            )
        if torch.equal(got, (-slopes.double()[:, None, None] * round_to(distance, fmt))[seen]):
            return (
                f"{where}, the distance was rounded to {fmt.name}: it is exact only to {2 / fmt.eps:,.0f}. Multiply the "
                "integer distance with `slopes.float()`"
            )
    if torch.equal(got, round_to(got, BF16)) and not torch.equal(exact, round_to(exact, BF16)):
        return (
            f"{where}, every number that came out is a bf16 number. Either it was cast on the way, or it comes from a matmul "
            "or einsum, which autocast runs in bf16: multiply elementwise, in float32"
        )
    off = (got - exact).abs().max().item()
    if off < 0.01 * exact.abs().max().item():
        return (
            f"{where}, some are off in their last digits, by up to {off:.2g}: two rounded products were subtracted, or one "
            "was rounded twice. Subtract the integer positions first, then multiply once"
        )
    return f"{where}, they are off by up to {off:.2g}: the bias of a key is minus slope times (query − key)"
