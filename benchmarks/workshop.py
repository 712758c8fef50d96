"""Measure what a learner takes of a server: start the course's JupyterHub on this machine, let some
learners work on it at once, and record seconds, memory and CPU.

    python -m benchmarks.workshop --python HUB/bin/python --proxy PROXY --learners 12

HUB is an environment with the course, jupyterhub and jupyterhub-idle-culler; PROXY the program
configurable-http-proxy. docs/workshop.md installs both. All learners do the same at the same
moment, which is the worst that can happen; a class is kinder. For the times of a check they also
take turns with one learner alone, and check at moments of their own. The learners are programs on
the same machine, and take some of its time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import torch

from amp_course.course import find
from amp_course.kit.hardware import machine_report
from benchmarks.interleaved import RESULTS, warn_if_busy
from benchmarks.learner import KernelDied, Learner
from benchmarks.workshop_hub import (
    running_hub,
    versions,
)
from benchmarks.workshop_page import tables
from benchmarks.workshop_run import CHAPTERS, Found, Run


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="Python of the hub")
    parser.add_argument("--proxy", type=Path, required=True, help="configurable-http-proxy")
    parser.add_argument("--learners", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each timing")
    parser.add_argument("--pace-seconds", type=float, default=120, help="checks at leisure")
    parser.add_argument("--pause", type=float, default=20, help="seconds between two of them")
    parser.add_argument("--read-seconds", type=float, default=60)
    parser.add_argument("--matmul-seconds", type=float, default=10)
    parser.add_argument("--chapters", nargs="*", default=list(CHAPTERS), type=_stem)
    parser.add_argument("--out", type=Path, default=RESULTS / "workshop.json")
    parser.add_argument("--log", type=Path, default=Path("workshop-hub.log"), help="of the hub")
    return parser.parse_args(argv)


def _stem(name: str) -> str:
    return find(name).stem


def main(argv: list[str] | None = None) -> int:
    """Run the workshop, print its tables, write the record; return 1 if a kernel died or a cell
    failed.
    """
    chosen = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hub is ended, too
    warn_if_busy()
    began = datetime.datetime.now(datetime.UTC)
    record: Found = {
        "benchmark": "workshop",
        "date": began.isoformat(timespec="seconds"),
        "machine": machine_report(torch.device("cpu")).to_dict(),
        "memory_mb": round(psutil.virtual_memory().total / 2**20),
        "versions": versions(chosen.python),
        "settings": {
            "learners": chosen.learners,
            "rounds": chosen.rounds,
            "omp_num_threads": max(1, len(os.sched_getaffinity(0)) // chosen.learners),
        },
        "load_average_before": os.getloadavg()[0],
        "chapters": {},
    }
    with running_hub(chosen.python, chosen.proxy, chosen.learners, chosen.log) as hub:
        run = Run(chosen, hub)
        try:
            record["start_up"] = run.start_up()
            for stem in chosen.chapters:
                print(f"{datetime.datetime.now():%H:%M:%S} chapter {stem}", flush=True)
                record["chapters"][stem] = run.chapter(stem)
                save(chosen.out, {**record, "failed_cells": run.errors, "died": "not finished"})
                if stem == chosen.chapters[-1]:
                    record["reading"] = run.reading()
                    record["threads"] = run.threads()
                record["home_mb_per_learner"] = round(hub.home_bytes() / chosen.learners / 1e6, 1)
                record["alive"] = sum(len(learner.kernels) for learner in run.learners)
                run.together(Learner.close)
                save(chosen.out, {**record, "failed_cells": run.errors, "died": "not finished"})
        except (KernelDied, OSError) as error:  # OSError: a server does not answer
            record["died"] = f"{type(error).__name__}: {error}"
        record["failed_cells"] = run.errors
        run.pool.shutdown()
    record["took_seconds"] = round((datetime.datetime.now(datetime.UTC) - began).total_seconds())
    save(chosen.out, record)
    print(tables(record))
    print(f"\nRecord: {chosen.out}")
    return 1 if record["failed_cells"] or "died" in record else 0


def save(path: Path, record: Found) -> None:
    """Write the record, as far as it has come."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
