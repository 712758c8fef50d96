"""Time `DynamicScaler` next to `torch.amp.GradScaler` on a model of ten million parameters, in
turn.

Two workloads: what the scaler itself does in a step (scale, unscale and check every gradient,
update; the optimizer does nothing), and a whole AMP step with AdamW. Both sides begin with the same
weights, and their losses, weights and scales must be equal to the last bit.

    python -m benchmarks.scaler
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.scaler.dynamic import DynamicScaler
from benchmarks.interleaved import (
    BATCHES,
    Record,
    Side,
    arguments,
    interleaved,
    speed_ratio,
    spread,
    warn_if_busy,
)

LIMIT = 1.05  # of PyTorch's time
SCALERS: dict[str, Callable[..., Any]] = {"course": DynamicScaler, "torch": torch.amp.GradScaler}


class Idle(torch.optim.SGD):
    """An optimizer that owns gradients and leaves the weights alone,
    so that only the scaler is timed.
    """

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


def network(width: int, layers: int) -> nn.Module:
    """Return a stack of linear layers: width 1000 and 10 layers have 10,010,000 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
    )


def scaler_alone(
    make: Callable[..., Any], size: tuple[int, int], device: torch.device
) -> tuple[Side, Callable[[], Any]]:
    """Return a side that scales a loss, unscales standing gradients and updates;
    and what it has to show at the end.
    """
    model = network(*size).to(device)
    scaler, loss = (
        make(device.type, init_scale=1.0),
        torch.ones((), device=device),
    )  # a scale of 1 keeps gradients as they are
    optimizer = Idle(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)

    def run(batches: Sequence[Any]) -> list[float]:
        for _ in batches:
            scaler.scale(loss)
            scaler.step(optimizer)
            scaler.update()
        return []

    return Side(run), lambda: ([p.grad for p in model.parameters()], scaler.state_dict())


def whole_step(
    make: Callable[..., Any], size: tuple[int, int], device: torch.device
) -> tuple[Side, Callable[[], Any]]:
    """Return a side that trains with autocast and the scaler, from a scale that soon overflows;
    and what it ends with.
    """
    model = network(*size).to(device)
    # fp16 is emulated on most CPUs. There the step runs in bf16; the scaler does the same work.
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = make(device.type, init_scale=2.0**126, growth_interval=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run(batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        losses = []
        for inputs, targets in batches:
            with torch.autocast(device.type, dtype=dtype):
                loss = 8 * nn.functional.mse_loss(
                    model(inputs), targets
                )  # so that the largest scales overflow
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses += [loss.item(), scaler.get_scale()]
        return losses

    return Side(run), lambda: (list(model.parameters()), scaler.state_dict())


def compare(workload: Callable[..., Any], chosen: Any) -> dict[str, Any]:
    """Time both scalers on one workload, and look whether they ended alike."""
    size, device = ((16, 2) if chosen.tiny else (1000, 10)), chosen.device
    made = {name: workload(make, size, device) for name, make in SCALERS.items()}
    sides = {name: side for name, (side, _) in made.items()}
    batches = [tuple(torch.randn(2, 32, size[0], device=device)) for _ in range(BATCHES)]
    interleaved(
        sides, batches, device, steps=chosen.steps, rounds=chosen.rounds, seconds=chosen.seconds
    )
    (tensors, state), (their_tensors, their_state) = (end() for _, end in made.values())
    cost = spread(
        speed_ratio(sides["torch"], sides["course"])
    )  # above 1, the course's takes longer
    return {
        "parameters": sum(tensor.numel() for tensor in tensors),
        "same_results": state == their_state
        and sides["course"].losses == sides["torch"].losses
        and all(map(torch.equal, tensors, their_tensors)),
        "seconds": {name: spread(side.seconds_per_step) for name, side in sides.items()},
        "cost": cost,
        "limit": LIMIT,
    }


WORKLOADS = {"the scaler alone": scaler_alone, "a whole step with AdamW": whole_step}


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if results differ or the course's scaler costs more
    than it may.
    """
    chosen = arguments(__doc__.split("\n")[0], rounds=40, steps=5, argv=argv)
    warn_if_busy()
    record = Record("scaler", machine_report(chosen.device), chosen)
    fine = True
    for name, workload in WORKLOADS.items():
        found = record.data["workloads"][name] = compare(workload, chosen)
        cost = found["cost"]
        ours, theirs = (
            seconds_text(found["seconds"][side]["median"]) for side in ("course", "torch")
        )
        print(
            f"{name:26}{found['parameters']:,} parameters   course {ours}, torch {theirs}   cost "
            f"{cost['median']:.3f} of torch's ({cost['q1']:.3f} to {cost['q3']:.3f}), aim {LIMIT:g}"
        )
        if not found["same_results"]:
            print(f"{name}: the results differ, so the times mean nothing")
        fine = fine and found["same_results"] and (chosen.tiny or cost["median"] <= LIMIT)
    print(f"\nwritten: {record.write().name}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
