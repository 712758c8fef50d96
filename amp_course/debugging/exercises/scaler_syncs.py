"""Exercise 10 of chapter 11: a training run whose GPU has to wait for the host in every step."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.scaler_syncs import train as faulty
from amp_course.debugging.clinic.trials import (
    CLEAR,
    DTYPE,
    IN_BF16,
    IN_FP32,
    NEVER_CLEARS,
    NO_SCALER,
    NO_UPDATE,
    OWN_SCALER,
    STEP,
    UNCLEARED,
    UPDATE,
    Recorded,
    Runner,
    describe_cause,
    draw_batches,
    draw_model,
    fp32_gradient,
    read_losses,
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
    "returns the losses, as a list or a tensor. Name the fault in its first line, with `cause(…)`.",
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
    """A scaler that knows which of its methods is running, "" for none."""

    running = ""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Do what every scaler does."""
        return self._run("step", *args, **kwargs)

    def get_scale(self) -> float:
        """Return the scale, which has to be read."""
        return float(self._run("get_scale"))

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.running = self.running or f"`scaler.{name}`"
        try:
            return getattr(super(), name)(*args, **kwargs)
        finally:
            self.running = ""


CALLS = {
    "__float__": "`float`",
    "__bool__": "a condition",
    "__format__": "formatting",
    "__repr__": "printing",
}
READERS = "what reads a value before the last batch"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through overflows of all gradients and of some, and note what reads a value before the
    last batch.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, scale, overflow in (
        ("with a scale of 256", 2.0**8, []),
        ("with an overflow in batches 1 and 4", 2.0**8, [1, 4]),
        ("with a scale so high that some gradients overflow", 2.0**18, []),
    ):
        model, batches = (
            draw_model(generator, 12, 24, 4),
            draw_batches(generator, 6, 6, 12, 4, overflow),
        )
        scaler = Scaler("cpu", init_scale=scale, growth_interval=2)
        readers: list[str] = []  # the scaler's method behind each read, "" for the answer's own

        def right_update(model: nn.Module, number: int, batches: Any = batches) -> Tensor:
            return -0.5 * fp32_gradient(model, cross_entropy, batches[number])

        with Recorded(model) as recorded:

            def place(
                scaler: Any = scaler, recorded: Any = recorded, readers: Any = readers
            ) -> int:
                readers.append(scaler.running)
                return len(recorded.weights)

            with HostReads(place) as host:
                got = run(case, model, list(batches), scaler)
        early = [
            reader or CALLS.get(read.call, f"`{read.call}`")
            for read, reader in zip(host.reads, readers, strict=True)
            if 0 < read.place < len(batches)
        ]
        losses = read_losses(got, case, len(batches), without=overflow)
        outputs: dict[str, Any]
        if scale > 2.0**16:  # which updates are skipped depends on how the loss is written
            sizes = sizes_of_updates(recorded.weights[: len(batches) + 1], right_update, model)
            outputs = {
                "whether any batch changes the weights": bool(recorded.updated),
                "the batches whose update is neither right nor skipped": [
                    number
                    for number, size in enumerate(sizes, 1)
                    if size not in ((0.0, 0.0), (1.0, 1.0))
                ],
            }
        else:
            outputs = {
                "the batches that change the weights": recorded.updated,
                "the change of the weights": recorded.change,
                "the loss scale at the end": scaler.get_scale(),
                "the losses": torch.tensor(losses),
            }
        yield Case(
            case,
            {
                "the number of forward passes": recorded.passes,
                DTYPE: recorded.dtype,
                **outputs,
                READERS: " and ".join(sorted(set(early))) or "nothing",
            },
            {"reads": len(early)},
        )
    yield run.last_case()


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)"
NOT_FUSED = {OPTIMIZER: OPTIMIZER.replace(", fused=True", "")}
KEEP, RETURN = "losses.append(loss.detach())", "return torch.stack(losses)"
UNSCALED = "scaler.unscale_(optimizer)\ngradients = [p.grad for p in model.parameters()]"

mistakes = [
    Mistake(
        "unchanged",
        "in each step, `scaler.step` reads whether a gradient overflowed, as it must for an "
        "optimizer that is not fused. Pass `fused=True` to SGD",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "reads each loss",
        "the scaler reads nothing now, but your code calls `.item()` before the last batch. Keep "
        "`loss.detach()`, and read the losses at the end",
        edits={KEEP: "losses.append(loss.item())", RETURN: "return losses"},
        violates="nothing may read a tensor's value",
    ),
    Mistake(
        "a list of each loss",
        "`.tolist()` reads a value too. Keep `loss.detach()`, and read the losses at the end",
        edits={KEEP: "losses += loss.detach().reshape(1).tolist()", RETURN: "return losses"},
    ),
    Mistake(
        "reads the scale",
        "`scaler.get_scale()` reads a value too. Call it after the last batch, or not at all",
        edits={UPDATE: f"{UPDATE}\nscaler.get_scale()"},
    ),
    Mistake(
        "tests a tensor",
        "a condition on a tensor (`if`, `min`, `not`) reads its value, just as `.item()` does. "
        "Test losses after the last batch, and leave overflows to an optimizer with `fused=True`, "
        "which decides on the device",
        edits={
            **NOT_FUSED,
            STEP: f"{UNSCALED}\nif all(one.isfinite().all() for one in gradients):\n"
            "    optimizer.step()",
        },
    ),
    Mistake(
        "steps by hand",
        "nothing is read, but the step is also taken when gradients overflow. Call "
        "`scaler.step(optimizer)` with a fused optimizer instead of `optimizer.step()`",
        edits={**NOT_FUSED, STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
        violates="none where a gradient overflows",
    ),
    Mistake(
        "zeroes what overflows",
        "where some gradients overflow, the other weights still change, as if only the overflowed "
        "gradients were set to 0. Skip the whole step",
        edits={
            **NOT_FUSED,
            STEP: f"{UNSCALED}\n[one.nan_to_num_(0.0, 0.0, 0.0) for one in gradients]\n"
            "optimizer.step()",
        },
    ),
    NEVER_CLEARS,
    Mistake("never clears, and is not fused", UNCLEARED, edits={CLEAR: "pass", **NOT_FUSED}),
    IN_FP32,
    OWN_SCALER,
    replace(NO_SCALER, violates="the scaler as you get it"),
    NO_UPDATE,
    IN_BF16,
    Mistake(
        "another rate",
        "the learning rate is not 0.5. Keep it as it is",
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
    messages=describe_cause("In the faulty script, each `scaler.step` runs one `.item()`.")
    | {
        READERS: "{case}, a value was read {reads} times before the last batch, by {got}. On a GPU "
        "the host waits there until all queued work is done"
    },
)
