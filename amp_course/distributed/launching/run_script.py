"""Run a training script on several ranks by `torchrun`, and show what each of them did."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from amp_course.distributed.launching.diagnosis import diagnose, notes
from amp_course.distributed.launching.evidence import RANK_MAIN, gather, without_paths
from amp_course.distributed.launching.running import local_environment, rendezvous, run_commands
from amp_course.distributed.launching.script_run import ScriptRun
from amp_course.kit.errors import CourseError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"  # the course's own
_MOST_RANKS = 64


def run_script(
    script: str | os.PathLike[str],
    *args: object,
    ranks: int = 2,
    seconds: float = 60,
    nodes: int = 1,
) -> ScriptRun:
    """Run a Python script by torchrun in the current folder, wait for it, and return its output,
    rank by rank.

    script:  a file, or the name of one of the course's scripts
    args:    its command line
    ranks:   on all nodes together, the same number on each
    seconds: time limit; ending the processes takes up to 5 seconds more
    nodes:   2 simulates two machines on this one, with a torchrun each

    Each rank computes on one thread unless OMP_NUM_THREADS says otherwise, and gloo uses the
    loopback interface unless GLOO_SOCKET_IFNAME names another. A run that fails raises nothing: its
    `problem` says why, and `.check()` raises it. No process is left behind, even if this one is
    interrupted or killed. Raises CourseError for a file that is not a Python script, ValueError for
    wrong numbers.
    Example: run_script("ddp_amp", "--dtype", "fp16").ok → True
    """
    if nodes < 1 or ranks < 1 or ranks % nodes or ranks > _MOST_RANKS:
        raise ValueError(
            f"ranks={ranks}, nodes={nodes}: use 1 to {_MOST_RANKS} ranks in all, and the same "
            f"number on each node."
        )
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}: allow the run some time.")
    file = find_script(script)
    options = ["--nproc-per-node", str(ranks // nodes)]
    if nodes == 1:
        options = ["--standalone", *options]
    else:
        options = ["--nnodes", str(nodes), *options, *rendezvous()]
    words = [str(arg) for arg in args]
    environment = local_environment()
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    started = [*launcher, str(RANK_MAIN), str(file), *words]
    with tempfile.TemporaryDirectory(prefix="amp_course-run-") as folder:
        ended = run_commands([(started, environment)] * nodes, Path(folder), seconds)
        evidence = gather(Path(folder), file, ranks, ended)
    typed = " ".join(["torchrun", *options, shlex.join([_as_typed(file), *words])])
    threads = environment.get("OMP_NUM_THREADS") or os.environ["OMP_NUM_THREADS"]
    command = without_paths("\n".join([typed] * nodes))
    problem, remarks = diagnose(evidence), notes(ranks, threads)
    return ScriptRun(command, evidence.ranks, ended.seconds, problem, remarks, evidence.launcher)


def find_script(script: str | os.PathLike[str]) -> Path:
    """Return the file of a script, or of the course's script of that name.
    Raises CourseError if there is none.
    """
    file = Path(script).expanduser()
    own = SCRIPTS / f"{script}.py"
    if not file.exists() and len(file.parts) == 1 and own.exists():
        file = own
    if not file.exists():
        names = ", ".join(sorted(f'"{path.stem}"' for path in SCRIPTS.glob("[a-z]*.py")))
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


def _as_typed(file: Path) -> str:
    relative = os.path.relpath(file)
    return relative if len(relative) < len(str(file)) else str(file)
