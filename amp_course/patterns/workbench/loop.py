"""Assemble a training step from switches, to try out its faults: the text shown is what runs."""

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
    """Where the lines of a loop are. The defaults make the right loop, other choices a fault.

    Raises ValueError for a choice that `CHOICES` lacks.
    Example: Switches(clip="before unscale") → the loop whose audit says "clipped-while-scaled"
    """

    clip: str = "after unscale"
    divide: bool = True  # each loss by the number of micro-batches
    clear: str = "after the update"  # optimizer.zero_grad()
    update: str = "once"  # scaler.update()
    wait: bool = True  # the scheduler, after a skipped step

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
    """Write the loop: plain PyTorch, ready to paste."""
    clip = "clip_grad_norm_(model.parameters(), max_norm)"
    update, clear = "scaler.update()", "optimizer.zero_grad()"
    # to wait, the scheduler compares the scale before and after the only update
    wait = switches.wait and switches.update == "once"
    lines = [  # a line, and the condition on which it is there
        ("def train_step(x, y, *, last):", True),
        ("    with torch.autocast(device, dtype=torch.float16):", True),
        ("        loss = cross_entropy(model(x), y)", True),
        ("    scaler.scale(loss / every).backward()", switches.divide),
        ("    scaler.scale(loss).backward()", not switches.divide),
        (f"    {clip}", switches.clip == "every micro-batch"),
        ("    if last:", True),
        (f"        {clip}", switches.clip == "before unscale"),
        ("        scaler.unscale_(optimizer)", True),
        (f"        {clip}", switches.clip == "after unscale"),
        ("        scaler.step(optimizer)", True),
        ("        before = scaler.get_scale()", wait),
        (f"        {update}", switches.update == "once"),
        ("        if scaler.get_scale() >= before:", wait),
        ("            scheduler.step()", wait),
        ("        scheduler.step()", not wait),
        (f"        {clear}", switches.clear == "after the update"),
        (f"    {update}", switches.update == "every micro-batch"),
        (f"    {clear}", switches.clear == "every micro-batch"),
    ]
    return "".join(f"{line}\n" for line, is_in in lines if is_in)


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def build_loop(switches: Switches) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Return a loop on a tiny model as (source text, train_step, arguments of `audit`).

    The model maps 16 features to 5 classes; the loop makes one update of two micro-batches of 8.
    Example: audit(step, **objects).names for Switches(divide=False) → ("sum-not-mean",)
    """
    generator = torch.Generator().manual_seed(0)
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
    shared = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "scheduler": scheduler,
        "max_norm": MAX_NORM,
    }
    names: dict[str, Any] = shared | {
        "torch": torch,
        "cross_entropy": nn.functional.cross_entropy,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "device": "cpu",
        "every": EVERY,
    }
    text = source_of(switches)
    exec(compile(text, "<the loop of the switches>", "exec"), names)
    objects = shared | {
        "loss": _loss,
        "batches": torch.utils.data.DataLoader(batches, batch_size=None),  # type: ignore[arg-type]  # of whole groups
        "accumulate": EVERY,
    }
    return text, names["train_step"], objects
