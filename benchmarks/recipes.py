"""Time O1 through its recipe class next to the plain cells of chapter 06, in turn: what the class
costs.

The plain side is the step as chapter 06 writes it: autocast, scaler, clear the gradients, return
the loss. Both sides begin with the same weights and see the same batches, and their losses, weights
and scales must be equal to the last bit. A second pair of sides has a net so small that a step is
nearly all overhead, and gives the cost in microseconds.

    python -m benchmarks.recipes
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.kit.models import SimpleNet
from amp_course.loop.recipe import FP32
from amp_course.recipes import O1
from benchmarks.interleaved import (
    BATCHES,
    Batch,
    Record,
    Side,
    arguments,
    interleaved,
    speed_ratio,
    spread,
    warn_if_busy,
)

LIMIT = 1.02  # of the plain cells' time, for a step of a size that one trains
TINY_WIDTH, TINY_STEPS = 8, 100


def sgd(params: Any) -> torch.optim.Optimizer:
    """Return the optimizer of both sides."""
    return torch.optim.SGD(params, lr=1e-4)


def plain_cells(
    model: nn.Module, dtype: torch.dtype, device: torch.device
) -> tuple[Side, Callable[[], Any]]:
    """Return a side that trains by the cells of chapter 06; and what it has to show at the end."""
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(device.type)

    def run(batches: Sequence[Batch]) -> list[float]:
        losses = []
        for x, y in batches:
            with torch.autocast(device.type, dtype=dtype):
                loss = mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    return Side(run), lambda: (list(model.parameters()), scaler.state_dict())


def recipe_class(
    model: nn.Module, dtype: torch.dtype, device: torch.device
) -> tuple[Side, Callable[[], Any]]:
    """Return a side that trains by O1; and what it has to show at the end."""
    session = O1(dtype=dtype).prepare(model, sgd, mse_loss)
    assert session.scaler is not None
    scaler = session.scaler

    def run(batches: Sequence[Batch]) -> list[float]:
        return torch.stack([session.step(x, y) for x, y in batches]).tolist()

    return Side(run), lambda: (list(model.parameters()), scaler.state_dict())


SIDES = {"recipe": recipe_class, "plain": plain_cells}


def compare(
    width: int, batch_size: int, dtype: torch.dtype, steps: int, chosen: Any
) -> dict[str, Any]:
    """Time both sides on SimpleNet, and look whether they ended alike."""
    device, made = chosen.device, {}
    for name, build in SIDES.items():
        torch.manual_seed(0)
        made[name] = build(SimpleNet(width).to(device), dtype, device)
    sides = {name: side for name, (side, _) in made.items()}
    batches = [
        (pair[0], pair[1]) for pair in torch.randn(BATCHES, 2, batch_size, width, device=device)
    ]
    with FP32.precision():
        interleaved(
            sides, batches, device, steps=steps, rounds=chosen.rounds, seconds=chosen.seconds
        )
    (weights, state), (their_weights, their_state) = (end() for _, end in made.values())
    both = zip(sides["recipe"].seconds_per_step, sides["plain"].seconds_per_step, strict=True)
    return {
        "width": width,
        "batch_size": batch_size,
        "dtype": str(dtype).removeprefix("torch."),
        "same_results": state == their_state
        and sides["recipe"].losses == sides["plain"].losses
        and all(map(torch.equal, weights, their_weights)),
        "seconds": {name: spread(side.seconds_per_step) for name, side in sides.items()},
        "extra_seconds": spread(a - b for a, b in both),
        "cost": spread(
            speed_ratio(sides["plain"], sides["recipe"])
        ),  # above 1, the recipe's takes longer
        "limit": LIMIT,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if results differ or O1 through the class costs more
    than it may.
    """
    chosen = arguments(__doc__.partition("\n")[0], rounds=60, steps=10, argv=argv)
    warn_if_busy()
    record = Record("recipes", machine_report(chosen.device), chosen)
    on_gpu = chosen.device.type == "cuda"
    # fp16 is emulated on most CPUs: there a size that one trains runs O1 in bf16, its scaler at
    # work as always.
    low = torch.float16 if on_gpu else torch.bfloat16
    width, batch_size = SimpleNet.width_for(chosen.device), SimpleNet.batch_size_for(chosen.device)
    if chosen.tiny:
        width, batch_size = 16, 4
    workloads = {
        "SimpleNet": (width, batch_size, low, chosen.steps),
        "SimpleNet in fp16": (width if on_gpu else min(width, 64), 32, torch.float16, chosen.steps),
        "next to nothing": (TINY_WIDTH, 2, torch.bfloat16, 2 if chosen.tiny else TINY_STEPS),
    }
    fine = True
    for name, size in workloads.items():
        found = record.data["workloads"][name] = compare(*size, chosen)
        cost = found["cost"]
        ours, theirs = (
            seconds_text(found["seconds"][side]["median"]) for side in ("recipe", "plain")
        )
        print(
            f"{name:18} width {found['width']}, {found['dtype']}: O1 {ours}, plain cells {theirs}  "
            f" cost {cost['median']:.3f} ({cost['q1']:.3f} to {cost['q3']:.3f}), "
            f"{seconds_text(found['extra_seconds']['median'])} a step"
        )
        if not found["same_results"]:
            print(f"{name}: the results differ, so the times mean nothing")
        judged = name == "SimpleNet" and not chosen.tiny
        fine = fine and found["same_results"] and not (judged and cost["median"] > LIMIT)
    print(f"aim: {LIMIT:g} for SimpleNet\n\nwritten: {record.write().name}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
