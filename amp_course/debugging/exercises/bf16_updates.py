"""Exercise 11 of chapter 11: a training run in bf16 whose loss barely moves."""

import copy  # noqa: F401 (for the edits)
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.bf16_updates import train as faulty
from amp_course.debugging.clinic.trials import (
    CLEAR,
    DTYPE,
    FORWARD,
    NEVER_CLEARS,
    Runner,
    describe_cause,
    draw_batches,
    draw_model,
    read_losses,
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
    "returns the list of losses. Name the fault in its first line, with `cause(…)`.",
    hints=(
        "How far apart are two bf16 numbers near 1? How large is an update in the script, with "
        "lr=0.001?",
        "bf16 has 8 bits of significand: from 1 up, its numbers are 2^-7 apart, and an update "
        "below 2^-8 is rounded away.",
        "Leave out `model.to(torch.bfloat16)`, and run the model and the loss under "
        "`torch.autocast('cpu', dtype=torch.bfloat16)`; the cause is 'updates-vanish'.",
    ),
    why="Nothing is NaN, and no gradient is 0. Updates of weights near 0 still get through, so "
    "the loss falls, but very slowly.",
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


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train weights between 0.5 and 1, where half an ulp of bf16 is 2^-9, by smaller updates and
    by larger ones.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, lr in (  # powers of two, so that bf16 rounds an update alike however it is written
        ("with a learning rate of 2^-10", 2.0**-10),
        ("with a learning rate of 1/8", 0.125),
    ):
        model, batches = draw_model(generator, 6, 8, 4), draw_batches(generator, 6, 8, 6, 4)
        for parameter in model.parameters():
            values = torch.rand(parameter.shape, generator=generator) * 0.5 + 0.5
            # in bf16 already, so that a conversion alone changes nothing
            parameter.data = values.copysign(parameter.data).bfloat16().float()
        start, first = flat(model.parameters()), set[str]()
        # A lambda, unlike a method, notes what a copy of the model does, too
        hook = model[0].register_forward_hook(
            lambda module, args, output, first=first: first.add(str(output.dtype)[6:])
        )
        got = run(case, model, list(batches), lr)
        hook.remove()
        dtypes = " and ".join(sorted({str(one.dtype)[6:] for one in model.parameters()}))
        yield Case(
            case,
            {
                DTYPE: " and ".join(sorted(first)),
                "the change of the weights": flat(model.parameters()) - start,
                "the dtype of the parameters at the end": dtypes,
                "the losses": read_losses(got, case, len(batches)),
            },
            evidence={"dtypes": dtypes},
        )
    yield run.last_case()


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=lr)"
HIGHER = OPTIMIZER.replace("lr=lr", "lr=100 * lr")
REGION = 'with torch.autocast("cpu", dtype=torch.bfloat16):'

mistakes = [
    Mistake(
        "unchanged",
        "the weights are in bf16, where most updates are rounded away. Keep them in fp32, and use "
        "autocast",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "back to fp32 at the end",
        "converting to fp32 at the end does not restore updates that bf16 rounded away. Keep the "
        "weights in fp32 throughout",
        edits={
            OPTIMIZER: f"model.to(torch.bfloat16)\n{OPTIMIZER}",
            "return losses": "model.float()\nreturn losses",
        },
    ),
    Mistake(
        "rounds the weights for each batch",
        "the weights are rounded to bf16 for every batch, and lose most of the update before it. "
        "Let autocast cast copies",
        edits={
            REGION: f"model.bfloat16()\n{REGION}",
            "loss.backward()": "loss.backward()\nmodel.float()",
        },
    ),
    Mistake(
        "a higher rate",
        "a higher rate only lets more updates survive bf16's rounding. Keep the rate, and use fp32 "
        "weights",
        edits={OPTIMIZER: f"model.to(torch.bfloat16)\n{HIGHER}"},
    ),
    Mistake(
        "a higher rate in fp32",
        "the learning rate is too high. With fp32 weights no update is lost, so keep the rate",
        edits={OPTIMIZER: HIGHER},
    ),
    Mistake(
        "all in fp32",
        "no update is lost, but the layers compute in fp32 too. Keep only the weights in fp32, and "
        "run the forward pass under autocast",
        edits={REGION: "if True:"},
        violates="its layers compute in bf16",
    ),
    Mistake(
        "in fp16",
        "the layers compute in fp16, and the task asks for bf16",
        edits={REGION: REGION.replace("bfloat16", "float16")},
    ),
    Mistake(
        "a copy that never learns",
        "the fp32 weights change, but the layers compute with the initial ones for every batch. "
        "Open a new autocast region for each batch, or copy the new weights to where the layers "
        "compute",
        edits={
            OPTIMIZER: f"low = copy.deepcopy(model).bfloat16()\n{OPTIMIZER}",
            FORWARD: FORWARD.replace("model(", "low("),
            CLEAR: "low.zero_grad()",
            "optimizer.step()": "for p, q in zip(model.parameters(), low.parameters(), strict=True)"
            ":\n    p.grad = q.grad.float()\noptimizer.step()",
        },
    ),
    Mistake(
        "trains a copy",
        "the model does not change: a copy is trained, or no step is taken. Write the new weights "
        "into its parameters",
        edits={OPTIMIZER: f"model = copy.deepcopy(model)\n{OPTIMIZER}"},
        violates="At the end its parameters are in fp32",
    ),
    NEVER_CLEARS,
]

bf16_updates = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the faulty script, updates are around 0.0001, and bf16 numbers between 1 and 2 are "
        "0.0078 apart."
    ),
)
