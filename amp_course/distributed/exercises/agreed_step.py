"""Exercise 3 of chapter 10: step on all ranks or on none."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from amp_course.checking import Card, Case, Exercise, Mistake, families, read_bool
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
    task="Write `agreed_step(optimizer, scale)` for sharded weights: every rank holds different "
    "ones, and `.grad` holds this rank's own gradients, `scale` times too large. Divide them by "
    "`scale`, then step. But if a gradient on **any** rank holds an inf or a NaN, no rank "
    "may step. Return whether the step was taken, which is the same on all ranks. A parameter may "
    "have no gradient, and on some rank perhaps none has one. After a skipped step, the contents "
    "of `.grad` do not matter.",
    hints=(
        "Each rank knows whether its own gradients are finite. Before any rank steps, all have to "
        "know about the others.",
        "Put 1.0 into a tensor if this rank found an inf or a NaN, else 0.0, and call "
        "`dist.all_reduce` on it, on every rank, with `op=dist.ReduceOp.MAX`.",
        "`found = torch.tensor(float(any(not g.isfinite().all() for g in grads)))`, "
        "`dist.all_reduce(found, op=dist.ReduceOp.MAX)`; step if `found` is 0, and return that.",
    ),
    why="With sharded gradients, no rank sees an inf on another. Unless they agree, one steps and "
    "the other skips, and from then on their shards no longer belong to one model.",
    alternative="`dist.ReduceOp.SUM` and `found == 0`: the sum of several flags is more than 1, "
    "so compare with 0.",
)


def right(optimizer: Optimizer, scale: float) -> bool:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in parameters if p.grad is not None]
    for grad in grads:
        grad.div_(scale)
    found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if found == 0:
        optimizer.step()
    return found.item() == 0


# What the gradients of rank 0 and of rank 1 hold
FINE, INF, NEGATIVE, NAN = "finite gradients", "an inf", "a -inf", "a NaN"
NONE, ONE_NONE, HUGE = (
    "no gradients",
    "one parameter without a gradient",
    "finite gradients of 3e38",
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


def on_rank(answer: Callable[..., Any], seed: int) -> list[Case]:
    """Step this rank's part of the weights in all cases."""
    rank, found = dist.get_rank(), []
    generator = torch.Generator().manual_seed(seed + rank)
    for step, holds in enumerate(CASES, 1):
        shard = [nn.Parameter(torch.ones(3 + rank)), nn.Parameter(torch.zeros(2, 2 - rank))]
        groups: list[dict[str, Any]] = [{"params": shard[:1]}, {"params": shard[1:], "lr": 0.25}]
        optimizer = SGD(groups, lr=0.5)
        scale = 2.0 if HUGE in holds else 2.0 ** (8 + step % 3)
        own = holds[rank]
        for place, weight in enumerate(shard):
            if own == NONE or (own == ONE_NONE and place == step % 2):
                continue
            weight.grad = grad = torch.randn(weight.shape, generator=generator) * scale
            if own == HUGE:
                grad.fill_(3e38)[0] = 2e38  # times the scale still
            if own in (INF, NEGATIVE, NAN) and place == step % 2:
                grad.view(-1)[-1] = float(own.split()[1])
        case = f"with {holds[0]} on rank 0 and {holds[1]} on rank 1"
        stepped = read_bool(call_on_rank(answer, case, optimizer, scale), case)
        outputs = {
            "the parameter": [weight.detach().clone() for weight in shard],
            "the return value": stepped,
        }
        found.append(Case(case, outputs, evidence={"returned": stepped}))
    return found


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Finite gradients, inf and NaN on either rank or both, a rank without gradients."""
    yield from cases_on_ranks(on_rank, answer, draw.randrange(10_000))


PARAMETERS = 'parameters = [p for group in optimizer.param_groups for p in group["params"]]'
FOR, DIVIDE = "for grad in grads:", "grad.div_(scale)"
FOUND = "found = torch.tensor(float(any(not grad.isfinite().all() for grad in grads)))"
REDUCE = "dist.all_reduce(found, op=dist.ReduceOp.MAX)"
IF, STEP, RETURN = "if found == 0:", "optimizer.step()", "return found.item() == 0"
AGREE = f"`{REDUCE}` tells every rank"

mistakes = [
    Mistake(
        "no agreement",
        f"each rank decides by its own gradients, so one steps and one skips. Before the step, "
        f"{AGREE}",
        edits={REDUCE: "pass"},
        violates="if a gradient on **any** rank",
    ),
    Mistake(
        "adds up and compares with 1",
        "the flags are added up, and the sum is compared with 1, but it is 2 if both ranks found "
        "an inf: reduce with MAX, or compare with 0",
        edits={
            REDUCE: "dist.all_reduce(found)",
            IF: "if found != 1:",
            RETURN: "return found.item() != 1",
        },
    ),
    Mistake(
        "reduces after the step",
        "each rank decides alone, and they agree only after the step: reduce `found` first, then "
        "decide",
        edits={STEP: REDUCE, IF: "if True:", REDUCE: f"{IF}\n    {STEP}"},
        violates="no rank may step",
    ),
    Mistake(
        "steps whatever was found",
        "the optimizer steps even if a rank found an inf or a NaN: decide first, then step or skip",
        edits={IF: "if True:"},
    ),
    Mistake(
        "reduces to rank 0",
        f"only rank 0 knows what all ranks found, as after `dist.reduce`, and the others decide by "
        f"what they found themselves: {AGREE}",
        edits={REDUCE: "dist.reduce(found, dst=0, op=dist.ReduceOp.MAX)"},
    ),
    Mistake(
        "rank 0 decides",
        f"rank 0 decides for all by its own gradients, so an inf on another rank goes into the "
        f"weights: {AGREE}",
        edits={REDUCE: "dist.broadcast(found, src=0)"},
    ),
    Mistake(
        "skips only if all found one",
        "the step is skipped only if every rank has found an inf, as after a reduction with MIN "
        "or with the mean of the flags: one rank is enough, so reduce with MAX",
        edits={REDUCE: "dist.all_reduce(found, op=dist.ReduceOp.MIN)"},
    ),
    Mistake(
        "reduces only where an inf was found",
        "only a rank that found an inf calls the all-reduce, and waits there forever: every rank "
        "has to call it, every time",
        edits={REDUCE: f"if found:\n    {REDUCE}"},
    ),
    Mistake(
        "a rank with an inf leaves",
        "a rank that found an inf does not call the all-reduce, and the other waits there "
        "forever: it has to take part, with the flag 1",
        edits={
            FOR: "if any(not grad.isfinite().all() for grad in grads):\n    return False\n" + FOR
        },
    ),
    Mistake(
        "an empty rank leaves",
        "a rank without gradients does not call the all-reduce, and the other waits there "
        "forever: it has to take part, with the flag 0",
        edits={FOR: f"if not grads:\n    return False\n{FOR}"},
        violates="on some rank perhaps none has one",
    ),
    Mistake(
        *families.MISSES_INF,
        edits={FOUND: "found = torch.tensor(float(any(grad.isnan().any() for grad in grads)))"},
        violates="holds an inf or a NaN",
    ),
    Mistake(
        *families.MISSES_NAN,
        edits={FOUND: "found = torch.tensor(float(any(grad.isinf().any() for grad in grads)))"},
    ),
    Mistake(
        *families.JUDGES_BY_THE_NORM,
        edits={
            FOUND: "squares = torch.as_tensor(sum(grad.square().sum() for grad in grads))\n"
            "found = (~squares.isfinite()).float()"
        },
    ),
    Mistake(
        "MAX of the gradients",
        "the largest gradient is reduced with MAX, which loses a NaN, since no comparison with "
        "NaN is true: reduce a flag instead, 1 for an inf or a NaN and 0 for none",
        edits={
            FOUND: "found = torch.stack([torch.zeros(()), *(g.abs().max() for g in grads)]).max()",
            IF: "if found.isfinite():",
            RETURN: "return bool(found.isfinite())",
        },
    ),
    Mistake(
        "does not unscale",
        "the gradients are still `scale` times too large at the step: divide them by `scale` first",
        edits={DIVIDE: "pass"},
        violates="Divide them by `scale`",
    ),
    Mistake(
        "multiplies by the scale",
        "you multiply the gradients by `scale` once more: divide them by it",
        edits={DIVIDE: "grad.mul_(scale)"},
    ),
    Mistake(
        "looks at the first gradient only",
        "inf is missed in any gradient but the first. Test all of them",
        edits={FOUND: "found = torch.tensor(float(bool(grads) and not grads[0].isfinite().all()))"},
    ),
    Mistake(
        "first group only",
        "you use only the first of the optimizer's parameter groups: go through all of "
        "`optimizer.param_groups`",
        edits={PARAMETERS: PARAMETERS.replace("groups", "groups[:1]")},
    ),
    Mistake(
        "returns whether it was skipped",
        "you return True for a skipped step: return True if it was taken",
        edits={RETURN: "return found.item() != 0"},
        violates="Return whether the step was taken",
    ),
    Mistake(
        "averages the gradients",
        "the gradients themselves are reduced, but each rank has those of other weights (here even "
        "of other shapes): reduce only the flag",
        edits={DIVIDE: "grad.div_(scale); dist.all_reduce(grad)"},
    ),
    Mistake(
        "returns what this rank found",
        "the step is right, but you return what this rank found, which differs between the ranks: "
        "return what they agreed on",
        edits={FOUND: f"{FOUND}\nmine = found.item()", RETURN: "return mine == 0"},
        violates="the same on all ranks",
    ),
]

agreed_step = Exercise(card, right, cases, mistakes, tolerance=1e-5)
