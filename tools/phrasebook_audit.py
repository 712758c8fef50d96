"""Audit the loops of Accelerate and Fabric, sound and broken: `make test-phrasebook` runs this in
the phrasebook's environment.

    python tools/phrasebook_audit.py accelerate

Prints a table, and ends with 1 if a sound loop is accused, a broken one not found out, or something
not put back. On a CPU the libraries use no scaler by themselves: for fp16 they are given one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from amp_course.audit import audit

Loop = tuple[
    str, tuple[str, ...], Callable[..., Any], dict[str, Any]
]  # name, faults, step, arguments
MAX_NORM = 1.0


def parts() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Make a small network and batches."""
    torch.manual_seed(0)
    batches = [(torch.randn(8, 16), torch.randint(0, 5, (8,))) for _ in range(8)]
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)), batches


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the plain loss."""
    return cross_entropy(model(x), y)


def broken(precision: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what is wrong with a loop, and the finding that it deserves."""
    yield "", ()
    yield "never cleared", ("never-cleared",)
    if precision == "fp16":
        yield "clipped by torch", ("clipped-while-scaled",)


def accelerate_loops() -> Iterator[Loop]:
    """Yield Accelerate's loop in each precision, also accumulating,
    with a scheduler that `prepare` has wrapped.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    def make(precision: str, every: int, wrong: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        kind = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}[precision]
        accelerator = Accelerator(mixed_precision=kind, cpu=True, gradient_accumulation_steps=every)
        if precision == "fp16":
            accelerator.scaler, accelerator.native_amp = (
                torch.amp.GradScaler("cpu", init_scale=2.0**12),
                True,
            )
        model, batches = parts()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

        def step(x: Tensor, y: Tensor) -> None:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    clip = (
                        nn.utils.clip_grad_norm_
                        if wrong == "clipped by torch"
                        else accelerator.clip_grad_norm_
                    )
                    clip(model.parameters(), MAX_NORM)
                optimizer.step()
                scheduler.step()
                if wrong != "never cleared":
                    optimizer.zero_grad()

        return step, {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "batches": batches,
            "accumulate": every,
        }

    for precision in ("fp32", "bf16", "fp16"):
        for wrong, faults in broken(precision):
            for every in (1,) if wrong else (1, 2):
                name = (
                    f"{precision}, {every} "
                    f"micro-batch{'es' if every > 1 else ''}{', ' * bool(wrong)}{wrong}"
                )
                yield name, faults, *make(precision, every, wrong)


def fabric_loops() -> Iterator[Loop]:
    """Yield Fabric's loop in each precision."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision

    def make(precision: str, wrong: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        options: dict[str, Any] = {
            "fp32": {"precision": "32-true"},
            "bf16": {"precision": "bf16-mixed"},
            "fp16": {"plugins": MixedPrecision("16-mixed", "cpu", scaler)},
        }[precision]
        fabric = Fabric(accelerator="cpu", devices=1, **options)
        fabric.launch()
        model, batches = parts()
        model, optimizer = fabric.setup(
            model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        )

        def step(x: Tensor, y: Tensor) -> None:
            fabric.backward(cross_entropy(model(x), y))
            if wrong == "clipped by torch":
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            else:
                fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM, error_if_nonfinite=False)
            optimizer.step()
            if wrong != "never cleared":
                optimizer.zero_grad()

        return step, {"model": model, "optimizer": optimizer, "batches": batches}

    for precision in ("fp32", "bf16", "fp16"):
        for wrong, faults in broken(precision):
            yield f"{precision}{', ' * bool(wrong)}{wrong}", faults, *make(precision, wrong)


LOOPS = {"accelerate": accelerate_loops, "fabric": fabric_loops}


def main(library: str) -> int:
    """Audit a library's loops; return 1 if one got another verdict than it deserves."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong = 0
    for name, faults, step, arguments in LOOPS[library]():
        report = audit(step, **arguments, loss=loss, max_norm=MAX_NORM)
        right = report.names == faults and not report.not_put_back
        wrong += not right
        said = ", ".join(report.names) or f"no fault in {len(report.right)} behaviours"
        print(f"{'' if right else 'WRONG: '}audit of {library}, {name}: {said}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
