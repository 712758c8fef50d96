"""Make the survival map of chapter 08: every recipe at every batch size, several seeds, real
arithmetic in every dtype.

python -m benchmarks.survival
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amp_course.kit.hardware import machine_report, pick_device
from amp_course.recipes import ALL
from amp_course.recipes.survival import SETTINGS, SIZES, RunResult, SurvivalMap, train_to_the_end
from benchmarks.interleaved import RESULTS, slug


def as_lines(data: dict[str, Any]) -> str:
    """Write a map as JSON, one outcome a line."""
    head = json.dumps({**data, "outcomes": []}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in data["outcomes"])
    return head.replace('"outcomes": []', f'"outcomes": [\n  {rows}\n ]') + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Train all cells, print each as it ends, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder of the record (default: benchmarks/results)",
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="batch sizes (default: all)"
    )
    parser.add_argument(
        "--seeds", type=int, help="how many seeds of each (default: as the setting says)"
    )
    parser.add_argument(
        "--settings", nargs="+", choices=[setting.name for setting in SETTINGS], help="default: all"
    )
    parser.add_argument(
        "--recipes", nargs="+", choices=[recipe.name for recipe in ALL], help="default: all"
    )
    chosen = parser.parse_args(argv)
    outcomes: list[RunResult] = []
    began = time.monotonic()
    for setting in SETTINGS:
        if chosen.settings and setting.name not in chosen.settings:
            continue
        for recipe in (
            recipe for recipe in ALL if not chosen.recipes or recipe.name in chosen.recipes
        ):
            for size in chosen.sizes:
                runs = [
                    train_to_the_end(setting, recipe, size, seed)
                    for seed in setting.seeds[: chosen.seeds]
                ]
                ends = ", ".join(
                    f"dies at {run.died_at}" if run.accuracy is None else f"{run.accuracy:.3f}"
                    for run in runs
                )
                print(f"{setting.name:8}{recipe.name:14}{size:5}  {ends}", flush=True)
                outcomes += runs
    machine = machine_report(pick_device())
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = SurvivalMap(tuple(outcomes), machine.device_name, torch.__version__, day)
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / f"survival-cpu-{slug(machine.device_name)}-{day}.json"
    path.write_text(as_lines(made.to_dict()))
    print(f"\nwritten: {path.name}, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
