"""Assemble a training step from switches, so that its faults can be tried out:
the text shown is the text that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

EVERY = 2  # micro-batches to an update
MAX_NORM = 1.0


@dataclass(frozen=True)
class Switches:
    """Where the lines of a loop stand. The defaults make the right loop; each other choice is a
    fault.

    Raises ValueError for a choice that `CHOICES` lacks.
    Example: Switches(clip="before unscale") → the loop whose audit says "clipped-while-scaled"
    """

    clip: str = "after unscale"
    divide: bool = True  # each loss by the number of micro-batches
    clear: str = "after the update"  # optimizer.zero_grad()
    update: str = "once"  # scaler.update()
    wait: bool = True  # the scheduler, when the step was skipped

    CHOICES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "clip": ("after unscale", "before unscale", "every micro-batch", "not at all"),
        "divide": (True, False),
        "clear": ("after the update", "every micro-batch", "never"),
        "update": ("once", "every micro-batch", "never"),
        "wait": (True, False),
    }

    def __post_init__(self) -> None:
        for one in fields(self):
            value, choices = getattr(self, one.name), self.CHOICES[one.name]
            if value not in choices:
                raise ValueError(
                    f"{one.name} is {value!r}: choose one of {', '.join(map(repr, choices))}."
                )


def source_of(switches: Switches) -> str:
    """Write the loop: plain PyTorch that one could paste."""
    clip = "clip_grad_norm_(model.parameters(), max_norm)"
    every = [
        "with torch.autocast(device, dtype=torch.float16):",
        "    loss = cross_entropy(model(x), y)",
    ]
    every.append(f"scaler.scale(loss{' / every' if switches.divide else ''}).backward()")
    if switches.clip == "every micro-batch":
        every.append(clip)
    update = []
    if switches.clip == "before unscale":
        update.append(clip)
    update.append("scaler.unscale_(optimizer)")
    if switches.clip == "after unscale":
        update.append(clip)
    update += ["scaler.step(optimizer)"]
    # Where the schedule waits, it has to see the scale before and after the update.
    wait = switches.wait and switches.update == "once"
    if wait:
        update.append("before = scaler.get_scale()")
    if switches.update == "once":
        update.append("scaler.update()")
    update += (
        ["if scaler.get_scale() >= before:", "    scheduler.step()"]
        if wait
        else ["scheduler.step()"]
    )
    if switches.clear == "after the update":
        update.append("optimizer.zero_grad()")
    after = ["scaler.update()"] if switches.update == "every micro-batch" else []
    after += ["optimizer.zero_grad()"] if switches.clear == "every micro-batch" else []
    lines = [*every, "if last:", *("    " + line for line in update), *after]
    return "\n".join(["def train_step(x, y, *, last):", *("    " + line for line in lines)]) + "\n"


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def build_loop(
    switches: Switches, *, seed: int = 0
) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Return (source text, train_step, objects) of a loop on a tiny model; `audit(train_step,
    **objects)` judges it.

    The model maps 16 features to 5 classes; the loop makes one update of two micro-batches of 8.
    Example: audit(step, **objects).names for Switches(divide=False) → ("sum-not-mean",)
    """
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = [
        (torch.randn(8, 16, generator=generator), torch.randint(0, 5, (8,), generator=generator))
        for _ in range(2 * EVERY)
    ]
    names: dict[str, Any] = {
        "torch": torch,
        "cross_entropy": nn.functional.cross_entropy,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "device": "cpu",
        "every": EVERY,
        "max_norm": MAX_NORM,
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "scheduler": scheduler,
    }
    text = source_of(switches)
    exec(compile(text, "<the loop of the switches>", "exec"), names)
    objects = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "scheduler": scheduler,
        "loss": _loss,
        "batches": torch.utils.data.DataLoader(batches, batch_size=None),  # type: ignore[arg-type]  # of whole groups
        "accumulate": EVERY,
        "max_norm": MAX_NORM,
    }
    return text, names["train_step"], objects
