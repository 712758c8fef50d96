"""Patient 7 of chapter 11: a training that stops in its first step."""

import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.anomaly_warmup import train as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, read_losses, run_answer
from amp_course.watching.scene import flat

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
    "the fault in its first line, by `cause(…)`.",
    hints=(
        "Which line raises? What would the scaler do with these gradients if it ever saw them?",
        "A new scaler starts at 65,536, finds overflows, skips those steps and halves the scale "
        "until the gradients fit into fp16. What keeps it from doing so?",
        "Take `detect_anomaly()` away, or pass it `check_nan=False`; the cause is "
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
    """Train from a new scaler's scale, which overflows at first, and from a low one:
    without an overflow, and with a late one.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
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
        dtypes: set[str] = set()
        weights: list[Tensor] = []  # before each forward pass

        def record(
            module: Any,
            args: Any,
            output: Any,
            model: Any = model,
            dtypes: Any = dtypes,
            weights: Any = weights,
        ) -> None:
            dtypes.add(str(output.dtype)[6:])
            weights.append(flat(model.parameters()))

        hook = model[0].register_forward_hook(record)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with (
            warnings.catch_warnings()
        ):  # anomaly mode prints a traceback of the forward pass as a warning
            warnings.filterwarnings(
                "ignore", "Anomaly Detection has been enabled|Error detected in"
            )
            got, named = run_answer(answer, case, model, list(batches), scaler)
            causes.append(named)
        hook.remove()
        losses = read_losses(got, case, len(batches))
        weights.append(flat(model.parameters()))
        change = weights[-1] - weights[0]
        updated = [
            number
            for number in range(1, len(weights))
            if not torch.equal(weights[number - 1], weights[number])
        ]
        yield Case(
            case,
            {
                "the number of forward passes": len(weights) - 1,
                "the dtype that the first layer computes in": " and ".join(sorted(dtypes)),
                "the batches that change the weights": updated,
                "the change of the weights": change,
                "the loss scale at the end": scaler.get_scale(),
                "the losses": torch.tensor(
                    [loss for number, loss in enumerate(losses, 1) if number != overflow]
                ),
            },
            evidence={"change": change},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


OPTIMIZER, LOOP = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
    "for inputs, targets in batches:",
)
REGION, CLEAR = 'with torch.autocast("cpu", dtype=torch.float16):', "optimizer.zero_grad()"
LOSS, BACKWARD = "loss = mse_loss(model(inputs), targets)", "scaler.scale(loss).backward()"
STEP, UPDATE, KEEP = "scaler.step(optimizer)", "scaler.update()", "losses.append(loss.item())"
WATCHED = "with torch.autograd.detect_anomaly():\n    scaler.scale(loss).backward()"
CAUGHT = (
    "try:\n    with torch.autograd.detect_anomaly():\n        "
    "scaler.scale(loss).backward()\nexcept RuntimeError:"
)
LATE = (
    "with torch.autograd.set_detect_anomaly(len(losses) >= 7):\n    scaler.scale(loss).backward()"
)
REPLACED = "[p.grad.nan_to_num_() for p in model.parameters()]"
RAISES = (
    "anomaly mode raises at the first NaN in a backward pass, before the scaler can skip the step "
    "and lower its scale: train without it, or with `check_nan=False`"
)

mistakes = [
    Mistake("unchanged", RAISES, answer=patient, violates="a `train` without the fault"),
    Mistake(
        "anomaly mode later",
        "anomaly mode is on for later batches, and raises at the next overflow. Overflows come "
        "later, too: leave it out while the loss is scaled",
        edits={BACKWARD: LATE},
        violates="whether in the first steps or later",
    ),
    Mistake(
        "a lower scale",
        "a lower scale of your own only helps until the next overflow, which raises again: keep "
        "the scaler that you get, and leave anomaly mode out",
        edits={
            OPTIMIZER: f'{OPTIMIZER}\nscaler = torch.amp.GradScaler("cpu", init_scale=256.0)',
            BACKWARD: WATCHED,
        },
        violates="scaler as you get it",
    ),
    Mistake(
        "another scaler",
        "the scaler that you get is not used: use it: it finds a lower scale on its own",
        edits={OPTIMIZER: f'{OPTIMIZER}\nscaler = torch.amp.GradScaler("cpu", init_scale=256.0)'},
    ),
    Mistake(
        "divides the loss",
        "every update is 256 times too small, as if the loss were divided: leave it as it is, and "
        "let the scaler find a scale that fits",
        edits={BACKWARD: "scaler.scale(loss / 256).backward()"},
    ),
    Mistake(
        "no scaler",
        "nothing skips an overflow any more, and small gradients are lost: scale the loss, and "
        "step with `scaler.step(optimizer)`",
        edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "catches the error",
        "the scaler never hears of the overflow, whether the error is caught or inf and NaN are "
        "replaced by 0 before it looks. So it keeps its scale, and the next batch overflows as "
        "well: let it see the gradients as they are, without anomaly mode",
        edits={BACKWARD: f"{CAUGHT}\n    {KEEP}\n    continue"},
    ),
    Mistake(
        "replaces NaN",
        "the scaler takes steps that it should skip, as NaN and inf are replaced before it looks: "
        "leave the gradients as they are",
        edits={STEP: f"{REPLACED}\n{STEP}"},
        violates="none where the gradients overflow",
    ),
    Mistake(
        "tries again",
        "a batch that overflows goes through the model again: let the scaler skip it, and go on "
        "with the next one",
        edits={
            LOOP: "queue = list(batches)\nwhile queue:\n    inputs, targets = queue.pop(0)\n    "
            "before = scaler.get_scale()",
            UPDATE: f"{UPDATE}\nif before > scaler.get_scale() and loss.isfinite():\n    "
            f"queue.insert(0, (inputs, "
            "targets))\n    continue",
        },
        violates="one update per batch",
    ),
    Mistake(
        "no update",
        "`scaler.update()` is missing, without which the scale never falls: call it after each "
        "`scaler.step`",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now, and the card asks for fp16: let the scaler deal with "
        "its overflows",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now, and the card asks for fp16: let the scaler deal with "
        "its overflows",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
    Mistake(
        "never clears",
        "nothing clears the gradients, so the inf or NaN of the first overflow stays in them, and "
        "no step is taken after it: call `optimizer.zero_grad()` for each batch",
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
        "In the patient, the backward pass that raised had a loss scale of 65,536; with a scale of "
        "256, none raises."
    ),
)
