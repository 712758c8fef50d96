"""Time how long launchers take from their command to the first all-reduce that both ranks have
completed, in turn.

A round starts each launcher once, in another order each time. Two ranks, gloo, one machine; most of
the time goes by while Python loads torch, in the launcher's own process too, if it is torch's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_course.distributed.launching.launchers import LAUNCHERS
from amp_course.distributed.launching.running import (
    FOLDER,
    Command,
    free_port,
    local_environment,
    run_commands,
)
from amp_course.kit.children import TOKEN
from amp_course.kit.errors import CourseError
from amp_course.kit.measure import Timing, seconds_text
from amp_course.kit.report import Block, Page, Table

_PROBE = str(Path(__file__).with_name("probe.py"))
_SECONDS = 60.0  # for one start
_NOT_THEIRS = {  # set by us, by a shell, by a terminal
    TOKEN,
    FOLDER,
    "OMP_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
    "PYTHONPATH",
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "COLUMNS",
    "LINES",
    "__CF_USER_TEXT_ENCODING",
}
QUICK = ("torchrun", "spawn", "by hand")


@dataclass(frozen=True)
class StartUp:
    """One start of two ranks.

    seconds:     from the command to the all-reduce of the later rank
    environment: what rank 1 found set that was not set before
    """

    seconds: float
    environment: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class StartUpTimes(Page):
    """The start-up times of some launchers, one number a round.

    seconds:     launcher → seconds
    environment: launcher → what rank 1 found set, in the last round
    left_out:    launcher → why it was not run
    """

    seconds: Mapping[str, tuple[float, ...]]
    environment: Mapping[str, Mapping[str, str]]
    left_out: Mapping[str, str]

    def timing(self, launcher: str) -> Timing:
        """Return the times of one launcher."""
        return Timing(self.seconds[launcher])

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        rows = [["launcher", "start-up", "quartiles", "sets for rank 1"]]
        for name in self.seconds:
            timing, found = self.timing(name), self.environment[name]
            spread = f"{seconds_text(timing.q1)} to {seconds_text(timing.q3)}"
            rows.append([name, seconds_text(timing.median), spread, variables_text(found)])
        return rows + [[name, "not run", "", why] for name, why in self.left_out.items()]

    def blocks(self) -> Iterator[Block]:
        yield Table(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        environment = {name: sorted(found) for name, found in self.environment.items()}
        seconds = {name: list(times) for name, times in self.seconds.items()}
        return {"seconds": seconds, "variables": environment, "left_out": dict(self.left_out)}


def time_launchers(rounds: int = 3, launchers: Sequence[str] = QUICK) -> StartUpTimes:
    """Start two ranks by each launcher in each of `rounds` rounds; no process is left behind.

    launchers: keys of LAUNCHERS ("torchrun", "two nodes", "spawn", "by hand", "launch",
               "accelerate"); one that is not installed is left out, with the reason

    A start takes two to four seconds on two cores. Raises ValueError for rounds below 1 and for
    unknown launchers, CourseError if one does not work. Example:
    time_launchers(rounds=1).timing("spawn").median → 2.1
    """
    known = [one.key for one in LAUNCHERS if one.key]
    if rounds < 1 or not launchers or set(launchers) - set(known):
        raise ValueError(
            f"rounds={rounds}, launchers={list(launchers)}: use at least one round, and some of "
            f"{known}."
        )
    left_out = {name: why for name in launchers if (why := _missing(name))}
    names = [name for name in launchers if name not in left_out]
    times: dict[str, list[float]] = {name: [] for name in names}
    environment: dict[str, Mapping[str, str]] = {}
    for number in range(rounds):
        shift = number % len(names) if names else 0
        for name in names[shift:] + names[:shift]:
            start = start_up(name)
            times[name].append(start.seconds)
            environment[name] = start.environment
    return StartUpTimes(
        {name: tuple(taken) for name, taken in times.items()}, environment, left_out
    )


def start_up(launcher: str) -> StartUp:
    """Start two ranks once. Raises CourseError, with the last words of the launcher,
    if they do not complete the all-reduce.
    """
    local = local_environment()
    with tempfile.TemporaryDirectory(prefix="amp_course-start-") as folder:
        commands = _commands(launcher, folder)
        began = time.time()
        ended = run_commands(
            [Command(one.arguments, local | dict(one.environment)) for one in commands],
            Path(folder),
            _SECONDS,
        )
        files = [Path(folder) / f"probe{rank}.json" for rank in (0, 1)]
        if any(ended.codes) or not all(file.exists() for file in files):
            said = "\n".join(
                file.read_text(errors="replace")
                for file in sorted(Path(folder).glob("command*.err"))
            ).strip()
            why = said.splitlines()[-1] if said else f"time was up after {_SECONDS:.0f} seconds"
            raise CourseError(
                f"{launcher} did not start two ranks: {why}. Try it in a shell to see all that it "
                f"says."
            )
        ranks = [json.loads(file.read_text()) for file in files]
    set_by_it = {
        name: value
        for name, value in sorted(ranks[1]["environment"].items())
        if os.environ.get(name) != value and name not in _NOT_THEIRS and not name.startswith("KMP_")
    }
    return StartUp(max(rank["done"] for rank in ranks) - began, set_by_it)


def variables_text(environment: Mapping[str, str]) -> str:
    """Write variables for people, those that say where a rank is with their values. Example:
    → "RANK=1, …, and 12 more"
    """
    first = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    shown = [f"{name}={environment[name]}" for name in first if name in environment]
    more = len(environment) - len(shown)
    return (
        ", ".join(shown) + (f", and {more} more" if more and shown else "") if shown else "nothing"
    )


def _commands(launcher: str, folder: str) -> list[Command]:
    python = sys.executable
    torchrun = [python, "-m", "torch.distributed.run"]
    if launcher == "torchrun":
        return [Command([*torchrun, "--standalone", "--nproc-per-node", "2", _PROBE, folder])]
    if launcher == "two nodes":
        meeting = [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"localhost:{free_port()}",
            "--local-addr",
            "localhost",
        ]
        return [
            Command([*torchrun, "--nnodes", "2", "--nproc-per-node", "1", *meeting, _PROBE, folder])
        ] * 2
    if launcher == "spawn":
        return [Command([python, _PROBE, folder, "spawn", "2", str(free_port())])]
    port = str(free_port())
    if launcher == "by hand":
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        return [
            Command([python, _PROBE, folder], {"RANK": str(rank), **where}) for rank in range(2)
        ]
    if launcher == "launch":
        module = [python, "-m", "torch.distributed.launch"]
        return [Command([*module, "--nproc-per-node", "2", "--master-port", port, _PROBE, folder])]
    module = [python, "-m", "accelerate.commands.launch"]
    return [
        Command(
            [
                *module,
                "--multi_gpu",
                "--num_processes",
                "2",
                "--main_process_port",
                port,
                _PROBE,
                folder,
            ]
        )
    ]


def _missing(launcher: str) -> str:
    if launcher == "accelerate" and importlib.util.find_spec("accelerate") is None:
        return 'Accelerate is not installed: `pip install -e ".[peers]"`'
    return ""
