"""Patient 6 of chapter 11: a resumed training whose ranks drift apart."""

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
from amp_course.debugging.clinic.patients.ranks_differ import resume as patient
from amp_course.debugging.clinic.trials import (
    CAUSE,
    UNCLEARED,
    UNNAMED,
    describe_cause,
    read_losses,
)
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks
from amp_course.watching.scene import flat

card = Card(
    chapter="debugging",
    name="ranks_differ",
    number=6,
    title="The ranks drift apart",
    difficulty=3,
    importance=5,
    minutes=8,
    lines=20,
    task="Write `ranks_differ(net, batches, checkpoint)`, a `resume` without the fault. It runs "
    "on both ranks, each with batches of its own. `checkpoint` is a dict of two `state_dict()`s, "
    "`model` and `scaler`, on rank 0, and None on rank 1; **both** ranks resume from it. Use DDP, "
    "SGD with lr=0.1 and fp16 autocast, with one update per batch. It returns the list of the "
    "loss scales after each update. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "DDP averages the gradients as they are, still scaled. What does each rank divide the "
        "average by?",
        "DDP sends the weights of rank 0 to all ranks. Nobody sends the state of its scaler.",
        "`state = [scaler.state_dict()]`, `dist.broadcast_object_list(state)` on both ranks, "
        "`scaler.load_state_dict(state[0])`; the cause is 'ranks-with-different-scales'.",
    ),
    why="Nothing is raised. One line from each rank shows it: its loss scale, and the sum of its "
    "weights.",
    alternative="let every rank read the whole checkpoint, by `torch.load` from a shared disk or "
    "by a broadcast of all of it.",
)


def right(net: Any, batches: Any, checkpoint: Any) -> list[float]:
    cause("ranks-with-different-scales")
    scaler = torch.amp.GradScaler("cpu")
    if dist.get_rank() == 0:
        net.load_state_dict(checkpoint["model"])
        scaler.load_state_dict(checkpoint["scaler"])
    state = [scaler.state_dict()]
    dist.broadcast_object_list(state)
    scaler.load_state_dict(state[0])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scales = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


# The case in words; the checkpoint's scale, growth interval and growth tracker; the rank and the
# batch that overflow
CASES: tuple[tuple[str, float, int, int, tuple[int, int] | None], ...] = (
    ("after a checkpoint with a scale of 64", 64.0, 1000, 12, None),
    ("after a checkpoint one update before the scale grows", 512.0, 3, 2, None),
    ("with an overflow on rank 1 in the second batch", 256.0, 1000, 0, (1, 1)),
)


def on_rank(answer: Callable[..., Any], seed: int, cases: slice) -> list[Case]:
    """Let the answer resume some of the trainings in CASES, with this rank's batches;
    return its turns.
    """
    rank, turns = dist.get_rank(), []
    both = torch.Generator().manual_seed(seed)  # draws the same on both ranks
    mine = torch.Generator().manual_seed(seed + 1 + rank)
    for case, scale, interval, tracker, overflow in CASES[cases]:
        saved, net = _network(both), _network(mine)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
        states = {
            "model": saved.state_dict(),
            "scaler": scaler.state_dict() | {"_growth_tracker": tracker},
        }
        batches = []
        for number in range(5):
            inputs = torch.randn(4, 6, generator=mine)
            size = 1e6 if overflow == (rank, number) else 1.0
            batches.append((inputs * size, torch.randint(0, 3, (4,), generator=mine)))
        dtypes: list[str] = []
        net[0].register_forward_hook(
            lambda module, args, output, dtypes=dtypes: dtypes.append(str(output.dtype)[6:])
        )
        with named_causes() as named:
            got = call_on_rank(answer, case, net, batches, states if rank == 0 else None)
        scales = read_losses(got, case, len(batches), "loss scales")
        first: list[Any] = [None, None]
        dist.all_gather_object(first, f"{scales[0]:,.0f}")
        turns.append(
            Case(
                case,
                {
                    "the dtype that the first layer computes in": " and ".join(sorted(set(dtypes))),
                    "the loss scale after each update": scales,
                    "the change of the weights since the checkpoint": flat(net.parameters())
                    - flat(saved.parameters()),
                },
                {"scales": " and ".join(first), "named": named},
            )
        )
    return turns


def _network(generator: torch.Generator) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return net


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Resume with a scale other than a new scaler's, with one that is about to grow,
    and into an overflow.
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


def _averages_true_gradients(net: Any, batches: Any, checkpoint: Any) -> list[float]:
    cause("ranks-with-different-scales")
    scaler = torch.amp.GradScaler("cpu")
    if dist.get_rank() == 0:
        net.load_state_dict(checkpoint["model"])
        scaler.load_state_dict(checkpoint["scaler"])
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scales = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(net(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


LOAD_MODEL, LOAD = (
    'net.load_state_dict(checkpoint["model"])',
    'scaler.load_state_dict(checkpoint["scaler"])',
)
STATE, SEND = "state = [scaler.state_dict()]", "dist.broadcast_object_list(state)"
RESTORE, WRAP = "scaler.load_state_dict(state[0])", "model = DistributedDataParallel(net)"
REGION, UPDATE = 'with torch.autocast("cpu", dtype=torch.float16):', "scaler.update()"
CLEAR = "optimizer.zero_grad()"
ALONE = "for parameter in net.parameters():\n    dist.broadcast(parameter.data, src=0)\nmodel = net"
SCALERS = "the scaler's"
WHOLE = "send its whole `state_dict()` with `dist.broadcast_object_list`"

mistakes = [
    Mistake(
        "unchanged",
        "only rank 0 loads the scaler's state: after the first update, the scales of the two "
        "ranks are {scales}. "
        f"DDP averages gradients that were scaled by one and by the other: {WHOLE}",
        answer=patient,
        violates="a `resume` without the fault",
    ),
    Mistake(
        "starts over",
        "the ranks agree, but on a new scaler with a scale of 65,536. Let rank 0 load the state "
        "from the checkpoint before it is sent",
        edits={LOAD: "pass"},
        violates="**both** ranks resume from it",
    ),
    Mistake(
        "only the scale",
        "only the scale comes from the checkpoint. When it next grows depends on the growth "
        "interval and the growth "
        f"tracker, which are also part of the scaler's state: {WHOLE}",
        edits={
            STATE: "state = [scaler.get_scale()]",
            RESTORE: 'scaler = torch.amp.GradScaler("cpu", init_scale=state[0])',
        },
    ),
    Mistake(
        "only the scale for rank 1",
        "rank 1 gets the scale without the growth interval and the growth tracker, so the two "
        "scales part when "
        f"rank 0's grows: {WHOLE}",
        edits={
            STATE: "state = [scaler.get_scale()]",
            RESTORE: 'if dist.get_rank():\n    scaler = torch.amp.GradScaler("cpu", '
            "init_scale=state[0])",
        },
    ),
    Mistake(
        "sends the weights again and again",
        "sending the weights after each step makes them equal, but still wrong: the scales of the "
        "ranks are "
        f"{{scales}}, and both gradients are divided by rank 0's. The scaler's state has to "
        f"travel, once: {WHOLE}",
        edits={
            STATE: "pass",
            SEND: "pass",
            RESTORE: "pass",
            UPDATE: f"{UPDATE}\nfor parameter in net.parameters():\n    "
            f"dist.broadcast(parameter.data, src=0)",
        },
    ),
    Mistake(
        "averages true gradients",
        "the gradients are unscaled before they are averaged, which makes the "
        f"average right, but the scales are still {{scales}}. And an inf from one rank "
        "gets into the weights of the other, whose scaler looked before the averaging. "
        f"Keep DDP, and give rank 1 the scaler's state: {WHOLE}",
        answer=_averages_true_gradients,
    ),
    Mistake(
        "only rank 0 sends",
        "only rank 0 calls the broadcast. The rank that receives has to call it too: take it out "
        "of the `if`",
        edits={SEND: f"if dist.get_rank() == 0:\n    {SEND}"},
    ),
    Mistake(
        "without DDP",
        "without DDP, rank 1 never gets the weights of the checkpoint, and each rank trains on "
        "its own gradients",
        edits={WRAP: "model = net"},
        violates="DDP, SGD",
    ),
    Mistake(
        "without DDP, from the same weights",
        "the ranks start from the same weights and scale, but nothing averages their gradients, "
        "and each trains on its own: wrap the model in DDP, and call the wrapped model",
        edits={WRAP: ALONE},
    ),
    Mistake(
        "without DDP and the scaler's state",
        "rank 1 gets neither the weights nor the scaler's state of the checkpoint, and nothing "
        "averages the gradients: wrap the model in DDP, and "
        f"{WHOLE.replace('its', SCALERS)}",
        edits={WRAP: "model = net", STATE: "pass", SEND: "pass", RESTORE: "pass"},
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
    Mistake(
        "new weights",
        'the checkpoint\'s weights are not loaded any more: rank 0 loads `checkpoint["model"]` '
        "into `net` before it is wrapped in DDP",
        edits={LOAD_MODEL: "pass"},
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now. The dtype was not the fault: the ranks divided by "
        "different scales",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
]

ranks_differ = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "The patient prints two loss scales at step 0, 8192 for rank 0 and 65536 for rank 1."
    ),
)
