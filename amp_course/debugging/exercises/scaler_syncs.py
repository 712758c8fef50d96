"""Patient 10 of chapter 11: a training whose GPU has to wait for the host in every step."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.scaler_syncs import train as patient
from amp_course.debugging.clinic.trials import (
    CAUSE,
    UNCLEARED,
    Recorded,
    describe_cause,
    fp32_gradient,
    read_losses,
    run_answer,
    sizes_of_updates,
)
from amp_course.speed.exercises.host_reads import HostReads

card = Card(
    chapter="debugging",
    name="scaler_syncs",
    number=10,
    title="A gap in every step",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=12,
    task="Write `scaler_syncs(model, batches, scaler)`, a `train` without the fault: SGD with "
    "lr=0.5, fp16 autocast, the scaler as you get it, one update per batch, and none where a "
    "gradient overflows. Until the last batch is reached, nothing may read a tensor's value. It "
    "returns the losses, as a list or a tensor. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "`aten::_local_scalar_dense` is what `.item()` runs. The loop itself has none, so which "
        "of its calls has one inside?",
        "`scaler.step` asks whether a gradient overflowed, in order to skip the step. Which "
        "optimizer can decide that on the device?",
        "`torch.optim.SGD(…, fused=True)` takes the scale and the answer as tensors; the cause is "
        "'host-waits'.",
    ),
    why="A fused optimizer gets the scale and the overflow flag as tensors, so its kernel skips "
    "the step and Python never asks. (With momentum, take AdamW: in torch 2.13, fused SGD starts "
    "from unwritten memory if its first step is skipped.)",
    alternative="after `scaler.unscale_`, use `torch.where` to set all gradients to 0 if any is "
    "not finite, and call `optimizer.step()`. With momentum or weight decay, though, such a step "
    "still moves the weights.",
)


def right(model: Any, batches: Any, scaler: Any) -> Any:
    cause("host-waits")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


class Scaler(torch.amp.GradScaler):
    """A scaler that knows which of its methods runs: "scaler.step", or "" for none."""

    running = ""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Do what every scaler does."""
        return self._run("step", *args, **kwargs)

    def get_scale(self) -> float:
        """Return the scale, which has to be read."""
        return float(self._run("get_scale"))

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.running = self.running or f"scaler.{name}"
        try:
            return getattr(super(), name)(*args, **kwargs)
        finally:
            self.running = ""


CASES = (  # the case, the scale, the batches whose inputs are too large for fp16
    ("with a scale of 256", 2.0**8, ()),
    ("with an overflow in batches 1 and 4", 2.0**8, (1, 4)),
    ("with a scale so high that some gradients overflow", 2.0**18, ()),
)


_CALLS = {
    "__float__": "`float`",
    "__bool__": "a condition",
    "__format__": "formatting",
    "__repr__": "printing",
}
PARTLY = "the batches whose update is neither right nor skipped"
READERS = "what reads a value before the last batch"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through overflows of all gradients and of some,
    and note who reads a value before the last batch.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, scale, overflow in CASES:
        model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        batches = []
        for number in range(1, 7):
            inputs, targets = (
                torch.randn(6, 12, generator=generator),
                torch.randint(0, 4, (6,), generator=generator),
            )
            batches.append((inputs * 1e6 if number in overflow else inputs, targets))
        scaler = Scaler("cpu", init_scale=scale, growth_interval=2)
        recorded = Recorded(model)
        weights = recorded.weights
        readers: list[
            str
        ] = []  # the scaler's method that each read comes from; "" for the answer's own reads

        def place(scaler: Any = scaler, weights: Any = weights, readers: Any = readers) -> int:
            readers.append(scaler.running)
            return len(weights)

        with HostReads(place) as host:
            got, named = run_answer(answer, case, model, list(batches), scaler)
            causes.append(named)
        recorded.end()
        losses = read_losses(got, case, len(batches))
        early = [
            f"`{reader}`" if reader else _CALLS.get(read.call, f"`{read.call}`")
            for read, reader in zip(host.reads, readers, strict=True)
            if 0 < read.place < len(batches)
        ]
        changed = [
            number
            for number, (a, b) in enumerate(itertools.pairwise(weights), 1)
            if not torch.equal(a, b)
        ]
        outputs: dict[str, Any] = {
            "the number of forward passes": len(weights) - 1,
            "the dtype that the first layer computes in": " and ".join(sorted(recorded.dtypes)),
        }
        if scale > 2.0**16:  # which updates are skipped depends on how the loss is written
            sizes = sizes_of_updates(weights[: len(batches) + 1], sgd_update(batches), model)
            outputs |= {
                "whether any batch changes the weights": bool(changed),
                PARTLY: [
                    number
                    for number, size in enumerate(sizes, 1)
                    if size not in ((0.0, 0.0), (1.0, 1.0))
                ],
            }
        else:
            outputs |= {
                "the batches that change the weights": changed,
                "the change of the weights": weights[-1] - weights[0],
                "the loss scale at the end": scaler.get_scale(),
                "the losses": torch.tensor(
                    [loss for number, loss in enumerate(losses, 1) if number not in overflow]
                ),
            }
        yield Case(
            case,
            {**outputs, READERS: " and ".join(sorted(set(early))) or "nothing"},
            {"reads": len(early)},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


def sgd_update(batches: Sequence[tuple[Tensor, Tensor]]) -> Callable[[nn.Module, int], Tensor]:
    """Return a function that takes a model and the number of a batch,
    and returns the right update.
    """
    return lambda model, number: -0.5 * fp32_gradient(model, cross_entropy, batches[number])


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)"
UNFUSED = OPTIMIZER.replace(", fused=True", "")
REGION, LOSS = (
    'with torch.autocast("cpu", dtype=torch.float16):',
    "loss = cross_entropy(model(inputs), targets)",
)
BACKWARD, STEP, UPDATE = (
    "scaler.scale(loss).backward()",
    "scaler.step(optimizer)",
    "scaler.update()",
)
CLEAR, LOSSES = "optimizer.zero_grad()", "losses = []"
KEEP, RETURN = "losses.append(loss.detach())", "return torch.stack(losses)"
GRADIENTS = "gradients = [p.grad for p in model.parameters()]"
TESTED = (
    f"scaler.unscale_(optimizer)\n{GRADIENTS}\nif all(one.isfinite().all() for one in "
    f"gradients):\n    optimizer.step()"
)
ZEROED = (
    f"scaler.unscale_(optimizer)\n{GRADIENTS}\n[one.nan_to_num_(0.0, 0.0, 0.0) for one in "
    f"gradients]\noptimizer.step()"
)

mistakes = [
    Mistake(
        "unchanged",
        "`scaler.step` still reads in each step whether a gradient overflowed, as it must for an "
        "optimizer that is not fused: pass `fused=True` to SGD",
        answer=patient,
        violates="a `train` without the fault",
    ),
    Mistake(
        "reads each loss",
        "the scaler reads nothing any more, but your code calls `.item()` before the last batch: "
        "keep `loss.detach()`, and read the losses at the end",
        edits={KEEP: "losses.append(loss.item())", RETURN: "return losses"},
        violates="nothing may read a tensor's value",
    ),
    Mistake(
        "a list of each loss",
        "`.tolist()` reads a value just as `.item()` does: keep `loss.detach()`, and read the "
        "losses at the end",
        edits={KEEP: "losses += loss.detach().reshape(1).tolist()", RETURN: "return losses"},
    ),
    Mistake(
        "reads the scale",
        "`scaler.get_scale()` reads a value as well: call it after the last batch, or not at all",
        edits={UPDATE: f"{UPDATE}\nscaler.get_scale()"},
    ),
    Mistake(
        "tests a tensor",
        "a condition on a tensor (`if`, `min`, `not`) reads its value, just as `.item()` does. "
        "Test losses after the last batch; whether a gradient overflowed, an optimizer with "
        "`fused=True` decides on the device",
        edits={OPTIMIZER: UNFUSED, STEP: TESTED},
    ),
    Mistake(
        "steps without the scaler",
        "`optimizer.step()` reads nothing, but it uses gradients that overflowed, too: call "
        "`scaler.step(optimizer)` with a fused optimizer",
        edits={OPTIMIZER: UNFUSED, STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
        violates="none where a gradient overflows",
    ),
    Mistake(
        "zeroes what overflows",
        "where some gradients overflow, the others still change their weights, as if only the "
        "overflowed ones were set to 0: skip the whole step",
        edits={OPTIMIZER: UNFUSED, STEP: ZEROED},
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
    Mistake("never clears, and is not fused", UNCLEARED, edits={CLEAR: "pass", OPTIMIZER: UNFUSED}),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now, and the card asks for fp16: only the optimizer has to "
        "change",
        edits={REGION: "if True:"},
    ),
    Mistake(
        "a scaler of its own",
        "the scale of the caller's scaler never changes: use the scaler that you get, and make "
        "none",
        edits={LOSSES: f'scaler = torch.amp.GradScaler("cpu")\n{LOSSES}'},
    ),
    Mistake(
        "no scaler",
        "without the scaler nothing is read, but nothing skips an overflow either: keep the "
        "scaler, and pass `fused=True` to SGD",
        edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
        violates="the scaler as you get it",
    ),
    Mistake(
        "no update",
        "`scaler.update()` is missing, and it reads nothing: call it after each `scaler.step`",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now. That would do without a scaler, but the card asks for "
        "fp16",
        edits={REGION: REGION.replace("float16", "bfloat16")},
        violates="fp16 autocast",
    ),
    Mistake(
        "another rate",
        "the learning rate is not 0.5 any more",
        edits={OPTIMIZER: OPTIMIZER.replace("lr=0.5", "lr=0.05")},
        violates="SGD with lr=0.5",
    ),
]

scaler_syncs = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause("In the patient, each call of `scaler.step` ran one `.item()`.")
    | {
        READERS: "{case}, a value was read {reads} times before the last batch, by {got}. On a GPU "
        "the host waits there until all queued work is done"
    },
)
