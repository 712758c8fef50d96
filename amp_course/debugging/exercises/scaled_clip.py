"""Patient 1 of chapter 11: a training whose loss hardly moves."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.audit.scene import flat
from amp_course.checking import Exercise, Mistake, Turn
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.scaled_clip import train as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, read_losses, run_answer

scaled_clip = Exercise(
    chapter="debugging", name="scaled_clip", number=1, title="The loss hardly moves", difficulty=2, importance=5, minutes=6,
    lines=14,
    task="Write `scaled_clip(model, batches)`, a `train` without the fault: SGD with lr=0.5, fp16 autocast, a `GradScaler`, "
    "gradients clipped to a norm of 1, one update per batch. It returns the list of losses. Name the fault in its first line, "
    "by `cause(…)`.",
    hints=(
        "At which moment of a step do the gradients have their true size? What is their norm where they are clipped?",
        "The scale is 65,536, so a gradient with a true norm of 0.5 has a norm of 32,768 there, and is cut to 1.",
        "`scaler.unscale_(optimizer)` goes right before `clip_grad_norm_`; the cause is 'clipped-while-scaled'.",
    ),
    why="Nothing is raised and nothing is NaN. The only sign is a norm before clipping that is always as large as the scale.",
    alternative="clip the scaled gradients to `max_norm * scaler.get_scale()`, which reads the scale in each step.",
)  # fmt: skip


def right(model: Any, batches: Any) -> list[float]:
    cause("clipped-while-scaled")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def play(answer: Any, draw: random.Random) -> Iterator[Turn]:
    """Train on gradients below the limit, on some above it, and through an overflow."""
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, size, overflow in (("with small gradients", 0.02, ()), ("with large gradients", 8.0, ()),
                                 ("with an overflow in the second batch", 1.0, (1,))):  # fmt: skip
        model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        batches = []
        for number in range(5):
            inputs = torch.randn(6, 12, generator=generator) * size
            targets = torch.randint(0, 4, (6,), generator=generator)
            batches.append((inputs * 1e6 if number in overflow else inputs, targets))
        before = flat(model.parameters())
        first: list[torch.dtype] = []
        hook = model[0].register_forward_hook(lambda module, args, output, first=first: first.append(output.dtype))
        got, named = run_answer(answer, case, model, list(batches))
        causes.append(named)
        hook.remove()
        losses = read_losses(got, case, len(batches))
        yield Turn(case, {
            "the dtype that the first layer computes in": " and ".join(sorted({str(one)[6:] for one in first})),
            "the change of the weights": flat(model.parameters()) - before,
            "the losses": [loss for number, loss in enumerate(losses) if number not in overflow],
        })  # fmt: skip
    yield Turn("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


OPTIMIZER, SCALER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.5)", 'scaler = torch.amp.GradScaler("cpu")'
REGION, CLEAR = 'with torch.autocast("cpu", dtype=torch.float16):', "optimizer.zero_grad()"
BACKWARD, UNSCALE, STEP = "scaler.scale(loss).backward()", "scaler.unscale_(optimizer)", "scaler.step(optimizer)"
CLIP, UPDATE = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "scaler.update()"
SCALED = (
    "gradients are clipped while they carry the loss scale, so what is left after unscaling has a norm of 1 / 65,536: unscale "
    "them first"
)

scaled_clip.judge_by(
    right=right, play=play, tolerance=1e-3,
    said=describe_cause("In the patient, the norm that `clip_grad_norm_` returned was about 65,536 times that of the gradients."),
    mistakes=[
        Mistake("unchanged", breaks="a `train` without the fault", answer=patient, told=SCALED),
        Mistake("no clipping", breaks="gradients clipped to a norm of 1", edits={CLIP: "pass"},
                told="large gradients are not clipped any more, and the clipping was not the fault: only its place was"),
        Mistake("clips each parameter", edits={CLIP: "[nn.utils.clip_grad_norm_([p], 1.0) for p in model.parameters()]"},
                told="each parameter is clipped by its own norm: pass all of them in one call"),
        Mistake("clips values", edits={CLIP: CLIP.replace("norm_", "value_")},
                told="each number is cut off at 1, which turns the gradient: scale all of them down by one norm"),
        Mistake("no scaler", breaks="a `GradScaler`",
                edits={BACKWARD: "loss.backward()", UNSCALE: "pass", STEP: "optimizer.step()", UPDATE: "pass"},
                told="without a scaler nothing skips an update that has overflowed, and small gradients are lost"),
        Mistake("no update", edits={UPDATE: "pass"}, told="`scaler.update()` is gone: call it after each `scaler.step`"),
        Mistake("in fp32", breaks="fp16 autocast", edits={REGION: "if True:"},
                told="the forward pass runs in fp32 now, which hides the fault: the order of the calls was wrong, not the dtype"),
        Mistake("in bf16", edits={REGION: REGION.replace("float16", "bfloat16")},
                told="the forward pass runs in bf16 now, and the card asks for fp16: mend the order of the calls"),
        Mistake("a higher rate", breaks="SGD with lr=0.5", edits={UNSCALE: "pass", OPTIMIZER: OPTIMIZER.replace("0.5", "500.0")},
                told="a higher learning rate makes up for the clipping only by chance: the gradients are still clipped to "
                "1 / 65,536 of their size"),
        Mistake("never clears", edits={CLEAR: "pass"}, told="`zero_grad()` is gone, so gradients of all batches add up"),
    ],
)  # fmt: skip
