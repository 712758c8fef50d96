"""Judge sums over many numbers: a softmax that survives, a total that does not stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import find_format
from amp_course.checking import Wrong
from amp_course.checking.values import fresh, tensor_like


def judge_softmax(answer: Callable[..., Any]) -> None:
    """`safe_softmax(logits, mask)`, both (rows, n), fp16 and bool → probabilities in fp16, rows of nothing all 0."""
    generator = fresh()
    rows, n = 6, 12
    mask = torch.rand(rows, n, generator=generator) < 0.6
    mask[:, :2] = torch.tensor([True, False])  # so that each row has one of both, but for these:
    mask[0], mask[1] = True, False
    level = torch.tensor([100.0, 100.0, -100.0, 0.0, 60.0, 100.0]).unsqueeze(1)
    logits = (level + 2 * torch.randn(rows, n, generator=generator)).half()
    logits[3, 1] = 100.0  # the largest of its row is masked
    order = torch.randperm(rows, generator=generator)
    logits, mask = logits[order], mask[order]
    given = (logits.clone(), mask.clone())
    got = tensor_like(answer(*given), logits.shape, "the softmax")
    if not (torch.equal(given[0], logits) and torch.equal(given[1], mask)):
        raise Wrong("your function changed the logits or the mask that were handed in: work on a copy")
    _compare_softmax(got, logits, mask)


def _compare_softmax(got: Tensor, logits: Tensor, mask: Tensor) -> None:
    empty = ~mask.any(dim=1)
    wide = logits.double()
    right = wide.masked_fill(~mask, -torch.inf).softmax(dim=1).nan_to_num(0.0)
    bad = ~got.isfinite().all(dim=1)
    if bad[~empty].any():
        low = wide.masked_fill(~mask, -torch.inf).amax(dim=1) < wide.max() - 50
        if not bad[~empty & ~low].any():
            raise Wrong(
                "a row whose logits lie far below those of the others came out as NaN: the maximum that is subtracted has to "
                "be the row's own, `logits.amax(dim=-1, keepdim=True)`"
            )
        raise Wrong(
            "there is NaN in a row of large logits: exp(100) is inf, in float32 too, and inf / inf is NaN. Subtract the row's "
            "maximum first: the quotient stays the same"
        )
    if bad.any():
        raise Wrong(
            "the row in which everything is masked came out as NaN: −inf − (−inf) is NaN, and so is 0 / 0. Fill with a finite "
            "number, `torch.finfo(dtype).min`, and set what is masked to 0 at the end"
        )
    got_wide = got.double()
    if torch.allclose(got_wide[empty], torch.full_like(got_wide[empty], 1 / logits.shape[1]), atol=1e-3):
        raise Wrong(
            "the row in which everything is masked gives equal shares to things that must not be seen: equal logits, equal "
            "shares. Set what is masked to 0 at the end"
        )
    seen = ~empty.unsqueeze(1)  # the faults below show in rows that have something to see
    inverted = wide.masked_fill(mask, -torch.inf).softmax(dim=1).nan_to_num(0.0)
    if _near(got_wide * seen, inverted * seen):
        raise Wrong("the mask is used the wrong way round: True marks what may be seen")
    if _near(got_wide * seen, wide.softmax(dim=1) * seen):
        raise Wrong("the mask has no effect: what is masked gets a share of 0")
    if _near(got_wide, wide.softmax(dim=1) * mask):
        raise Wrong(
            "the rows do not add up to 1: what is masked has to leave the sum before the division, not after it. Mask the "
            "logits, or divide by the sum once more"
        )
    if _near(got_wide, wide.masked_fill(~mask, -torch.inf).softmax(dim=0).nan_to_num(0.0)):
        raise Wrong("the columns add up to 1 and not the rows: use `dim=-1`")
    if got_wide[~mask].any():
        raise Wrong(f"something masked has a share of {got_wide[~mask].abs().max():.3g}: it has to be exactly 0")
    sums = got_wide.sum(dim=1)[~empty]
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-2):
        row = (~empty).nonzero()[(sums - 1).abs().argmax()]
        hidden = wide[row].amax() > wide[row].masked_fill(~mask[row], -torch.inf).amax() + 20
        cause = (
            ": the largest logit of that row is masked, and subtracting it takes all others to 0. Mask first, then take the "
            "maximum"
            if hidden
            else ": divide by the row's own sum"
        )
        raise Wrong(f"a row adds up to {sums[(sums - 1).abs().argmax()]:.3g} instead of 1{cause}")
    if not _near(got_wide, right):
        worst = (got_wide - right).abs().argmax()
        raise Wrong(f"a share is {got_wide.flatten()[worst]:.4f} and should be {right.flatten()[worst]:.4f}")
    if got.dtype != torch.float16:
        raise Wrong(
            f"the values are right, and their dtype is {str(got.dtype).removeprefix('torch.')}: give back what came in, "
            "`.to(logits.dtype)`, or the next matmul meets two dtypes"
        )


def _near(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, rtol=2e-2, atol=2e-3)


def judge_steady_sum(answer: Callable[..., Any]) -> None:
    """`steady_sum(terms)`, a list of equal fp16 or bf16 tensors → their sum, to a few roundings of that dtype."""
    generator = fresh()
    for dtype in (torch.float16, torch.bfloat16):
        count = int(torch.randint(4000, 5000, (), generator=generator))
        sizes = torch.tensor([1.0, 0.1, -1.0])
        terms = [row.to(dtype) for row in sizes * (0.9 + 0.2 * torch.rand(count, 3, generator=generator))]
        before = torch.stack(terms)
        got = tensor_like(answer(terms), terms[0].shape, "the sum")
        if len(terms) != count or not torch.equal(torch.stack(terms), before):
            raise Wrong(
                "your function changed the terms that were handed in: `total = terms[0]` and `total += …` write into the first "
                "one. Start from new zeros"
            )
        _compare_sum(got, before, dtype)


def _compare_sum(got: Tensor, terms: Tensor, dtype: torch.dtype) -> None:
    exact = terms.double().sum(dim=0)
    name = str(dtype).removeprefix("torch.")
    kind = str(got.dtype).removeprefix("torch.")
    few = 4 * find_format(dtype).eps
    if torch.allclose(got.double(), exact, rtol=few, atol=0):
        return
    if not got.isfinite().all():
        raise Wrong(f"the sum of {len(terms):,} terms of {name} came out as {got.tolist()}")
    if torch.allclose(got.double(), exact / len(terms), rtol=few):
        raise Wrong("this is the mean of the terms: the sum is asked for")
    if torch.allclose(got.double(), terms[0].double() * len(terms), rtol=1e-3):
        raise Wrong("this is the first term times their number, and the terms differ")
    stuck = _one_by_one(terms)
    close = torch.allclose(got.double(), stuck.double(), rtol=8 * few)
    if close and got.dtype == dtype:
        raise Wrong(
            f"the total stops growing at {got[0]:g}: it is kept in {name}, where one more term is less than half a step of it. "
            "Whatever dtype each addition runs in, the total must not be rounded to 16 bits in between"
        )
    if close:
        raise Wrong(
            f"the total stood still at {got[0]:g} before it was cast to {kind}: casting the result brings nothing back. Start "
            "from a float32 zero"
        )
    for other in (torch.float16, torch.bfloat16):
        if other != dtype and torch.allclose(got.double(), _one_by_one(terms.to(other)).double(), rtol=8 * few):
            raise Wrong(
                f"the total of {name} terms is kept in {str(other).removeprefix('torch.')}, another 16-bit dtype, and stands "
                f"still at {got[0]:g}: float32 has the digits"
            )
    if torch.allclose(got.double(), exact - terms[0].double(), atol=0.4, rtol=1e-6):
        raise Wrong("the first term is missing from the sum")
    raise Wrong(f"the sum of {len(terms):,} terms of {name} is {exact[0]:.1f}, and yours is {got[0].item():.1f}")


def _one_by_one(terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total
