"""Exercise 3 of chapter 11: two ranks whose loss scales differ after some epochs."""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause, named_causes
from amp_course.debugging.clinic.scripts.uneven_ranks import train as faulty
from amp_course.debugging.clinic.trials import (
    DTYPE,
    IN_BF16,
    IN_FP32,
    NEVER_CLEARS,
    Recorded,
    cases_with_cause,
    describe_cause,
    draw_batches,
    draw_model,
)
from amp_course.distributed.ranks import call_on_rank

card = Card(
    chapter="debugging",
    name="uneven_ranks",
    number=3,
    title="Two loss scales",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=12,
    task="Write `uneven_ranks(model, epochs, optimizer, scaler)`, a `train` without the fault. It "
    "runs on both ranks; `epochs` holds this rank's list of batches for each epoch, and which "
    "rank has more may change. In each epoch, **every** rank trains on as many of its batches as "
    "the rank with the fewest has, the first ones, under fp16 autocast, with one update per "
    "batch. `model` is wrapped in DDP. Name the fault in its first line, with `cause(…)`.",
    hints=(
        "When does a scaler double its scale? Who calls `update()` on a rank that has run out of "
        "batches?",
        "No rank knows how many batches the others have. Before each epoch, let them agree on a "
        "number.",
        "`count = torch.tensor(len(batches))`, `dist.all_reduce(count, op=dist.ReduceOp.MIN)`, "
        "then `batches[: count.item()]`; the cause is 'ranks-with-different-counts'.",
    ),
    why="`join` keeps DDP from waiting forever, but it knows nothing about a scaler. With the "
    "default growth interval of 2,000, the scales may differ only after many epochs.",
    alternative="`DistributedSampler`, which gives every rank equally many samples; or an "
    "all-reduce with MIN before each batch of whether there is one, where the length is not known.",
)


def right(model: Any, epochs: Any, optimizer: Any, scaler: Any) -> None:
    cause("ranks-with-different-counts")
    for batches in epochs:
        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        for inputs, targets in batches[: count.item()]:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


# Each rank's number of batches in each epoch, the growth interval, rank 1's batch that overflows
CASES: Any = (
    ("in an epoch of 3 batches on rank 0 and 5 on rank 1", ((3,), (5,)), 4, 0),
    (
        "in epochs of 4, 2 and 3 batches on rank 0 and 3, 5 and 3 on rank 1",
        ((4, 2, 3), (3, 5, 3)),
        3,
        0,
    ),
    (
        "in two epochs of 3 and 4 batches, of which the second overflows on rank 1",
        ((3, 3), (4, 4)),
        2,
        2,
    ),
)


def on_rank(answer: Any, seed: int, part: slice) -> list[Case]:
    """Let the answer train in some of CASES, with this rank's batches."""
    rank, found = dist.get_rank(), []
    both = torch.Generator().manual_seed(seed)  # draws the same on both ranks
    mine = torch.Generator().manual_seed(seed + 1 + rank)
    for case, counts, interval, overflow in CASES[part]:
        net = draw_model(both, 6, 8, 3)
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=interval)
        epochs = [draw_batches(mine, count, 4, 6, 3) for count in counts[rank]]
        if overflow and rank == 1:
            epochs[0][overflow - 1][0].mul_(1e6)
        with named_causes() as named, Recorded(net) as recorded:
            call_on_rank(answer, case, model, epochs, optimizer, scaler)
        scales: list[Any] = [None, None]
        dist.all_gather_object(scales, f"{scaler.get_scale():g}")
        outputs = {
            "the number of forward passes": recorded.passes,
            DTYPE: recorded.dtype,
            "the loss scale at the end": scaler.get_scale(),
            "the growth tracker at the end": scaler.state_dict()["_growth_tracker"],
            "the change of the weights": recorded.change,
        }
        found.append(Case(case, outputs, {"scales": " and ".join(scales), "named": named}))
    return found


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train where either rank has more batches, for several epochs, through growth and an
    overflow.
    """
    yield from cases_with_cause(on_rank, answer, draw)


def _sends_the_state(model: Any, epochs: Any, optimizer: Any, scaler: Any) -> None:
    for batches in epochs:
        faulty(model, [batches], optimizer, scaler)
        state = [scaler.state_dict()]
        dist.broadcast_object_list(state)
        scaler.load_state_dict(state[0])


def _never_grows(model: Any, epochs: Any, optimizer: Any, scaler: Any) -> None:
    scaler.set_growth_interval(10**9)
    faulty(model, epochs, optimizer, scaler)


COUNT, REDUCE = "count = torch.tensor(len(batches))", "dist.all_reduce(count, op=dist.ReduceOp.MIN)"
EPOCH, LOOP = "for batches in epochs:", "for inputs, targets in batches[: count.item()]:"
AGREE = "Before each epoch, agree on the smallest count, with `dist.all_reduce` and MIN"


def _once(count: str) -> dict[str, str]:
    """Return the edits that agree on a count before the first epoch."""
    return {
        EPOCH: f"count = torch.tensor({count})\n{REDUCE}\n{EPOCH}",
        COUNT: "pass",
        REDUCE: "pass",
    }


mistakes = [
    Mistake(
        "unchanged",
        "`join` lets rank 1 continue alone, so its scaler counts 5 updates and that of rank 0 "
        "only 3. At the end of the epoch, the loss scales are {scales}. "
        f"{AGREE}, instead of joining",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "sends the scaler's state",
        "the scaler's state is copied after each epoch, but within an epoch one rank still makes "
        f"more updates than the other. {AGREE}",
        answer=_sends_the_state,
    ),
    Mistake(
        "never grows",
        "with growth switched off, the scales stay equal, but a scale that has fallen never "
        f"recovers, and one rank still makes more updates than the other. {AGREE}",
        answer=_never_grows,
    ),
    Mistake(
        "its own count",
        "the ranks train on different numbers of batches, so the one with more waits forever in "
        f"DDP's next all-reduce. {AGREE}",
        edits={REDUCE: "pass"},
    ),
    Mistake(
        "the largest count",
        "one rank trains on more batches than the other has, and waits forever. Give every rank "
        "the smallest count, with `dist.all_reduce` and MIN, and end each epoch after so many",
        edits={REDUCE: REDUCE.replace("MIN", "MAX")},
    ),
    Mistake(
        "the count of rank 0",
        "rank 0 waits forever in an epoch where it has more batches. Reduce the counts with MIN",
        edits={REDUCE: "dist.broadcast(count, src=0)"},
        violates="which rank has more may change",
    ),
    Mistake(
        "the count of the first epoch",
        "the count of the first epoch is used for all of them, and a rank may have fewer batches "
        f"in a later one. {AGREE}",
        edits=_once("len(epochs[0])"),
        violates="In each epoch",
    ),
    Mistake(
        "the smallest count of all epochs",
        "every epoch stops after the smallest count of all epochs, although both ranks have more "
        f"batches in some. {AGREE}",
        edits=_once("min(map(len, epochs))"),
    ),
    Mistake(
        "repeats batches",
        "the rank with fewer batches repeats some. Reduce the counts with MIN, and repeat none",
        edits={
            REDUCE: REDUCE.replace("MIN", "MAX"),
            LOOP: "for inputs, targets in [batches[n % len(batches)] for n in "
            "range(count.item())]:",
        },
        violates="as many of its batches as the rank with the fewest has",
    ),
    Mistake(
        "the last ones",
        "these are the last batches of the epoch. Take the first ones",
        edits={LOOP: "for inputs, targets in batches[-count.item() :]:"},
        violates="the first ones",
    ),
    IN_FP32,
    IN_BF16,
    NEVER_CLEARS,
    Mistake(
        "without DDP",
        "the gradients are not averaged. Call `model`, which is wrapped in DDP",
        edits={LOOP: f"model = getattr(model, 'module', model)\n{LOOP}"},
    ),
]

uneven_ranks = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the faulty script, one rank calls `update()` 10 times per epoch, and the other 8 times."
    ),
)
