"""Patient 13 of chapter 11: a model that trains well, and returns NaN in evaluation mode."""

import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.poisoned_norm import train as patient
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
    name="poisoned_norm",
    number=13,
    title="Fine in training, NaN in evaluation",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=18,
    task="Write `poisoned_norm(model, batches)`, a `train` without the fault: SGD with lr=0.1, "
    "fp16 autocast, a `GradScaler`, one update per batch. A batch whose forward pass overflows "
    "must leave all parameters and **all** buffers of the model as they were; every other batch "
    "trains them as usual. It returns the list of losses, one per batch, whatever it is for one "
    "that overflows. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "The scaler skips the update of the weights. What else does a forward pass in training "
        "mode change in a model?",
        "Batch norm updates `running_mean`, `running_var` and `num_batches_tracked` in the "
        "forward pass, before the scaler has looked at any gradient. They are buffers.",
        "Before each batch, `before = [b.clone() for b in model.buffers()]`; after "
        "`scaler.update()`, if the loss was not finite, `b.copy_(old)` for each of them; the "
        "cause is 'overflow-reached-buffer'.",
    ),
    why="In training mode batch norm uses the statistics of the batch, so no loss ever shows that "
    "the running ones are NaN. A moving average never forgets a NaN.",
    alternative="compare `scaler.get_scale()` before and after `scaler.update()`: if it fell, the "
    "step was skipped, so put the buffers back.",
)


def right(model: Any, batches: Any) -> list[float]:
    cause("overflow-reached-buffer")
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


# The case in words, and the batches that overflow: in all units of the first layer, or in the first
# unit alone
CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("with an overflow in the third batch", (2,), ()),
    ("with overflows in the first two batches", (0, 1), ()),
    ("with an overflow of one unit in the second batch", (), (1,)),
    ("without an overflow", (), ()),
)


class Range(nn.Module):
    """Passes x on, and keeps the largest magnitude so far in a buffer,
    as an observer for quantization does.
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


_begin = torch.amp.GradScaler.__init__


def _begin_lower(scaler: torch.amp.GradScaler, *args: Any, **options: Any) -> None:
    """Make a scaler with a scale of at most 2**15.

    It is the gradient of the scaled loss: a loss in fp16 skips the first update at 2**16, and no
    batch should be skipped that does not overflow in the forward pass.
    """
    _begin(scaler, *args, **options)
    scaler._init_scale = min(scaler.get_scale(), 2.0**15)


BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through overflows in all units or in one, in the first batch or later,
    and through none.
    """
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    causes: list[str] = []
    for case, in_all, in_one in CASES:
        hidden, last, seen = nn.Linear(6, 12), nn.Linear(8, 2), Range()
        norms = (
            nn.BatchNorm1d(12),
            nn.BatchNorm1d(8, momentum=None),
        )  # None: a plain average over the batches counted
        model = nn.Sequential(
            hidden, norms[0], nn.Tanh(), seen, nn.Linear(12, 8), norms[1], nn.Tanh(), last
        )
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data = (torch.rand(parameter.shape, generator=generator) - 0.5) * 0.8
        last.weight.data *= 0.2  # so that no gradient overflows while the forward pass does not
        hidden.weight.data[0, 0] = (
            4.0  # 4 × 30,000 is beyond fp16, and no other unit of the layer gets there
        )
        for norm in norms:  # as after some training: not what `reset_running_stats` brings back
            norm.get_buffer("running_mean").uniform_(-1.0, 1.0, generator=generator)
            norm.get_buffer("running_var").uniform_(0.5, 1.5, generator=generator)
            norm.get_buffer("num_batches_tracked").fill_(3)
        batches = []
        for number in range(5):
            inputs = torch.randn(8, 6, generator=generator)
            if number in in_all:
                inputs *= 1e6
            if number in in_one:
                inputs[3, 0] = 30_000.0
            batches.append((inputs, torch.randint(0, 2, (8,), generator=generator)))
        overflow = in_all + in_one
        before, version = flat(model.parameters()), norms[1].get_buffer("running_mean")._version
        first: list[str] = []
        hook = hidden.register_forward_hook(
            lambda module, args, output, first=first: first.append(str(output.dtype)[6:])
        )
        with patch.object(torch.amp.GradScaler, "__init__", _begin_lower):
            got, named = run_answer(answer, case, model, list(batches))
        hook.remove()
        causes.append(named)
        losses = read_losses(got, case, len(batches))
        buffers = {name: [layer.get_buffer(name).clone() for layer in norms] for name in BUFFERS}
        buffers["largest"] = [seen.get_buffer("largest").clone()]
        change = flat(model.parameters()) - before
        yield Case(
            case,
            {
                "the dtype that the first layer computes in": " and ".join(sorted(set(first))),
                **{f"`{name}`": value for name, value in buffers.items()},
                "the change of the weights": change,
                "the losses": [
                    loss for number, loss in enumerate(losses) if number not in overflow
                ],
            },
            evidence={
                "the model": [*buffers.values(), change],
                # batch norm's own updates do not count as a version
                "something is put back": norms[1].get_buffer("running_mean")._version != version,
            },
        )
    yield Case(
        "", {CAUSE: " and ".join(dict.fromkeys(causes))}
    )  # last, as it is told of a mended function


FOR, SAVE = (
    "for inputs, targets in batches:",
    "before = [buffer.clone() for buffer in model.buffers()]",
)
REGION, FORWARD = (
    'with torch.autocast("cpu", dtype=torch.float16):',
    "loss = cross_entropy(model(inputs), targets)",
)
ASK, PAIRS = (
    "if not loss.isfinite():",
    "for buffer, old in zip(model.buffers(), before, strict=True):",
)
BACK, CLEAR = "buffer.copy_(old)", "optimizer.zero_grad()"
BACKWARD, STEP, UPDATE = (
    "scaler.scale(loss).backward()",
    "scaler.step(optimizer)",
    "scaler.update()",
)
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
NORMS = "[layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d)]"

mistakes = [
    Mistake(
        "unchanged",
        "the scaler skips the update of the weights, but the forward pass has already taken the "
        "overflow into batch norm's running statistics. Save a copy of the buffers before each "
        "batch, and put it back after an overflow",
        answer=patient,
        violates="a `train` without the fault",
    ),
    Mistake(
        "saves no copies",
        "what you save are the buffers themselves, which batch norm updates in place: save a "
        "`clone()` of each",
        edits={SAVE: "before = list(model.buffers())"},
    ),
    Mistake(
        "saves once",
        "an overflow undoes all batches up to it, as the buffers are saved once, before the "
        "first: save them before each",
        edits={FOR: f"{SAVE}\n{FOR}", SAVE: "pass"},
        violates="every other batch trains them as usual",
    ),
    Mistake(
        "always puts back",
        "the buffers are put back after every batch, so the running statistics never move: do it "
        "only after an overflow",
        edits={ASK: "if True:"},
    ),
    Mistake(
        "puts back too early",
        "batch norm's backward pass needs the buffers as its forward pass left them: put them "
        "back after `backward()`",
        edits={
            CLEAR: f"if not loss.isfinite():\n    {PAIRS}\n        {BACK}\n{CLEAR}",
            ASK: "if False:",
            PAIRS: "for _ in ():",
            BACK: "pass",
        },
    ),
    Mistake(
        "resets",
        "`reset_running_stats()` gets rid of the NaN, and of all that the earlier batches had "
        "added: put back the statistics from before the batch",
        edits={PAIRS: f"for layer in {NORMS}:", BACK: "layer.reset_running_stats()"},
    ),
    Mistake(
        "writes numbers for NaN",
        "the NaNs are replaced by 0, and what the earlier batches had added is lost: put back the "
        "statistics from before the batch",
        edits={BACK: "buffer.nan_to_num_(0.0, 0.0, 0.0)"},
    ),
    Mistake(
        "puts back only what is not finite",
        "only what has become inf or NaN is put back. The batch has also changed the other "
        "statistics: put back all of them",
        edits={BACK: "buffer.copy_(torch.where(buffer.isfinite(), buffer, old))"},
        violates="as they were",
    ),
    Mistake(
        "forgets the counter",
        "`num_batches_tracked` still counts the batches that overflowed, and with `momentum=None` "
        "batch norm divides by it: put back all buffers",
        edits={BACK: "if buffer.is_floating_point():\n    buffer.copy_(old)"},
        violates="**all** buffers of the model",
    ),
    Mistake(
        "batch norm's buffers only",
        "batch norm's buffers are put back, and those of other layers are not: go through "
        "`model.buffers()`",
        edits={
            SAVE: f"norms = {NORMS}\nbefore = [b.clone() for layer in norms for b in "
            f"layer.buffers()]",
            PAIRS: "for buffer, old in zip([b for layer in norms for b in layer.buffers()], "
            "before, strict=True):",
        },
    ),
    Mistake(
        "in evaluation mode",
        "batch norm's running statistics never move, and the model trains with those it began "
        "with, as in evaluation mode: leave it in training mode",
        edits={OPTIMIZER: f"{OPTIMIZER}\nmodel.eval()"},
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now, where nothing overflows, and so the batch is trained "
        "on. The card asks for fp16",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
    Mistake(
        "cuts the inputs off",
        "with its inputs cut off, the batch does not overflow any more and is trained on: let it "
        "overflow, then put the buffers back",
        edits={FORWARD: "loss = cross_entropy(model(inputs.clamp(-1e3, 1e3)), targets)"},
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now, where nothing overflows, and so the batch is trained "
        "on. The card asks for fp16",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
    Mistake(
        "never clears, and asks the scale",
        UNCLEARED,
        edits={
            CLEAR: "pass",
            SAVE: f"{SAVE}\nscale = scaler.get_scale()",
            ASK: "if scaler.get_scale() < scale:",
        },
    ),
    Mistake(
        "no scaler",
        "without a scaler nothing skips an update whose gradients are NaN, and the weights become "
        "NaN too",
        edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
        violates="a `GradScaler`",
    ),
]

poisoned_norm = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the patient, batch norm's `running_mean` is NaN from step 13 on, and no weight ever is."
    ),
)
