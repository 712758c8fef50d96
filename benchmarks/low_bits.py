"""Train the small GPT and the digits ResNet below 16 bits, three seeds each: the tables of chapter
12.

python -m benchmarks.low_bits
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from amp_course.frontiers.experiments import (
    OPTIMIZERS,
    VARIANTS,
    CompressedVariant,
    Run,
    train_gpt,
    train_resnet,
)
from amp_course.frontiers.experiments.table import as_json
from amp_course.kit.hardware import machine_report, pick_device
from benchmarks.interleaved import RESULTS, slug

RATES = (0.05, 1.0)  # of the activations in few bits
COMPRESSED = (
    CompressedVariant(),
    CompressedVariant(group=4096),
    CompressedVariant(bits=4, group=4096),
    CompressedVariant(bits=1, group=4096),
)
OPTIMIZER_RATE = 4e-4  # low, so that updates are small compared with the weights


def trainings(seeds: int, steps: int | None) -> Iterator[Run]:
    """Train everything, one after the other."""
    length = {} if steps is None else {"steps": steps}
    for seed in range(seeds):
        for variant in VARIANTS:
            yield train_gpt(variant, seed=seed, **length)
        for variant in OPTIMIZERS:
            yield train_gpt(variant, seed=seed, rate=OPTIMIZER_RATE, **length)
        for variant in VARIANTS:
            yield train_resnet(variant, seed=seed, **length)
        for rate in RATES:
            for compressed in COMPRESSED:
                yield train_resnet(compressed, seed=seed, rate=rate, **length)
            if rate != RATES[0]:
                yield train_resnet(VARIANTS[0], seed=seed, rate=rate, **length)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print each run as it ends, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder of the record (default: benchmarks/results)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many of each (default: 3)")
    parser.add_argument("--steps", type=int, help="of each training (default: 250)")
    chosen = parser.parse_args(argv)
    runs, began = [], time.monotonic()
    for run in trainings(chosen.seeds, chosen.steps):
        print(
            f"{run.workload:7}{run.variant:40}{run.rate:<7g} seed {run.seed}: {run.score:.4f}",
            flush=True,
        )
        runs.append(run)
    machine, day = (
        machine_report(pick_device()),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    head = {
        "benchmark": "low_bits",
        "date": day,
        "machine": machine.to_dict(),
        "torch": torch.__version__,
        "runs": [],
    }
    rows = ",\n  ".join(json.dumps(as_json(run)) for run in runs)
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / f"low_bits-cpu-{slug(machine.device_name)}-{day}.json"
    path.write_text(
        json.dumps(head, indent=1).replace('"runs": []', f'"runs": [\n  {rows}\n ]') + "\n"
    )
    print(f"\nwritten: {path.name}, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
