"""Patient 3 of chapter 11: two ranks whose loss scales part after some epochs."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause, named_causes
from amp_course.debugging.clinic.patients.uneven_ranks import train as patient
from amp_course.debugging.clinic.trials import CAUSE, UNCLEARED, UNNAMED, describe_cause
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks
from amp_course.watching.scene import flat

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
    "batch. `model` is wrapped in DDP. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "When does a scaler double its scale? Who calls `update()` on a rank that has run out of "
        "batches?",
        "No rank knows how many batches the others have. Before each epoch, let them agree on a "
        "number.",
        "`count = torch.tensor(len(batches))`, `dist.all_reduce(count, op=dist.ReduceOp.MIN)`, "
        "then `batches[: count.item()]`; the cause is 'ranks-with-different-counts'.",
    ),
    why="`join` keeps DDP from waiting forever, but it knows nothing about a scaler. With the "
    "default growth interval of 2,000, the scales may part only after many epochs.",
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


# The case in words; how many batches rank 0 and rank 1 have in each epoch; the growth interval; the
# rank and the batch of the first epoch that overflow
CASES: tuple[
    tuple[str, tuple[tuple[int, ...], tuple[int, ...]], int, tuple[int, int] | None], ...
] = (
    ("in an epoch of 3 batches on rank 0 and 5 on rank 1", ((3,), (5,)), 4, None),
    (
        "in epochs of 4, 2 and 3 batches on rank 0 and 3, 5 and 3 on rank 1",
        ((4, 2, 3), (3, 5, 3)),
        3,
        None,
    ),
    (
        "in two epochs of 3 and 4 batches, of which the second overflows on rank 1",
        ((3, 3), (4, 4)),
        2,
        (1, 1),
    ),
)


def on_rank(answer: Callable[..., Any], seed: int, cases: slice) -> list[Case]:
    """Let the answer train in some of CASES, with this rank's batches; return its turns."""
    rank, turns = dist.get_rank(), []
    both = torch.Generator().manual_seed(seed)  # draws the same on both ranks
    mine = torch.Generator().manual_seed(seed + 1 + rank)
    for case, counts, interval, overflow in CASES[cases]:
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        for parameter in net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=both) * 0.4
        before = flat(net.parameters())
        model, dtypes = DistributedDataParallel(net), list[str]()
        net[0].register_forward_hook(
            lambda module, args, output, dtypes=dtypes: dtypes.append(str(output.dtype)[6:])
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=interval)
        epochs = [
            [
                (torch.randn(4, 6, generator=mine), torch.randint(0, 3, (4,), generator=mine))
                for _ in range(count)
            ]
            for count in counts[rank]
        ]
        if overflow and overflow[0] == rank:
            epochs[0][overflow[1]][0].mul_(1e6)
        with named_causes() as named:
            call_on_rank(answer, case, model, epochs, optimizer, scaler)
        scales: list[Any] = [None, None]
        dist.all_gather_object(scales, f"{scaler.get_scale():g}")
        turns.append(
            Case(
                case,
                {
                    "the number of forward passes": len(dtypes),
                    "the dtype that the first layer computes in": " and ".join(sorted(set(dtypes))),
                    "the loss scale at the end": scaler.get_scale(),
                    "the growth tracker at the end": scaler.state_dict()["_growth_tracker"],
                    "the change of the weights": flat(net.parameters()) - before,
                },
                {"scales": " and ".join(scales), "named": named},
            )
        )
    return turns


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train where either rank has more batches, for several epochs,
    through growth and an overflow.
    """
    seed, named = draw.randrange(10_000), list[str]()
    for cases in (
        slice(1),
        slice(1, None),
    ):  # two pieces, for most mistakes are told apart by the first
        for turn in cases_on_ranks(on_rank, answer, seed, cases):
            named += turn.facts["named"]
            yield turn
    yield Case(
        "", {CAUSE: " and ".join(dict.fromkeys(named)) or UNNAMED}
    )  # last, as it is told of a mended function


def _joins(
    model: Any, epochs: Any, optimizer: Any, scaler: Any, at_end: Callable[[], None]
) -> None:
    cause("ranks-with-different-counts")
    for batches in epochs:
        patient(model, [batches], optimizer, scaler)
        at_end()


def _sends_the_scale(model: Any, epochs: Any, optimizer: Any, scaler: Any) -> None:
    def send() -> None:
        state = [scaler.state_dict()]
        dist.broadcast_object_list(state)
        scaler.load_state_dict(state[0])

    _joins(model, epochs, optimizer, scaler, send)


def _never_grows(model: Any, epochs: Any, optimizer: Any, scaler: Any) -> None:
    scaler.set_growth_interval(10**9)
    _joins(model, epochs, optimizer, scaler, lambda: None)


COUNT, REDUCE = "count = torch.tensor(len(batches))", "dist.all_reduce(count, op=dist.ReduceOp.MIN)"
EPOCH, LOOP = "for batches in epochs:", "for inputs, targets in batches[: count.item()]:"
REGION, CLEAR = 'with torch.autocast("cpu", dtype=torch.float16):', "optimizer.zero_grad()"
AGREE = "before each epoch, agree on the smallest count, by `dist.all_reduce` with MIN"

mistakes = [
    Mistake(
        "unchanged",
        "`join` lets rank 1 go on alone. Its scaler counts 5 updates, while that of rank 0 counts "
        "3: at the end of "
        f"the epoch, the loss scales are {{scales}}. Instead of joining, {AGREE}",
        answer=patient,
        violates="a `train` without the fault",
    ),
    Mistake(
        "sends the scaler's state",
        "the scaler's state is copied after each epoch, but within an epoch one rank still makes "
        "more updates than "
        f"the other. The card asks for equally many: {AGREE}",
        answer=_sends_the_scale,
    ),
    Mistake(
        "never grows",
        "with growth switched off, the scales stay equal, but a scale that has fallen never "
        "recovers, and one rank "
        f"still makes more updates than the other: {AGREE}",
        answer=_never_grows,
    ),
    Mistake(
        "its own count",
        "the ranks train on different numbers of batches, so the one with more "
        f"waits forever in DDP's next all-reduce: {AGREE}",
        edits={REDUCE: "pass"},
    ),
    Mistake(
        "the largest count",
        "the count that the ranks agree on, by MAX or as a mean, is more than one of them has. "
        "That rank cannot follow, and the other waits forever: take MIN",
        edits={REDUCE: REDUCE.replace("MIN", "MAX")},
    ),
    Mistake(
        "the count of rank 0",
        "the count is that of rank 0. In an epoch where it has more batches than rank 1, it waits "
        "forever: reduce the counts of both with MIN",
        edits={REDUCE: "dist.broadcast(count, src=0)"},
        violates="which rank has more may change",
    ),
    Mistake(
        "the count of the first epoch",
        "the count of the first epoch is used for all of them, and a later one may have fewer "
        "batches on some rank: agree on it again in each epoch",
        edits={
            EPOCH: f"count = torch.tensor(len(epochs[0]))\n{REDUCE}\n{EPOCH}",
            COUNT: "pass",
            REDUCE: "pass",
        },
        violates="In each epoch",
    ),
    Mistake(
        "the smallest count of all epochs",
        "every epoch stops after the smallest count of all epochs, and some have more batches on "
        "both ranks: agree on it again in each epoch",
        edits={
            EPOCH: f"count = torch.tensor(min(map(len, epochs)))\n{REDUCE}\n{EPOCH}",
            COUNT: "pass",
            REDUCE: "pass",
        },
    ),
    Mistake(
        "repeats batches",
        "the rank with fewer batches repeats some. All make equally many updates, so the scales "
        "stay equal, but the card asks for the smallest count: reduce with MIN, and repeat none",
        edits={
            REDUCE: REDUCE.replace("MIN", "MAX"),
            LOOP: "for inputs, targets in [batches[n % len(batches)] for n in "
            "range(count.item())]:",
        },
        violates="as many of its batches as the rank with the fewest has",
    ),
    Mistake(
        "the last ones",
        "the number of updates is right, but these are the last batches of the epoch: take the "
        "first ones",
        edits={LOOP: "for inputs, targets in batches[-count.item() :]:"},
        violates="the first ones",
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now. The dtype was not the fault: the ranks made unequal "
        "numbers of updates",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now. The dtype was not the fault: the ranks made unequal "
        "numbers of updates",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
    Mistake(
        "without DDP",
        "the gradients are not averaged, and each rank trains on its own: call `model`, which is "
        "wrapped in DDP",
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
        "In the patient, one rank calls `update()` 10 times per epoch and the other 8 times."
    ),
)
