"""Time how long each launcher takes from its command to the first all-reduce of two ranks, in turn.

    python -m benchmarks.launchers

Two ranks over gloo on this machine, by torchrun, torchrun as two nodes,
torch.multiprocessing.spawn, processes started by hand, the old torch.distributed.launch and, if it
is installed, Accelerate. The first round, which fills the file cache, is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from amp_course.distributed.launching import LAUNCHERS, time_launchers
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from benchmarks.interleaved import Record, arguments, spread, warn_if_busy


def main(argv: Sequence[str] | None = None) -> int:
    """Time the launchers and write results/launchers-….json; --steps has no meaning here."""
    chosen = arguments(__doc__.splitlines()[0], rounds=9, steps=1, argv=argv, limited=False)
    chosen.device = torch.device("cpu")  # gloo, wherever this runs
    warn_if_busy()
    record = Record("launchers", machine_report(chosen.device), chosen)
    names = (
        ["torchrun", "spawn", "by hand"]
        if chosen.tiny
        else [one.key for one in LAUNCHERS if one.key]
    )
    if not chosen.tiny:
        time_launchers(1, names)
    times = time_launchers(chosen.rounds, names)
    record.data["settings"]["warmup_blocks"] = 0 if chosen.tiny else 1
    record.data["launchers"] = times.to_dict() | {
        "start_up_seconds": {name: spread(taken) for name, taken in times.seconds.items()}
    }
    print("| launcher | start-up | quartiles |\n|---|---|---|")
    for name in times.seconds:
        timing = times.timing(name)
        print(
            f"| {name} | {seconds_text(timing.median)} | {seconds_text(timing.q1)} to "
            f"{seconds_text(timing.q3)} |"
        )
    for name, why in times.left_out.items():
        print(f"\nLeft out: {name}. {why}.")
    print(f"\nRecord: {record.write().name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
