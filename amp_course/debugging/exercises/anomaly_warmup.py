"""Exercise 7 of chapter 11: a training run that stops in its first step."""

import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.anomaly_warmup import train as faulty
from amp_course.debugging.clinic.trials import (
    BACKWARD,
    CLEAR,
    DTYPE,
    IN_BF16,
    IN_FP32,
    NO_SCALER,
    NO_UPDATE,
    STEP,
    UPDATE,
    Recorded,
    Runner,
    describe_cause,
    read_losses,
)

card = Card(
    chapter="debugging",
    name="anomaly_warmup",
    number=7,
    title="NaN in the first step",
    difficulty=2,
    importance=4,
    minutes=6,
    lines=12,
    task="Write `anomaly_warmup(model, batches, scaler)`, a `train` without the fault: SGD with "
    "lr=0.01, fp16 autocast, the scaler as you get it, one update per batch, and none where the "
    "gradients overflow, whether in the first steps or later. It returns the list of losses. Name "
    "the fault in its first line, with `cause(…)`.",
    hints=(
        "Which line raises? What would the scaler do with these gradients if it ever saw them?",
        "A new scaler starts at 65,536, finds overflows, skips those steps and halves the scale "
        "until the gradients fit into fp16. What keeps it from doing so?",
        "Remove `detect_anomaly()`, or pass it `check_nan=False`; the cause is "
        "'anomaly-mode-meets-scaler'.",
    ),
    why="A NaN gradient is routine for a scaler and an error for anomaly mode. So look for NaN "
    "where the loss is not scaled.",
    alternative="`torch.autograd.detect_anomaly(check_nan=False)`, which ignores NaN and, for any "
    "other error in a backward pass, still shows the line of the forward pass that it comes from.",
)


def right(model: Any, batches: Any, scaler: Any) -> list[float]:
    cause("anomaly-mode-meets-scaler")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train from a new scaler's scale, which overflows at first, and from a low one, without an
    overflow and with a late one.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, scale, overflow in (
        ("with a new scaler", 2.0**16, 0),
        ("with a scale of 64", 2.0**6, 0),
        ("with an overflow in batch 9 of 10", 2.0**6, 9),
    ):
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1))
        for parameter in model[0].parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        model[3].weight.data = torch.randn(1, 16, generator=generator) * 0.2
        batches = []
        for number in range(1, 11):
            inputs = torch.randn(8, 8, generator=generator)
            batches.append((inputs * 1e6 if number == overflow else inputs, 22 + inputs[:, :1]))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with warnings.catch_warnings(), Recorded(model) as recorded:
            warnings.filterwarnings("ignore", "Anomaly Detection has been|Error detected in")
            got = run(case, model, list(batches), scaler)
        yield Case(
            case,
            {
                "the number of forward passes": recorded.passes,
                DTYPE: recorded.dtype,
                "the batches that change the weights": recorded.updated,
                "the change of the weights": recorded.change,
                "the loss scale at the end": scaler.get_scale(),
                "the losses": torch.tensor(
                    read_losses(got, case, len(batches), without=[overflow])
                ),
            },
            evidence={"change": recorded.change, "used": scaler._scale is not None},
        )
    yield run.last_case()


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"
NEW_SCALER = f'{OPTIMIZER}\nscaler = torch.amp.GradScaler("cpu", init_scale=256.0)'
WATCHED = f"with torch.autograd.detect_anomaly():\n    {BACKWARD}"

mistakes = [
    Mistake(
        "unchanged",
        "anomaly mode raises at the first NaN in a backward pass, before the scaler can skip the "
        "step and lower its scale. Train without it, or with `check_nan=False`",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "anomaly mode later",
        "anomaly mode raises at a later overflow. Leave it out as long as the loss is scaled",
        edits={BACKWARD: WATCHED.replace("detect_anomaly(", "set_detect_anomaly(len(losses) >= 7")},
        violates="whether in the first steps or later",
    ),
    Mistake(
        "a lower scale",
        "the scaler that you get is not used, and a lower scale, or none, only delays the error "
        "until the next overflow. Use that scaler, without anomaly mode",
        edits={OPTIMIZER: NEW_SCALER, BACKWARD: WATCHED},
        violates="scaler as you get it",
    ),
    Mistake(
        *families.SCALER_OF_ITS_OWN,
        edits={OPTIMIZER: NEW_SCALER},
    ),
    Mistake(
        "sets the scale",
        "the scaler does not start with its own scale. Leave it as it is: the scaler finds a "
        "lower one itself",
        edits={OPTIMIZER: f"{OPTIMIZER}\nscaler._init_scale = 256.0"},
    ),
    Mistake(
        "divides the loss",
        "every update is 256 times too small, as if the loss were divided. Leave the loss as it "
        "is, and let the scaler find a scale that fits",
        edits={BACKWARD: "scaler.scale(loss / 256).backward()"},
    ),
    NO_SCALER,
    Mistake(
        "catches the error",
        "the scaler never sees the overflow, so it keeps its scale, and the next batch overflows "
        "too. Leave the gradients as they are, without anomaly mode, and call `scaler.step` and "
        "`scaler.update` for every batch",
        edits={
            BACKWARD: f"try:\n    with torch.autograd.detect_anomaly():\n        {BACKWARD}\n"
            "except RuntimeError:\n    losses.append(loss.item())\n    continue"
        },
    ),
    Mistake(
        "replaces NaN",
        "the scaler takes steps that it should skip. Do not replace inf or NaN in gradients",
        edits={STEP: f"[p.grad.nan_to_num_() for p in model.parameters()]\n{STEP}"},
        violates="none where the gradients overflow",
    ),
    Mistake(
        "tries again",
        "a batch that overflows goes through the model again. Let the scaler skip it",
        edits={
            "for inputs, targets in batches:": "queue = list(batches)\nwhile queue:\n"
            "    inputs, targets = queue.pop(0)\n    before = scaler.get_scale()",
            UPDATE: f"{UPDATE}\nif before > scaler.get_scale() and loss.isfinite():\n"
            "    queue.insert(0, (inputs, targets))\n    continue",
        },
        violates="one update per batch",
    ),
    NO_UPDATE,
    IN_FP32,
    IN_BF16,
    Mistake(
        "never clears",
        "nothing clears the gradients, so the inf or NaN of the first overflow stays in them and "
        "no later step is taken. Call `optimizer.zero_grad()` for each batch",
        edits={CLEAR: "pass"},
    ),
]

anomaly_warmup = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the faulty script, the backward pass raises at a loss scale of 65,536; at a scale of "
        "256, none raises."
    ),
)
