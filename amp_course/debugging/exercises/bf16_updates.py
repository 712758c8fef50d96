"""Patient 11 of chapter 11: a training in bf16 whose loss barely moves."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.bf16_updates import train as patient
from amp_course.debugging.clinic.trials import (
    CAUSE,
    UNCLEARED,
    describe_cause,
    read_losses,
    run_answer,
)
from amp_course.watching.scene import flat

card = Card(
    chapter="debugging",
    name="bf16_updates",
    number=11,
    title="A loss that barely moves in bf16",
    difficulty=2,
    importance=5,
    minutes=6,
    lines=11,
    task="Write `bf16_updates(model, batches, lr)`, a `train` without the fault: SGD, one update "
    "per batch. The model comes in fp32, and its layers compute in bf16. At the end its "
    "parameters are in fp32, and each has changed by the sum of its updates, to within 1%. It "
    "returns the list of losses. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "How far apart are two bf16 numbers near 1? How large is an update in the patient, with "
        "lr=0.001?",
        "bf16 has 8 bits of significand: from 1 up, its numbers are 2^-7 apart, and an update "
        "below 2^-8 is rounded away.",
        "Leave out `model.to(torch.bfloat16)`, and run the model and the loss under "
        "`torch.autocast('cpu', dtype=torch.bfloat16)`; the cause is 'updates-vanish'.",
    ),
    why="Nothing is NaN, and no gradient is 0. Updates of weights near 0 still get through, so "
    "the loss creeps instead of standing still.",
    alternative="forward and backward on a bf16 copy, which gets the fp32 weights after each "
    "update. Stochastic rounding, as in torchao, needs no fp32 weights, but is right only on "
    "average.",
)


def right(model: Any, batches: Any, lr: float) -> list[float]:
    cause("updates-vanish")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# Powers of two, so that an update in bf16 is rounded alike however it is written
CASES = (("with a learning rate of 2^-10", 2.0**-10), ("with a learning rate of 1/8", 0.125))


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train weights between 0.5 and 1, where half an ulp of bf16 is 2^-9:
    by updates that are smaller, and by larger ones.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, lr in CASES:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        for parameter in model.parameters():
            values = torch.rand(parameter.shape, generator=generator) * 0.5 + 0.5
            values *= torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.data = values.bfloat16().float()  # so that a conversion alone changes nothing
        batches = []
        for _ in range(6):
            inputs = torch.randn(8, 6, generator=generator)
            batches.append((inputs, torch.randint(0, 4, (8,), generator=generator)))
        start = copy.deepcopy(model)
        first: list[str] = []
        hook = model[0].register_forward_hook(
            lambda module, args, output, first=first: first.append(str(output.dtype)[6:])
        )
        got, named = run_answer(answer, case, model, list(batches), lr)
        causes.append(named)
        hook.remove()
        losses = read_losses(got, case, len(batches))
        dtypes = " and ".join(
            sorted({str(parameter.dtype)[6:] for parameter in model.parameters()})
        )
        yield Case(
            case,
            {
                "the dtype that the first layer computes in": " and ".join(sorted(set(first))),
                "the change of the weights": flat(model.parameters()) - flat(start.parameters()),
                "the dtype of the parameters at the end": dtypes,
                "the losses": losses,
            },
            evidence={"dtypes": dtypes},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=lr)"
REGION, FORWARD = (
    'with torch.autocast("cpu", dtype=torch.bfloat16):',
    "loss = cross_entropy(model(inputs), targets)",
)
CLEAR, BACKWARD, STEP, RETURN = (
    "optimizer.zero_grad()",
    "loss.backward()",
    "optimizer.step()",
    "return losses",
)
IN_BF16 = f"model.to(torch.bfloat16)\n{OPTIMIZER}"
COPY = f"low = copy.deepcopy(model).bfloat16()\n{OPTIMIZER}"
ON_COPY = {
    OPTIMIZER: COPY,
    FORWARD: FORWARD.replace("model(", "low("),
    CLEAR: "low.zero_grad()",
    STEP: f"for p, q in zip(model.parameters(), low.parameters(), strict=True):\n    p.grad = "
    f"q.grad.float()\n{STEP}",
}

mistakes = [
    Mistake(
        "unchanged",
        "the weights are in bf16, and most updates are smaller than half the distance to the next "
        "bf16 number, so they are rounded away. Keep the weights in fp32, and let autocast cast "
        "them",
        answer=patient,
        violates="a `train` without the fault",
    ),
    Mistake(
        "back to fp32 at the end",
        "the weights are rounded to bf16 after each update, which takes the update away. To "
        "convert them afterwards brings nothing back: keep them in fp32 all the time",
        edits={OPTIMIZER: IN_BF16, RETURN: f"model.float()\n{RETURN}"},
    ),
    Mistake(
        "a higher rate",
        "at a higher learning rate more updates survive the rounding, but it is another training: "
        "keep the rate, and the weights in fp32",
        edits={OPTIMIZER: IN_BF16.replace("lr=lr", "lr=100 * lr")},
    ),
    Mistake(
        "a higher rate in fp32",
        "fp32 weights were enough: with them no update is lost, and the learning rate can stay as "
        "it is",
        edits={OPTIMIZER: OPTIMIZER.replace("lr=lr", "lr=100 * lr")},
    ),
    Mistake(
        "all in fp32",
        "no update is lost, but the layers compute in fp32 too: only the weights have to be kept "
        "in fp32. Run the forward pass under autocast",
        edits={REGION: "if True:"},
        violates="its layers compute in bf16",
    ),
    Mistake(
        "in fp16",
        "the layers compute in fp16 now, and the card asks for bf16",
        edits={REGION: REGION.replace("bfloat16", "float16")},
    ),
    Mistake(
        "a copy that never learns",
        "the fp32 weights move, but the layers compute with those of the start for every batch: "
        "after each update, copy the new weights to where the layers compute",
        edits=ON_COPY,
    ),
    Mistake(
        "trains a copy",
        "the model that you are given stays as it is, whether a copy of it is trained or no step "
        "is taken: write the new weights into its parameters",
        edits={OPTIMIZER: f"model = copy.deepcopy(model)\n{OPTIMIZER}"},
        violates="At the end its parameters are in fp32",
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
]

bf16_updates = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the patient, updates are around 0.0001, and bf16 numbers between 1 and 2 are 0.0078 "
        "apart."
    ),
)
