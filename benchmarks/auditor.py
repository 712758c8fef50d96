"""Time an audit of the digits ResNet next to one step of its training, in turn: it may take 2 s, or
20 steps if that is more.

python -m benchmarks.auditor
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.audit import audit
from amp_course.kit import data
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.kit.models import DigitsResNet
from benchmarks.interleaved import (
    Record,
    Side,
    arguments,
    interleaved,
    speed_ratio,
    spread,
    warn_if_busy,
)

SECONDS, STEPS = 2.0, 20.0  # what an audit may take, whichever is more
DTYPES = {"AMP fp16": torch.float16, "AMP bf16": torch.bfloat16, "fp32": None}


def compare(dtype: torch.dtype | None, chosen: Any) -> dict[str, Any]:
    """Time one step and one audit of it, with all that an audit can judge:
    loss, clipping and, in fp16, a scaler.
    """
    device = chosen.device
    torch.manual_seed(0)
    model = (DigitsResNet(4) if chosen.tiny else DigitsResNet.for_device(device)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=dtype is torch.float16)
    size = 8 if chosen.tiny else DigitsResNet.batch_size_for(device)
    batches = list(data.digit_batches(data.digits(), size, epochs=1, seed=1, device=device))[:8]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def step(x: Tensor, y: Tensor) -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            value = loss(model, x, y)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    objects = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "loss": loss,
        "max_norm": 1.0,
    }
    faults: set[str] = set()

    def steps(block: Sequence[Any]) -> list[float]:
        for batch in block:
            step(*batch)
        return []

    def audits(block: Sequence[Any]) -> list[float]:
        for batch in block:
            faults.update(audit(step, batches=[batch, batches[0]], **objects).names)
        return []

    sides = {"step": Side(steps), "audit": Side(audits)}
    interleaved(
        sides, batches, device, steps=chosen.steps, rounds=chosen.rounds, seconds=chosen.seconds
    )
    seconds = {name: spread(side.seconds_per_step) for name, side in sides.items()}
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": size,
        "faults": sorted(faults),
        "seconds": seconds,
        "steps": spread(speed_ratio(sides["step"], sides["audit"])),
        "limit_seconds": max(SECONDS, STEPS * seconds["step"]["median"]),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if an audit takes longer than it may, or accuses."""
    chosen = arguments((__doc__ or "").split("\n")[0], rounds=10, steps=2, argv=argv)
    warn_if_busy()
    record = Record("auditor", machine_report(chosen.device), chosen)
    fine = True
    for name, dtype in DTYPES.items():
        found = record.data["workloads"][name] = compare(dtype, chosen)
        times = {side: seconds_text(values["median"]) for side, values in found["seconds"].items()}
        ratio = found["steps"]
        print(
            f"{name:10}{found['parameters']:,} parameters, batch {found['batch']}   step "
            f"{times['step']}, audit {times['audit']} = {ratio['median']:.0f} steps "
            f"({ratio['q1']:.0f} to {ratio['q3']:.0f}), may take "
            f"{seconds_text(found['limit_seconds'])}"
            + (f"   accused: {', '.join(found['faults'])}" if found["faults"] else "")
        )
        fine = (
            fine
            and not found["faults"]
            and found["seconds"]["audit"]["median"] <= found["limit_seconds"]
        )
    print(f"\nwritten: {record.write().name}")
    return 0 if fine or chosen.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
