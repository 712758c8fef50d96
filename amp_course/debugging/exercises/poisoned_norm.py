"""Exercise 13 of chapter 11: a model that trains well, and returns NaN in evaluation mode."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.poisoned_norm import train as faulty
from amp_course.debugging.clinic.trials import (
    CLEAR,
    DTYPE,
    FORWARD,
    IN_BF16,
    IN_FP32,
    NEVER_CLEARS,
    NO_SCALER,
    UNCLEARED,
    Recorded,
    Runner,
    describe_cause,
    draw_batches,
    read_losses,
)

card = Card(
    chapter="debugging",
    name="poisoned_norm",
    number=13,
    title="Fine in training, NaN in evaluation",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=18,
    task="Write `poisoned_norm(model, batches)`, a `train` without the fault: SGD with lr=0.1, "
    "fp16 autocast, a `GradScaler`, one update per batch. A batch whose forward pass overflows "
    "must leave all parameters and **all** buffers of the model as they were; one whose gradients "
    "alone overflow may do so, too; every other batch trains them as usual. It returns the list "
    "of losses, one per batch, whatever it is for one that overflows. Name the fault, and the op "
    'that `first_nonfinite` names, in its first line, with `cause("…", "…")`.',
    hints=(
        "The scaler skips the update of the weights. What else does a forward pass in training "
        "mode change in a model?",
        "Batch norm updates `running_mean`, `running_var` and `num_batches_tracked` in the "
        "forward pass, before the scaler has looked at any gradient. They are buffers.",
        "Before each batch, `before = [b.clone() for b in model.buffers()]`; after "
        "`scaler.update()`, if the loss was not finite, `b.copy_(old)` for each of them; the "
        "cause is 'overflow-reached-buffer'.",
    ),
    why="In training mode batch norm uses the statistics of the batch, so no training loss ever "
    "shows that the running ones are NaN. A moving average never forgets a NaN.",
    alternative="compare `scaler.get_scale()` before and after `scaler.update()`: if it fell, the "
    "step was skipped, so restore the buffers. That also undoes a batch whose gradients alone "
    "overflow.",
)


def right(model: Any, batches: Any) -> list[float]:
    cause("overflow-reached-buffer", "_to_copy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        before = [buffer.clone() for buffer in model.buffers()]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not loss.isfinite():
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(old)
        losses.append(loss.item())
    return losses


class Range(nn.Module):
    """Returns its input, and keeps the largest magnitude so far in a buffer, as an observer for
    quantization does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        if self.training:
            largest = self.get_buffer("largest")
            largest.copy_(torch.maximum(largest, x.detach().abs().max()))
        return x


def draw_model(generator: torch.Generator) -> nn.Sequential:
    """Draw a model with buffers of two kinds, as they are after some training."""
    # A momentum of None gives a plain average over the batches counted
    norms = nn.BatchNorm1d(12), nn.BatchNorm1d(8, momentum=None)
    model = nn.Sequential(
        *(nn.Linear(6, 12), norms[0], nn.Tanh(), Range()),
        *(nn.Linear(12, 8), norms[1], nn.Tanh(), nn.Linear(8, 2)),
    )
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = (torch.rand(parameter.shape, generator=generator) - 0.5) * 0.8
    # no gradient overflows unless the forward pass does
    model[7].get_parameter("weight").data *= 0.2
    model[0].get_parameter("weight").data[0, 0] = (
        4.0  # in fp16, only this one overflows for an input of 30,000
    )
    for norm in norms:
        norm.get_buffer("running_mean").uniform_(-1.0, 1.0, generator=generator)
        norm.get_buffer("running_var").uniform_(0.5, 1.5, generator=generator)
        norm.get_buffer("num_batches_tracked").fill_(3)
    return model


_init = torch.amp.GradScaler.__init__


def _init_lower(scaler: torch.amp.GradScaler, *args: Any, **options: Any) -> None:
    """Limit the scale to 2**15: at 2**16 a loss in fp16 overflows in its scaled gradient, and the
    first update would be skipped although the forward pass does not overflow.
    """
    _init(scaler, *args, **options)
    scaler._init_scale = min(scaler.get_scale(), 2.0**15)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through overflows in all units of the first layer or in one, in the first batch or
    later, and through none.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, in_all, in_one in (
        ("with an overflow in the third batch", [3], 0),
        ("with overflows in the first two batches", [1, 2], 0),
        ("with an overflow of one unit in the second batch", [], 2),
        ("without an overflow", [], 0),
    ):
        model, batches = draw_model(generator), draw_batches(generator, 5, 8, 6, 2, in_all)
        if in_one:
            batches[in_one - 1][0][3, 0] = 30_000.0
        version = model[5].get_buffer("running_mean")._version
        with (
            patch.object(torch.amp.GradScaler, "__init__", _init_lower),
            Recorded(model) as recorded,
        ):
            got = run(case, model, list(batches))
        buffers: dict[str, list[Tensor]] = {}
        for name, buffer in model.named_buffers():
            buffers.setdefault(f"`{name.split('.')[1]}`", []).append(buffer.clone())
        yield Case(
            case,
            {
                DTYPE: recorded.dtype,
                **buffers,
                "the change of the weights": recorded.change,
                "the losses": read_losses(got, case, len(batches), without=[*in_all, in_one]),
            },
            evidence={
                "the model": [*buffers.values(), recorded.change],
                # batch norm's own updates do not count as a version
                "something is restored": model[5].get_buffer("running_mean")._version != version,
            },
        )
    yield run.last_case(with_op=True)


LOOP, SAVE = (
    "for inputs, targets in batches:",
    "before = [buffer.clone() for buffer in model.buffers()]",
)
IF, PAIRS, RESTORE = (
    "if not loss.isfinite():",
    "for buffer, old in zip(model.buffers(), before, strict=True):",
    "buffer.copy_(old)",
)
NORMS = "[layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d)]"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"

mistakes = [
    Mistake(
        "unchanged",
        "the scaler skips the step, but the forward pass has already changed batch norm's running "
        "statistics. Copy the buffers before each batch, and restore them after an overflow",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "saves no copies",
        "you save the buffers themselves, which change in place. Save a `clone()` of each",
        edits={SAVE: "before = list(model.buffers())"},
    ),
    Mistake(
        "saves once",
        "an overflow undoes all batches before it. Save the buffers before each batch",
        edits={LOOP: f"{SAVE}\n{LOOP}", SAVE: "pass"},
        violates="every other batch trains them as usual",
    ),
    Mistake(
        "always puts back",
        "the buffers are restored after every batch. Restore them only after an overflow",
        edits={IF: "if True:"},
    ),
    Mistake(
        "puts back too early",
        "the backward pass of batch norm needs the buffers. Restore them after `backward()`",
        edits={
            CLEAR: f"{IF}\n    {PAIRS}\n        {RESTORE}\n{CLEAR}",
            IF: "if False:",
            PAIRS: "for _ in ():",
            RESTORE: "pass",
        },
    ),
    Mistake(
        "resets",
        "`reset_running_stats()` also removes what earlier batches added. Restore the old values",
        edits={PAIRS: f"for layer in {NORMS}:", RESTORE: "layer.reset_running_stats()"},
    ),
    Mistake(
        "writes numbers for NaN",
        "NaN is replaced by 0, so what earlier batches added is lost. Restore the old values",
        edits={RESTORE: "buffer.nan_to_num_()"},
    ),
    Mistake(
        "puts back only what is not finite",
        "only inf and NaN are restored, but the batch changed other values too. Restore all",
        edits={RESTORE: "buffer.copy_(torch.where(buffer.isfinite(), buffer, old))"},
        violates="as they were",
    ),
    Mistake(
        "forgets the counter",
        "`num_batches_tracked` counts the overflows, which changes averages. Restore all buffers",
        edits={RESTORE: f"if buffer.is_floating_point():\n    {RESTORE}"},
        violates="**all** buffers of the model",
    ),
    Mistake(
        "batch norm's buffers only",
        "the buffers of other layers are not restored. Use `model.buffers()`",
        edits={
            SAVE: f"norms = nn.ModuleList({NORMS})\n{SAVE.replace('model', 'norms')}",
            PAIRS: PAIRS.replace("model", "norms"),
        },
    ),
    Mistake(
        "running statistics only",
        "only `running_mean` and `running_var` are restored. Restore all of `model.buffers()`",
        edits={RESTORE: f"if buffer.dim():\n    {RESTORE}"},
    ),
    Mistake(
        "in evaluation mode",
        "the running statistics never change, as in evaluation mode. Use training mode",
        edits={OPTIMIZER: f"{OPTIMIZER}\nmodel.eval()", RESTORE: "pass"},
    ),
    IN_FP32,
    Mistake(
        "cuts the inputs off",
        "the batch does not overflow, because its inputs are clamped. Let it overflow",
        edits={FORWARD: FORWARD.replace("inputs", "inputs.clamp(-1e3, 1e3)")},
    ),
    IN_BF16,
    NEVER_CLEARS,
    Mistake(
        "never clears, and asks the scale",
        UNCLEARED,
        edits={
            CLEAR: "pass",
            SAVE: f"{SAVE}\nscale = scaler.get_scale()",
            IF: "if scaler.get_scale() < scale:",
        },
    ),
    replace(NO_SCALER, violates="a `GradScaler`"),
]

poisoned_norm = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the faulty script, batch norm's `running_mean` is NaN from step 13 on, and no weight "
        "ever is."
    ),
)
