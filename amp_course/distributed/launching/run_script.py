"""Run a training script on several ranks, as `torchrun` does in a shell,
and show what each of them did.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from amp_course.distributed.launching.diagnosis import diagnose, notes
from amp_course.distributed.launching.evidence import gather, without_paths
from amp_course.distributed.launching.running import (
    Command,
    free_port,
    local_environment,
    port_in_use,
    run_commands,
)
from amp_course.distributed.launching.script_run import RankOutput, ScriptRun
from amp_course.kit.errors import CourseError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"  # the course's own
_RANK_MAIN = Path(__file__).with_name("rank_main.py")
_MOST_RANKS = 64


def run_script(
    script: str | os.PathLike[str],
    *args: object,
    ranks: int = 2,
    seconds: float = 60,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    absent: Collection[int] = (),
) -> ScriptRun:
    """Run a Python script by torchrun in the current folder, wait for it, and return its output,
    rank by rank.

    script:  a file, or the name of one of the course's scripts
    args:    its command line
    ranks:   of all nodes together, shared equally
    seconds: after which everything is ended; that takes up to 5 seconds more
    nodes:   2 plays two machines on this one: one torchrun for each, which meet at a port
    env:     variables to add to the environment
    port:    of the rendezvous; by default torchrun finds a free one
    absent:  nodes that are not started, to see what the others do

    Each rank computes on one thread unless OMP_NUM_THREADS says otherwise, and gloo uses the
    loopback interface unless GLOO_SOCKET_IFNAME names another. A run that fails raises nothing: its
    `problem` says why, and `.check()` raises it. No process is left behind, even if this one is
    interrupted or killed. Raises CourseError for a file that is not a Python script and for a port
    in use, ValueError for wrong numbers.
    Example: run_script("ddp_amp", "--dtype", "fp16").ok → True
    """
    if nodes < 1 or ranks < 1 or ranks % nodes or ranks > _MOST_RANKS:
        raise ValueError(
            f"ranks={ranks}, nodes={nodes}: use 1 to {_MOST_RANKS} ranks in all, and the same "
            f"number on each node."
        )
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}: allow the run some time.")
    if not set(absent) < set(range(nodes)):
        raise ValueError(
            f"absent is {sorted(absent)}: name some of the nodes 0 to {nodes - 1}, but not all."
        )
    file = find_script(script)
    if port is not None and port_in_use(port):
        raise CourseError(
            f"port {port} is in use: choose another, leave it out, or end the program that has it."
        )
    port = port if port is not None or nodes == 1 else free_port()
    environment = local_environment() | dict(env or {})
    options = [_options(ranks // nodes, nodes, port) for node in range(nodes) if node not in absent]
    words = [str(arg) for arg in args]
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    commands = [
        Command([*launcher, *one, str(_RANK_MAIN), str(file), *words], environment)
        for one in options
    ]
    with tempfile.TemporaryDirectory(prefix="amp_course-run-") as folder:
        ended = run_commands(commands, Path(folder), seconds)
        evidence = gather(Path(folder), file, ranks, nodes, ended)
    settings = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    typed = [
        " ".join([*settings, "torchrun", *one, shlex.join([_as_typed(file), *words])])
        for one in options
    ]
    outputs = (
        RankOutput(one.rank, without_paths(one.out), without_paths(one.err), one.exit_code)
        for one in evidence.ranks
    )
    launched = without_paths(evidence.launcher.replace(str(_RANK_MAIN), str(file)))
    threads = environment.get("OMP_NUM_THREADS") or os.environ["OMP_NUM_THREADS"]
    problem, remarks = diagnose(evidence), notes(evidence, threads)
    return ScriptRun(
        without_paths("\n".join(typed)), tuple(outputs), ended.seconds, problem, remarks, launched
    )


def find_script(script: str | os.PathLike[str]) -> Path:
    """Return the file of a script, or of the course's script of that name.
    Raises CourseError if there is none.
    """
    file = Path(script).expanduser()
    own = SCRIPTS / f"{script}.py"
    if not file.exists() and len(file.parts) == 1 and own.exists():
        file = own
    if not file.exists():
        names = (
            ", ".join(sorted(f'"{one.stem}"' for one in SCRIPTS.glob("[a-z]*.py"))) or "none yet"
        )
        raise CourseError(
            f"there is no file {script}: correct the path, or name one of the course's scripts "
            f"({names})."
        )
    if file.is_dir():
        raise CourseError(
            f"{script} is a folder: name the Python file in it that the ranks are to run."
        )
    if file.suffix != ".py":
        raise CourseError(
            f"{script} is not a Python script, whose name ends in .py: pass one that is."
        )
    return file.resolve()


def _options(ranks: int, nodes: int, port: int | None) -> list[str]:
    count = ["--nproc-per-node", str(ranks)]
    if nodes > 1:
        meeting = [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"localhost:{port}",
            "--local-addr",
            "localhost",
        ]
        return ["--nnodes", str(nodes), *count, *meeting]
    return (
        [*count, "--master-addr", "localhost", "--master-port", str(port)]
        if port is not None
        else ["--standalone", *count]
    )


def _as_typed(file: Path) -> str:
    relative = os.path.relpath(file)
    return relative if len(relative) < len(str(file)) else str(file)
