"""Time the same training with the course's loop, Hugging Face Accelerate and Lightning Fabric, in
turn in one process.

Same first weights, batches, optimizer, loss and recipe; each peer's loop is the one of its
documentation. All keep the loss of every step and read them once a block, and the losses must
agree: otherwise the sides would not do the same.

    python -m benchmarks.peers
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from amp_course.loop.recipe import FP32
from amp_course.loop.train import run
from amp_course.loop.workloads import Session
from benchmarks.interleaved import (
    Batch,
    Record,
    Side,
    arguments,
    interleaved,
    recipes_for,
    speed_ratio,
    spread,
    take_batches,
    warn_if_busy,
    workloads_for,
)

LABELS = {"course": "the course", "accelerate": "Accelerate", "fabric": "Fabric"}
MODULES = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
PEERS = tuple(
    name for name, module in MODULES.items() if find_spec(module)
)  # those that are installed here
COMPARED_STEPS = (
    20  # the losses of the first ones must agree; later, rounding grows into different trainings
)
TOLERANCES = {"fp32": 1e-4, "amp_bf16": 1e-2, "amp_fp16": 1e-2}  # of a loss, relative


def course(session: Session, device: torch.device) -> Side:
    """Train with the course's loop, its timer and its log of losses and scales at work as
    always.
    """

    def block(batches: Sequence[Batch]) -> Sequence[float]:
        record = run(
            session.stepper,
            batches,
            session.recipe,
            warmup=0,
            # counted once a run, not once a step: benchmarks/timer.py says what it costs
            memory=False,
            progress=False,
        )
        return record.losses

    return Side(block)


def accelerate(session: Session, device: torch.device) -> Side:
    """Train with Hugging Face Accelerate.

    Source: "Add Accelerate to your code",
            https://huggingface.co/docs/accelerate/basic_tutorials/migration
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # An Accelerator's precision is a singleton's, so each side keeps a copy, and puts it in place
    # before its blocks.
    AcceleratorState._reset_state()
    precision = {"fp32": "no", "amp_bf16": "bf16", "amp_fp16": "fp16"}[session.recipe.name]
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
    model, optimizer = accelerator.prepare(session.stepper.model, session.stepper.optimizer)
    state = dict(AcceleratorState._shared_state)

    def before() -> None:
        AcceleratorState._shared_state.clear()
        AcceleratorState._shared_state.update(state)

    def run(batches: Sequence[Batch]) -> Sequence[float]:
        losses = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = session.stepper.loss_fn(outputs, targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    return Side(run, before)


def fabric(session: Session, device: torch.device) -> Side:
    """Train with Lightning Fabric.

    Source: "Convert PyTorch code to Fabric",
            https://lightning.ai/docs/fabric/stable/fundamentals/convert.html
    """
    from lightning_fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # it greets
    precision = {"fp32": "32-true", "amp_bf16": "bf16-mixed", "amp_fp16": "16-mixed"}[
        session.recipe.name
    ]
    fabric = Fabric(accelerator=device.type, devices=1, precision=precision)
    fabric.launch()
    model, optimizer = fabric.setup(session.stepper.model, session.stepper.optimizer)

    def run(batches: Sequence[Batch]) -> Sequence[float]:
        losses = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = session.stepper.loss_fn(outputs, targets)
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    return Side(run)


_ALL: dict[str, Callable[[Session, torch.device], Side]] = {
    "course": course,
    "accelerate": accelerate,
    "fabric": fabric,
}
BUILDERS = {name: build for name, build in _ALL.items() if name == "course" or name in PEERS}


def compare(sides: dict[str, Side], tolerance: float) -> dict[str, Any]:
    """Return the speeds of the sides of one recipe, the ratios of the course's to the peers',
    and how losses agree.
    """
    ratios = {peer: speed_ratio(sides["course"], sides[peer]) for peer in PEERS}
    spreads = {peer: spread(ratios[peer]) for peer in PEERS}
    better = min(
        PEERS, key=lambda peer: spreads[peer]["median"]
    )  # the one that the course does worse against
    apart = {
        peer: _largest_difference(sides["course"].losses, sides[peer].losses) for peer in PEERS
    }
    return {
        "sides": {
            name: {
                "steps_per_second": spread(1 / seconds for seconds in side.seconds_per_step),
                "page_faults_per_step": spread(side.faults_per_step)["median"],
                "seconds_per_step": [float(f"{seconds:.5g}") for seconds in side.seconds_per_step],
            }
            for name, side in sides.items()
        },
        "ratio": {"over": better, **spreads[better]},
        "ratios": spreads,
        # Stricter, and biased: of two equal peers, the luckier one of each round.
        "ratio_to_luckier_peer_of_each_round": spread(map(min, *ratios.values())),
        "losses": {
            "first": sides["course"].losses[0],
            "last": sides["course"].losses[-1],
            "steps": len(sides["course"].losses),
            "largest_relative_difference": apart,
            "compared_steps": COMPARED_STEPS,
            "tolerance": tolerance,
            "same": max(apart.values()) <= tolerance,
        },
    }


def _largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    pairs = list(zip(ours, theirs, strict=True))[:COMPARED_STEPS]
    return float(f"{max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs):.3g}")


def row(recipe_label: str, found: dict[str, Any]) -> str:
    """Write one line of the table."""
    cells = []
    for name in BUILDERS:
        speed = found["sides"][name]["steps_per_second"]["median"]
        cells.append(f"{speed:8.1f} ({seconds_text(1 / speed)})".ljust(21))
    ratio = found["ratio"]
    cells.append(
        f"{ratio['median']:.3f} ({ratio['q1']:.3f} to {ratio['q3']:.3f}, over "
        f"{LABELS[ratio['over']]})"
    )
    cells.append("same" if found["losses"]["same"] else "DIFFERENT")
    return f"  {recipe_label:<9}" + "  ".join(cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print the table, write the record;
    return 1 if the sides' losses differ.
    """
    chosen = arguments(__doc__.partition("\n")[0], rounds=60, steps=10, argv=argv)
    if not PEERS:
        print(
            'There is no peer to compare with: run pip install -e ".[peers]" first.',
            file=sys.stderr,
        )
        return 1
    device = chosen.device
    warn_if_busy()
    machine = machine_report(device)
    recipes, left_out = recipes_for(machine)
    left_out |= {name: f"{MODULES[name]} is not installed" for name in MODULES if name not in PEERS}
    record = Record("peers", machine, chosen, left_out=left_out)
    print(f"{machine.device_name}, {machine.threads} threads, torch {machine.torch_version}")
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    all_same = True
    for workload in workloads_for(device, chosen.tiny):
        sides = {
            (recipe.name, name): build(workload.start(recipe), device)
            for recipe in recipes
            for name, build in BUILDERS.items()
        }
        with FP32.precision():  # the same fp32 for all: train() sets it for itself alone
            interleaved(
                sides,
                take_batches(workload),
                device,
                steps=chosen.steps,
                rounds=chosen.rounds,
                seconds=chosen.seconds,
            )
        found: dict[str, Any] = {}
        print(
            f"\n{workload.title}: steps per second (time of a step), in {chosen.rounds} rounds of "
            f"{chosen.steps} steps"
        )
        print(
            "           "
            + "".join(f"{LABELS[name]:>8}".ljust(23) for name in BUILDERS)
            + "course / better peer"
        )
        for recipe in recipes:
            mine = {name: sides[recipe.name, name] for name in BUILDERS}
            found[recipe.name] = compare(mine, TOLERANCES[recipe.name])
            all_same &= found[recipe.name]["losses"]["same"]
            found[recipe.name]["over_fp32_course"] = {
                name: spread(speed_ratio(side, sides["fp32", "course"]))
                for name, side in mine.items()
            }
            print(row(recipe.label, found[recipe.name]))
        for recipe in recipes[1:]:
            gain = found[recipe.name]["over_fp32_course"]["course"]
            print(
                f"  {recipe.label} over fp32, the course: {gain['median']:.2f} ({gain['q1']:.2f} "
                f"to {gain['q3']:.2f})"
            )
        record.data["workloads"][workload.name] = {"title": workload.title, "recipes": found}
    print(f"\nwritten: {record.write()}")
    if not all_same:
        print(
            "The losses of the sides differ, so they did not run the same training: see the "
            "record.",
            file=sys.stderr,
        )
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
