"""Exercise 6 of chapter 11: a resumed training run whose ranks drift apart."""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause, named_causes
from amp_course.debugging.clinic.scripts.ranks_differ import resume as faulty
from amp_course.debugging.clinic.trials import (
    DTYPE,
    IN_FP32,
    NEVER_CLEARS,
    STEP,
    UPDATE,
    Recorded,
    cases_with_cause,
    describe_cause,
    draw_batches,
    draw_model,
    read_losses,
)
from amp_course.distributed.ranks import call_on_rank
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
    "SGD with lr=0.1 and fp16 autocast, with one update per batch. It returns the list of "
    "the loss scales after each update. Name the fault in its first line, with `cause(…)`.",
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


# The checkpoint's scale, growth interval and growth tracker, and rank 1's batch that overflows
CASES: Any = (
    ("after a checkpoint with a scale of 64", 64.0, 1000, 12, 0),
    ("after a checkpoint one update before the scale grows", 512.0, 3, 2, 0),
    ("with an overflow on rank 1 in the second batch", 256.0, 1000, 0, 2),
)


def on_rank(answer: Any, seed: int, part: slice) -> list[Case]:
    """Let the answer resume in some of CASES, with this rank's batches."""
    rank, found = dist.get_rank(), []
    both = torch.Generator().manual_seed(seed)  # draws the same on both ranks
    mine = torch.Generator().manual_seed(seed + 1 + rank)
    for case, scale, interval, tracker, overflow in CASES[part]:
        saved, net = draw_model(both, 6, 8, 3), draw_model(mine, 6, 8, 3)
        batches = draw_batches(mine, 5, 4, 6, 3, [overflow * rank])
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
        checkpoint = {
            "model": saved.state_dict(),
            "scaler": scaler.state_dict() | {"_growth_tracker": tracker},
        }
        with named_causes() as named, Recorded(net) as recorded:
            got = call_on_rank(answer, case, net, batches, None if rank else checkpoint)
        scales = read_losses(got, case, len(batches), what="loss scales")
        first: list[Any] = [None, None]
        dist.all_gather_object(first, f"{scales[0]:,.0f}")
        change = flat(net.parameters()) - flat(saved.parameters())
        outputs = {
            DTYPE: recorded.dtype,
            "the loss scale after each update": scales,
            "the change of the weights since the checkpoint": change,
        }
        found.append(Case(case, outputs, {"scales": " and ".join(first), "named": named}))
    return found


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Resume with a scale other than a new scaler's, with one that is about to grow, and into an
    overflow.
    """
    yield from cases_with_cause(on_rank, answer, draw)


LOAD_MODEL, LOAD = (
    'net.load_state_dict(checkpoint["model"])',
    'scaler.load_state_dict(checkpoint["scaler"])',
)
STATE, SEND = "state = [scaler.state_dict()]", "dist.broadcast_object_list(state)"
RESTORE, WRAP = "scaler.load_state_dict(state[0])", "model = DistributedDataParallel(net)"
APPEND = "scales.append(scaler.get_scale())"
SEND_WEIGHTS = "for parameter in net.parameters():\n    dist.broadcast(parameter.data, src=0)"
NOT_SENT = {STATE: "pass", SEND: "pass", RESTORE: "pass"}
SCALE = {STATE: "state = [scaler.get_scale()]"}
NEW_SCALER = 'scaler = torch.amp.GradScaler("cpu", init_scale=state[0])'
WHOLE = "the scaler's whole `state_dict()` with `dist.broadcast_object_list`"

mistakes = [
    Mistake(
        "unchanged",
        "only rank 0 loads the scaler's state, so after the first update the scales of the two "
        "ranks are {scales}, and DDP averages gradients of different scales. "
        f"Send {WHOLE}",
        answer=faulty,
        violates="a `resume` without the fault",
    ),
    Mistake(
        "starts over",
        "the ranks agree, but on a new scale of 65,536. Let rank 0 load the checkpoint's state "
        "first",
        edits={LOAD: "pass"},
        violates="**both** ranks resume from it",
    ),
    Mistake(
        "only the scale",
        "only the scale comes from the checkpoint. When it next grows depends on the growth "
        f"interval and the growth tracker, which belong to the scaler's state too. Send {WHOLE}",
        edits={**SCALE, RESTORE: NEW_SCALER},
    ),
    Mistake(
        "only the scale for rank 1",
        "rank 1 gets the scale without the growth interval and the growth tracker, so the two "
        f"scales differ once rank 0's grows. Send {WHOLE}",
        edits={**SCALE, RESTORE: f"if dist.get_rank():\n    {NEW_SCALER}"},
    ),
    Mistake(
        "sends the weights again and again",
        "sending the weights after each step makes them equal, but still wrong: the scales of the "
        "ranks are {scales}, and both gradients are divided by rank 0's. "
        f"Send {WHOLE}, once",
        edits={**NOT_SENT, UPDATE: f"{UPDATE}\n{SEND_WEIGHTS}"},
    ),
    Mistake(
        "averages true gradients",
        "the gradients are unscaled before they are averaged, so the average is right, but the "
        "scales are still {scales}, and an inf from one rank reaches the weights of the other, "
        f"whose scaler looked before the averaging. Keep DDP, and send {WHOLE}",
        edits={
            **NOT_SENT,
            WRAP: f"{SEND_WEIGHTS}\nmodel = net",
            STEP: "scaler.unscale_(optimizer)\nfor parameter in net.parameters():\n"
            "    dist.all_reduce(parameter.grad)\n    parameter.grad /= dist.get_world_size()\n"
            f"{STEP}",
        },
    ),
    Mistake(
        "only rank 0 sends",
        "only rank 0 calls the broadcast. Rank 1 has to call it too, to receive",
        edits={SEND: f"if dist.get_rank() == 0:\n    {SEND}"},
    ),
    Mistake(
        "without DDP",
        "rank 1 never gets the checkpoint's weights, and each rank trains on its own. Use DDP",
        edits={WRAP: "model = net"},
        violates="DDP, SGD",
    ),
    Mistake(
        "without DDP, from the same weights",
        "nothing averages the gradients of the ranks. Wrap the model in DDP, and call that",
        edits={WRAP: f"{SEND_WEIGHTS}\nmodel = net"},
    ),
    Mistake(
        "without DDP and the scaler's state",
        "rank 1 gets neither the weights nor the scaler's state of the checkpoint, and nothing "
        f"averages the gradients. Wrap the model in DDP, and send {WHOLE}",
        edits={**NOT_SENT, WRAP: "model = net"},
    ),
    Mistake(
        "loads after wrapping",
        "rank 0 sent its weights to rank 1 before it had loaded the checkpoint, so the ranks train "
        "different weights. Load the checkpoint first, then wrap the model in DDP",
        edits={LOAD_MODEL: "pass", WRAP: f"{WRAP}\nif dist.get_rank() == 0:\n    {LOAD_MODEL}"},
    ),
    Mistake(
        "scales before the update",
        "the list holds the scales from before each update. Call `get_scale()` after "
        "`scaler.update()`",
        edits={UPDATE: f"{APPEND}\n{UPDATE}", APPEND: "pass"},
        violates="the loss scales after each update",
    ),
    NEVER_CLEARS,
    Mistake(
        "new weights",
        "the checkpoint's weights are not loaded. Let rank 0 load them before wrapping in DDP",
        edits={LOAD_MODEL: "pass"},
    ),
    IN_FP32,
]

ranks_differ = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "At step 0, the faulty script prints a loss scale of 8192 for rank 0 and of 65536 for rank "
        "1."
    ),
)
