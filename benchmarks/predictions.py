"""Predict what AMP buys for five trainings, from prices measured op by op and from the card's data
sheet, and measure it.

The three workloads and two more: the same net with a batch of 8,192, and a GPT of the size of
GPT-2's smallest. Each is trained in float32, TF32, bf16 and fp16, in turn; told is also the share
of the best matmul rate that was measured here.

    python -m benchmarks.predictions --seconds 4
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from amp_course.kit.data import CharText, documentation_text, text_batches
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import synchronize
from amp_course.kit.models import CharGPT
from amp_course.loop.recipe import FP32, RECIPES, Recipe
from amp_course.loop.recipe import recipes_for as usual_recipes
from amp_course.loop.workloads import Session, Workload, char_gpt, digits_resnet, simple_net
from amp_course.speed.cards import CARDS, Card
from amp_course.speed.counting import totals
from amp_course.speed.machine import measure_machine
from amp_course.speed.prediction import count_on_fakes, predict_workload
from benchmarks.interleaved import Record, Side, arguments, interleaved, spread, warn_if_busy


def small_gpt2(device: torch.device) -> Workload:
    """A GPT as large as GPT-2's smallest: 12 layers of width 768, on 8 texts of 512 characters."""
    text, context = CharText(documentation_text()), 512

    def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def start(recipe: Any) -> Session:
        torch.manual_seed(0)
        model = CharGPT(len(text.vocabulary), context, layers=12, heads=12, width=768).to(device)
        batches = [*text_batches(text, 8, context, steps=8, seed=1, device=device)]
        stepper = recipe.prepare(model, lambda params: torch.optim.AdamW(params, lr=3e-4), loss_fn)
        return Session(recipe, stepper, itertools.cycle(batches))

    return Workload("small_gpt2", "GPT, 12 layers of width 768, batch 8 × 512", 32, start, None)


def workloads(device: torch.device, tiny: bool) -> list[Workload]:
    """Return the five, or one that a CPU can take."""
    if tiny:
        return [simple_net(device, width=32, batch_size=4)]
    large = simple_net(device, batch_size=8192)
    return [simple_net(device), digits_resnet(device), char_gpt(device), large, small_gpt2(device)]


def card_of(name: str) -> Card | None:
    """Return the data sheet of a card by the name that its driver gives;
    an H200 computes as an H100 does.
    """
    found = [card for card in CARDS if card.name.split()[0] in name.replace("H200", "H100")]
    return found[0] if found else None


def in_each_recipe(
    workload: Workload, recipes: Sequence[Recipe], chosen: Any
) -> dict[str, list[float]]:
    """Train under each recipe in turn; return the seconds of a step, one a round."""
    sessions = {recipe.name: workload.start(recipe) for recipe in recipes}
    batch = next(sessions[FP32.name].batches)

    def side(name: str) -> Side:
        def run(batches: Sequence[Any]) -> list[float]:
            with RECIPES[name].precision():
                for inputs, targets in batches:
                    sessions[name].stepper.step(inputs, targets)
            return []

        return Side(run)

    sides = {name: side(name) for name in sessions}
    interleaved(
        sides,
        [batch],
        chosen.device,
        steps=chosen.steps,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
    )
    synchronize(chosen.device)
    return {name: side.seconds_per_step for name, side in sides.items()}


def predicted(
    workload: Workload, recipe: Recipe, card: Card | None, peaks: dict[str, float], chosen: Any
) -> dict[str, Any]:
    """Return one workload's predictions and measurements under the usual recipes."""
    device = chosen.device
    session = workload.start(FP32)
    stepper, (inputs, targets) = session.stepper, next(session.batches)
    counted = {
        dtype: count_on_fakes(stepper.model, stepper.loss_fn, inputs, targets, device, dtype).calls
        for dtype in (None, recipe.dtype)
    }
    flops = totals(counted[None]).flops
    del session, stepper
    seconds = in_each_recipe(workload, usual_recipes(device), chosen)
    medians = {name: spread(times) for name, times in seconds.items()}
    fp32 = seconds[FP32.name]
    found = predict_workload(workload, recipe, device, seconds=chosen.seconds or 4.0)
    formats = {name: "fp32" if name == "fp32" else name.removeprefix("amp_") for name in seconds}
    sheet = None
    if card is not None:
        plain, amp = (card.roofline().total(calls) for calls in counted.values())
        sheet = {"card": card.name, "speedup": plain / amp}
    return {
        **found.to_dict(),
        "title": workload.title,
        "error": found.error,
        "data_sheet": sheet,
        "flops": flops,
        "seconds_per_step": medians,
        "over_fp32": {
            name: spread([a / b for a, b in zip(fp32, times, strict=True)])
            for name, times in seconds.items()
        },
        "share_of_peak": {
            name: flops / medians[name]["median"] / peaks[fmt]
            for name, fmt in formats.items()
            if fmt in peaks
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print and write the record."""
    chosen = arguments((__doc__ or "").partition("\n")[0], rounds=12, steps=5, argv=argv)
    warn_if_busy()
    device = chosen.device
    record = Record("predictions", machine_report(device), chosen)
    machine = measure_machine(
        device, sizes=(64,) if chosen.tiny else None, seconds=chosen.seconds or 6.0
    )
    record.data["rates"] = machine.to_dict()
    print(machine)
    card = card_of(record.data["machine"]["device_name"])
    recipe = [one for one in usual_recipes(device) if one.dtype is not None][-1]
    for workload in workloads(device, chosen.tiny):
        found = predicted(workload, recipe, card, machine.peaks, chosen)
        record.data["workloads"][f"{workload.name}, {workload.title}"] = found
        ratios = ", ".join(
            f"{RECIPES[name].label} {value['median']:.2f} "
            f"({found['share_of_peak'].get(name, 0):.0%} of its peak)"
            for name, value in found["over_fp32"].items()
        )
        sheet = (
            f"; by the data sheet {found['data_sheet']['speedup']:.2f}"
            if found["data_sheet"]
            else ""
        )
        print(
            f"{workload.title}: {ratios}\n    {recipe.label}: ceiling {found['ceiling']:.2f}, "
            f"predicted {found['predicted']:.2f}, measured {found['measured']:.2f} "
            f"({found['error']:+.0%}){sheet}",
            flush=True,
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print(f"written: {record.write().name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
