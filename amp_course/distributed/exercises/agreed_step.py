"""Exercise 3 of chapter 10: step on all ranks or on none."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from amp_course.checking import Card, Case, Exercise, Mistake, read_bool
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks

card = Card(
    chapter="distributed",
    name="agreed_step",
    number=3,
    title="Step together or not at all",
    difficulty=3,
    importance=5,
    minutes=12,
    lines=8,
    task="Write `agreed_step(optimizer, scale)` for weights that are sharded: every rank holds "
    "others, and the gradients in `.grad` are this rank's own, `scale` times too large. Divide "
    "them by `scale`, then step; but if a gradient on **any** rank holds an inf or a NaN, no rank "
    "may step. Return whether the step was taken, which is the same on all ranks. A parameter may "
    "have no gradient, and on some rank perhaps none has one. After a skipped step, what is left "
    "in `.grad` does not matter.",
    hints=(
        "Each rank can tell whether its own gradients are finite. To decide, it has to know about "
        "the others, before anybody steps.",
        "Put 1.0 into a tensor if this rank found an inf or a NaN, else 0.0, and call "
        "`dist.all_reduce` on it, on every rank, with `op=dist.ReduceOp.MAX`.",
        "`found = torch.tensor(float(any(not g.isfinite().all() for g in grads)))`, "
        "`dist.all_reduce(found, op=dist.ReduceOp.MAX)`; step if `found` is 0, and return that.",
    ),
    why="Where gradients are sharded, no rank sees the inf of another. Unless they agree, one "
    "steps and the other skips, and from then on their shards are no longer parts of one model.",
    alternative="`dist.ReduceOp.SUM` and `found == 0`: the sum of several flags is more than 1, "
    "so compare with 0.",
)


def right(optimizer: Optimizer, scale: float) -> bool:
    grads = [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    for grad in grads:
        grad.div_(scale)
    found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found == 0:
        optimizer.step()
    return found.item() == 0


# What the gradients of rank 0 and of rank 1 hold
FINE, INF, NEGATIVE, NAN, NONE, ONE_NONE, HUGE = (
    "finite",
    "inf",
    "-inf",
    "nan",
    "no gradient",
    "one gradient missing",
    "huge",
)
CASES = (
    (FINE, FINE),
    (INF, FINE),
    (FINE, INF),
    (FINE, NAN),
    (INF, INF),
    (NONE, FINE),
    (NONE, INF),
    (FINE, NONE),
    (INF, NONE),
    (ONE_NONE, FINE),
    (NEGATIVE, ONE_NONE),
    (NAN, NAN),
    (FINE, NEGATIVE),
    (FINE, FINE),
    (HUGE, FINE),
)
TOLD = {
    FINE: "finite gradients",
    INF: "an inf",
    NEGATIVE: "a -inf",
    NAN: "a NaN",
    NONE: "no gradients",
    ONE_NONE: "one parameter without a gradient",
    HUGE: "finite gradients of 3e38",
}


def on_rank(answer: Callable[..., Any], seed: int) -> list[Case]:
    """Let the answer step this rank's part of the weights, case after case; return its turns."""
    rank, turns = dist.get_rank(), []
    generator = torch.Generator().manual_seed(seed + rank)
    for step, case in enumerate(CASES, 1):
        shard = [nn.Parameter(torch.ones(3 + rank)), nn.Parameter(torch.zeros(2, 2 - rank))]
        groups: list[dict[str, Any]] = [{"params": shard[:1]}, {"params": shard[1:], "lr": 0.25}]
        optimizer = SGD(groups, lr=0.5)
        scale = 2.0 if HUGE in case else 2.0 ** (8 + step % 3)
        for place, weight in enumerate(shard):
            if case[rank] != NONE and (case[rank] != ONE_NONE or place != step % 2):
                weight.grad = torch.randn(weight.shape, generator=generator) * scale
        if case[rank] == HUGE:
            for weight in shard:
                weight.grad = torch.full_like(weight, 3e38)  # times the scale still
        if case[rank] in (INF, NEGATIVE, NAN):
            bad = shard[step % 2].grad
            assert bad is not None
            bad.view(-1)[-1] = float(case[rank])
        feedback = f"with {TOLD[case[0]]} on rank 0 and {TOLD[case[1]]} on rank 1"
        stepped = read_bool(call_on_rank(answer, feedback, optimizer, scale), feedback)
        outputs = {
            "the parameter": [weight.detach().clone() for weight in shard],
            "the return value": stepped,
        }
        turns.append(Case(feedback, outputs, evidence={"returned": stepped}))
    return turns


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Finite gradients, inf and NaN on either rank or both, a rank without gradients."""
    yield from cases_on_ranks(on_rank, answer, draw.randrange(10_000))


def _reduces_only_if_found(optimizer: Optimizer, scale: float) -> bool:
    grads = [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    for grad in grads:
        grad.div_(scale)
    found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))
    if found:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return False
    optimizer.step()
    return True


def _leaves_early_without_gradients(optimizer: Optimizer, scale: float) -> bool:
    if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return False
    return right(optimizer, scale)


def _leaves_with_an_inf(optimizer: Optimizer, scale: float) -> bool:
    grads = [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    if any(not grad.isfinite().all() for grad in grads):
        return False
    return right(optimizer, scale)


def _first_group_alone(optimizer: Optimizer, scale: float) -> bool:
    grads = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
    for grad in grads:
        grad.div_(scale)
    found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found == 0:
        optimizer.step()
    return found.item() == 0


REDUCE = "dist.all_reduce(found, op=dist.ReduceOp.MAX)"
DIVIDE = "grad.div_(scale)"
FOUND = "found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))"
AGREE = "`dist.all_reduce(found, op=dist.ReduceOp.MAX)` tells every rank"

mistakes = [
    Mistake(
        "no agreement",
        f"each rank decides on its own gradients, so one steps and one skips. Before anybody "
        f"steps, {AGREE}",
        edits={REDUCE: "pass"},
        violates="if a gradient on **any** rank",
    ),
    Mistake(
        "adds up and compares with 1",
        "the flags are added up and the sum is compared with 1. If both ranks found an inf it is "
        "2: reduce with MAX, or compare with 0",
        edits={
            REDUCE: "dist.all_reduce(found)",
            "if found == 0:": "if found != 1:",
            "return found.item() == 0": "return found.item() != 1",
        },
    ),
    Mistake(
        "reduces after the step",
        "the ranks agree only after the step, which each of them has decided alone by then: "
        "reduce `found` first, then decide",
        edits={
            REDUCE: "if found == 0:\n    optimizer.step()",
            "if found == 0:": "if True:",
            "optimizer.step()": "dist.all_reduce(found, op=dist.ReduceOp.MAX)",
        },
        violates="no rank may step",
    ),
    Mistake(
        "only rank 0 knows",
        f"rank 0 alone knows what all ranks found, as after `dist.reduce`, and the others decide "
        f"by what they found themselves: {AGREE}",
        edits={REDUCE: "dist.reduce(found, dst=0, op=dist.ReduceOp.MAX)"},
    ),
    Mistake(
        "rank 0 decides",
        f"rank 0 decides for all by its own gradients, and the inf of another rank goes into the "
        f"weights: {AGREE}",
        edits={REDUCE: "dist.broadcast(found, src=0)"},
    ),
    Mistake(
        "skips only if all found one",
        "ranks skip only if each of them has found an inf, as a reduction with MIN or the mean of "
        "the flags gives it: one rank's is enough, so reduce with MAX",
        edits={REDUCE: "dist.all_reduce(found, op=dist.ReduceOp.MIN)"},
    ),
    Mistake(
        "reduces only where an inf was found",
        "only a rank that found an inf calls the all-reduce, and waits there forever: every rank "
        "has to call it, each time",
        answer=_reduces_only_if_found,
    ),
    Mistake(
        "a rank with an inf leaves",
        "a rank that found an inf returns before the all-reduce, and the other waits there "
        "forever: it has to tell the others, with the flag 1",
        answer=_leaves_with_an_inf,
    ),
    Mistake(
        "a rank without gradients leaves",
        "a rank without gradients returns before the all-reduce, and the other waits there "
        "forever: it has to take part, with the flag 0",
        answer=_leaves_early_without_gradients,
        violates="on some rank perhaps none has one",
    ),
    Mistake(
        "looks only for NaN",
        "an inf goes unseen: `isfinite()` is false for inf and for NaN",
        edits={FOUND: "found = torch.tensor(float(any(grad.isnan().any() for grad in grads)))"},
        violates="holds an inf or a NaN",
    ),
    Mistake(
        "looks only for inf",
        "a NaN goes unseen: `isfinite()` is false for inf and for NaN",
        edits={FOUND: "found = torch.tensor(float(any(grad.isinf().any() for grad in grads)))"},
    ),
    Mistake(
        "judges by the norm",
        "a step was skipped although all gradients are finite: their norm, or their sum, can be "
        "inf where none of them is. Ask `isfinite()` of the gradients themselves",
        edits={
            FOUND: "squares = sum((grad.square().sum() for grad in grads), torch.zeros(()))\nfound "
            "= torch.tensor(float(not squares.isfinite()))"
        },
    ),
    Mistake(
        "MAX of the gradients",
        "the largest gradient is reduced with MAX, and a NaN gets lost in it, since no comparison "
        "with NaN is true: let each rank reduce a flag, 1 for an inf or a NaN and 0 for none",
        edits={
            FOUND: "found = torch.stack([torch.zeros(()), *(grad.abs().max() for grad in "
            "grads)]).max()",
            "if found == 0:": "if found.isfinite():",
            "return found.item() == 0": "return bool(found.isfinite())",
        },
    ),
    Mistake(
        "does not unscale",
        "the gradients are still `scale` times too large when the optimizer takes its step",
        edits={DIVIDE: "pass"},
        violates="Divide them by `scale`",
    ),
    Mistake(
        "multiplies by the scale",
        "the gradients are multiplied by `scale`, which they already are: divide them by it",
        edits={DIVIDE: "grad.mul_(scale)"},
    ),
    Mistake(
        "the first gradient alone",
        "an inf in any gradient but the first goes unseen: test all of them",
        edits={FOUND: "found = torch.tensor(float(bool(grads) and not grads[0].isfinite().all()))"},
    ),
    Mistake(
        "the first group alone",
        "only the first of the optimizer's parameter groups is looked at: go through all of "
        "`optimizer.param_groups`",
        answer=_first_group_alone,
    ),
    Mistake(
        "returns whether it was skipped",
        "this returns True for a step that was skipped: return True if it was taken",
        edits={"return found.item() == 0": "return found.item() != 0"},
        violates="Return whether the step was taken",
    ),
    Mistake(
        "averages the gradients",
        "the gradients themselves are reduced. They belong to different weights on each rank, so "
        "they have nothing to do with each other (here their shapes even differ): only the flag "
        "travels",
        edits={DIVIDE: "grad.div_(scale); dist.all_reduce(grad)"},
    ),
    Mistake(
        "returns what this rank found",
        "the step is right, but the return value is what this rank found, so the ranks return "
        "different ones: return what they agreed on",
        edits={
            FOUND: FOUND + "\nmine = found.item()",
            "return found.item() == 0": "return mine == 0",
        },
        violates="the same on all ranks",
    ),
]

agreed_step = Exercise(card, right, cases, mistakes, tolerance=1e-5)
