"""Record everything that a GPU adds, in one call: the report card, predictions, the loop next to
its peers, recipes, rounding.

Each part leaves its JSON in results/; the report card and the peers a picture as well. A part that
fails or lacks a library does not stop the others. Only torch, numpy, scikit-learn, scipy,
matplotlib and tqdm are needed; the peers run if Accelerate or Lightning Fabric is installed.

    python -m benchmarks.gpu                 some minutes
    python -m benchmarks.gpu --seconds 7     two to three
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amp_course.kit.hardware import machine_report
from amp_course.loop.figures import report_card_figure
from amp_course.loop.report import make_report_card
from amp_course.loop.workloads import char_gpt, digits_resnet, simple_net
from benchmarks import peers, predictions, recipes, rounding
from benchmarks.figure import peers_figure
from benchmarks.interleaved import Record, arguments, workloads_for

RECIPE_SECONDS = 30.0  # for one workload under one recipe of the report card


def report_card(chosen: Any) -> int:
    """Train the three workloads under every recipe that means something here;
    write the card as JSON and PNG.
    """
    device = chosen.device
    whole = [simple_net(device), digits_resnet(device), char_gpt(device)]
    workloads = workloads_for(device, tiny=True)[:1] if chosen.tiny else whole
    card = make_report_card(
        device, workloads=workloads, max_seconds=chosen.seconds or RECIPE_SECONDS
    )
    record = Record("report_card", machine_report(device), chosen)
    record.data["workloads"] = {
        name: [row.to_dict() for row in card.of(name)] for name in card.workloads()
    }
    record.data["paragraph"] = card.paragraph()
    path = record.write()
    report_card_figure(card).savefig(path.with_suffix(".png"), dpi=150)
    print(
        f"{card!r}\n\n{card.paragraph()}\n\nwritten: {path.name}, {path.with_suffix('.png').name}"
    )
    return 0


def peers_and_picture(argv: Sequence[str], chosen: Any) -> int:
    """Run the peers and draw what they wrote."""
    code = peers.main(argv)
    path = max(
        chosen.out.glob(f"peers-{chosen.device.type}-*.json"), key=lambda path: path.stat().st_mtime
    )
    peers_figure([json.loads(path.read_text())]).savefig(path.with_suffix(".png"), dpi=150)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part; return the number of those that failed."""
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = arguments((__doc__ or "").partition("\n")[0], rounds=20, steps=10, argv=argv)
    if chosen.device.type != "cuda" and not chosen.tiny:
        print(
            f"This records what a GPU adds, and torch finds none here (the device is "
            f"{chosen.device}). `--tiny --device cpu` "
            "tries the program out on a CPU.",
            file=sys.stderr,
        )
        return 1
    given = ["--rounds", str(chosen.rounds), "--steps", str(chosen.steps), "--out", str(chosen.out)]
    if chosen.seconds:
        given += ["--seconds", str(chosen.seconds)]
    given += ["--device", str(chosen.device), *(["--tiny"] if chosen.tiny else [])]
    parts: dict[str, Callable[[], int]] = {
        "report card": lambda: report_card(chosen),
        "predictions": lambda: predictions.main(given),
        "peers": lambda: peers_and_picture(given, chosen),
        "recipes": lambda: recipes.main(given),
        "rounding": lambda: rounding.main(given),
    }
    outcome = {}
    for name, part in parts.items():
        print(f"\n==== {name}", flush=True)
        began = time.monotonic()
        if name == "peers" and not peers.PEERS:
            outcome[name] = "left out: neither accelerate nor lightning_fabric is installed"
            continue
        try:
            code = part()
        except Exception:
            traceback.print_exc()
            code = 1
        outcome[name] = f"{'failed' if code else 'done'} in {time.monotonic() - began:.0f} s"
        if chosen.device.type == "cuda":
            torch.cuda.empty_cache()
    print("\n" + "\n".join(f"{name:<12}{said}" for name, said in outcome.items()))
    return sum(said.startswith("failed") for said in outcome.values())


if __name__ == "__main__":
    sys.exit(main())
