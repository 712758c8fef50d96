"""Let TrainCheck learn from a script, and check scripts by what it learnt."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ward.copies import HERE, Case, path_of, prepare
from benchmarks.ward.worth import LEARNT_STEPS, Row

LEARNING_SECONDS = 900  # of CPU time, for each process of TrainCheck's


def paths(tools: Path, without: Sequence[str] = ()) -> str:
    """Return a script's PYTHONPATH: the hooks, the stand-ins, what the user has there,
    and the tools.
    """
    stand_ins = [
        one
        for one in sorted((HERE / "stand_ins").iterdir())
        if importlib.util.find_spec(one.name) is None
    ]
    users = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    ours = [HERE / "attached", *(one for one in stand_ins if one.name not in without)]
    return os.pathsep.join(map(str, (*ours, *users, tools)))


def learn(
    before: Case, after: Case, clones: Sequence[Path], model: str, tools: Path, folder: Path
) -> list[Row]:
    """Let TrainCheck learn from the fixed script; return what it says of the one before,
    and of the fixed one again.
    """
    spent = 0.0

    def call(*command: str) -> str:
        nonlocal spent
        with open(folder / "said", "wb") as said:
            path = paths(tools, without=["traincheck"])  # the stand-in is for its own scripts alone
            one_thread = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
            env = os.environ | {"PYTHONPATH": path} | one_thread
            limited = ["prlimit", f"--cpu={LEARNING_SECONDS}", sys.executable, "-m", *command]
            ran = subprocess.Popen(limited, env=env, stdout=said, stderr=said, cwd=folder)
            _, status, used = os.wait4(ran.pid, 0)
            ran.returncode = os.waitstatus_to_exitcode(status)
        spent += used.ru_utime + used.ru_stime
        if status:
            if ran.returncode == -signal.SIGXCPU:
                raise RuntimeError(f"{command[0]} took more than {LEARNING_SECONDS} s of CPU")
            text = re.sub(r"\x1b\[\d+m", "", (folder / "said").read_text("utf-8", "replace"))
            lines = text.strip().splitlines()
            raise RuntimeError(
                next((one for one in reversed(lines) if "Error" in one), lines[-1])[:200]
            )
        return (folder / "said").read_text("utf-8", "replace")

    def collect(name: str, case: Case, clone: Path, *more: str) -> Path:
        (folder / name).mkdir()
        where = prepare(case, clone, folder / name)
        script = path_of(case)
        ranks = case.get("ranks", 1)
        launch = (
            f"-m torch.distributed.run --standalone --nproc-per-node={ranks} " if ranks > 1 else ""
        )
        (folder / f"{name}.sh").write_text(
            f"cd {where}\nexport WARD_TOOL=traincheck WARD_STEPS={LEARNT_STEPS} MPLBACKEND=Agg\n"
            f"export PYTHONPATH={paths(tools, without=['traincheck'])}\n"
            f"exec {sys.executable} -u {launch}{script} {shlex.join(case.get('arguments', ()))}\n"
        )
        to = folder / f"trace-{name}"
        scripts = "--pyscript", str(where / script), "--shscript", str(folder / f"{name}.sh")
        options = *scripts, "--models-to-track", model, "--output-dir", str(to)
        call("traincheck.collect_trace", *options, *more)
        return to

    rows: list[Row] = []
    try:
        learnt = str(folder / "invariants.json")
        trace = str(collect("learnt", after, clones[1]))
        call("traincheck.infer_engine", "-f", trace, "-o", learnt)
        for name, case, clone in (("before", before, clones[0]), ("after", after, clones[1])):
            to = collect(name, case, clone, "--invariants", learnt)
            out = folder / f"found-{name}"
            said = call("traincheck.checker", "-f", str(to), "-i", learnt, "-o", str(out))
            (summary,) = out.rglob("violations_summary.json")
            found = json.loads(summary.read_text("utf-8"))["violations"]
            lines = said.splitlines()
            sums = [line for line in lines if line.startswith("Total failed invariants")]
            row = {"updates": LEARNT_STEPS, "cpu_seconds": round(spent, 1), "said": sums[-1]}
            messages = {one["display_name"]: [one["occurrences"], ""] for one in found}
            rows.append(row | {"messages": messages})
            spent = 0.0
    except RuntimeError as error:
        rows += [
            {"updates": 0, "cpu_seconds": round(spent, 1), "messages": {}, "raised": str(error)}
        ] * (2 - len(rows))
    return rows
