"""Time launchers, in turn, from their command to the first all-reduce that both ranks complete.

A round starts each launcher once, in another order each time. Two ranks, gloo, one machine. Most of
the time passes while Python loads torch, also in the launcher's process, if it is torch's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_course.distributed.launching.launchers import LAUNCHERS
from amp_course.distributed.launching.running import (
    FOLDER,
    Command,
    free_port,
    local_environment,
    rendezvous,
    run_commands,
)
from amp_course.kit.children import TOKEN
from amp_course.kit.errors import CourseError
from amp_course.kit.measure import Timing, order_of_round

_PROBE = str(Path(__file__).with_name("probe.py"))
_SECONDS = 60.0  # for one start
# variables set by us, by a shell or by a terminal, not by a launcher
_NOT_THEIRS = f"""{TOKEN} {FOLDER} OMP_NUM_THREADS GLOO_SOCKET_IFNAME PYTHONPATH
    _ PWD OLDPWD SHLVL COLUMNS LINES __CF_USER_TEXT_ENCODING""".split()


@dataclass(frozen=True)
class StartUpTimes:
    """The start-up times of some launchers.

    seconds:     launcher → for each round, from the command to the all-reduce of the later rank
    environment: launcher → the variables that it set for rank 1, in the last round
    left_out:    launcher → why it was not run
    """

    seconds: Mapping[str, tuple[float, ...]]
    environment: Mapping[str, Mapping[str, str]]
    left_out: Mapping[str, str]

    def timing(self, launcher: str) -> Timing:
        return Timing(self.seconds[launcher])

    def to_dict(self) -> dict[str, Any]:
        environment = {name: sorted(found) for name, found in self.environment.items()}
        seconds = {name: list(times) for name, times in self.seconds.items()}
        return {"seconds": seconds, "variables": environment, "left_out": dict(self.left_out)}


def time_launchers(
    rounds: int = 3, launchers: Sequence[str] = ("torchrun", "spawn", "by hand")
) -> StartUpTimes:
    """Start two ranks by each launcher in each of `rounds` rounds; no process is left behind.

    launchers: keys of LAUNCHERS ("torchrun", "two nodes", "spawn", "by hand", "launch",
               "accelerate"); one that is not installed is left out, with the reason

    A start takes two to four seconds on two cores. Raises ValueError for rounds below 1 and for
    unknown launchers, CourseError if one does not work. Example:
    time_launchers(rounds=1).timing("spawn").median → 2.1
    """
    known = [launcher.key for launcher in LAUNCHERS if launcher.key]
    if rounds < 1 or not launchers or set(launchers) - set(known):
        raise ValueError(
            f"rounds={rounds}, launchers={list(launchers)}: use at least one round, and some of "
            f"{known}."
        )
    left_out = {}
    if "accelerate" in launchers and importlib.util.find_spec("accelerate") is None:
        left_out["accelerate"] = 'Accelerate is not installed: `pip install -e ".[peers]"`'
    names = [name for name in launchers if name not in left_out]
    times: dict[str, list[float]] = {name: [] for name in names}
    environment: dict[str, Mapping[str, str]] = {}
    for number in range(rounds if names else 0):
        for name in order_of_round(names, number):
            seconds, environment[name] = _start(name)
            times[name].append(seconds)
    return StartUpTimes(
        {name: tuple(taken) for name, taken in times.items()}, environment, left_out
    )


def _start(launcher: str) -> tuple[float, Mapping[str, str]]:
    """Start two ranks once; return the seconds, and the variables that were set for rank 1. Raises
    CourseError, with the launcher's last line, if they do not complete the all-reduce.
    """
    local = local_environment()
    with tempfile.TemporaryDirectory(prefix="amp_course-start-") as name:
        folder = Path(name)
        commands = [(words, local | dict(added)) for words, added in _commands(launcher, name)]
        began = time.time()
        ended = run_commands(commands, folder, _SECONDS)
        files = [folder / f"probe{rank}.json" for rank in (0, 1)]
        if any(ended.codes) or not all(file.exists() for file in files):
            errors = sorted(folder.glob("command*.err"))
            text = "".join(file.read_text(errors="replace") for file in errors).strip()
            why = text.splitlines()[-1] if text else f"time was up after {_SECONDS:.0f} seconds"
            raise CourseError(
                f"{launcher} did not start two ranks: {why}. Run it in a shell to see its whole "
                f"output."
            )
        ranks = [json.loads(file.read_text()) for file in files]
    set_by_it = {
        name: value
        for name, value in sorted(ranks[1]["environment"].items())
        if os.environ.get(name) != value and name not in _NOT_THEIRS and not name.startswith("KMP_")
    }
    return max(rank["done"] for rank in ranks) - began, set_by_it


def _commands(launcher: str, folder: str) -> list[Command]:
    probe, port = [_PROBE, folder], str(free_port())
    if launcher == "by hand":
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        return [([sys.executable, *probe], {"RANK": str(rank), **where}) for rank in range(2)]
    torchrun = "-m torch.distributed.run"
    if launcher == "two nodes":
        options = [*f"{torchrun} --nnodes 2 --nproc-per-node 1".split(), *rendezvous()]
        return [([sys.executable, *options, *probe], {})] * 2
    if launcher == "spawn":
        return [([sys.executable, *probe, "spawn", "2", port], {})]
    options = {
        "torchrun": f"{torchrun} --standalone --nproc-per-node 2",
        "launch": f"-m torch.distributed.launch --nproc-per-node 2 --master-port {port}",
        "accelerate": "-m accelerate.commands.launch --multi_gpu --num_processes 2 "
        f"--main_process_port {port}",
    }[launcher].split()
    return [([sys.executable, *options, *probe], {})]
