"""Run other tools on the ward's cases, and sum up what they say by a judgement of each kind of
message.

    python -m benchmarks.ward.others FOLDER --tools DIR [NAME ...]

FOLDER holds the clones, as for `python -m benchmarks.ward`; DIR holds the tools (`pip install
--target DIR`). torch-audit and torchmortem are attached by `attached/sitecustomize.py` to scripts
that stay as they are. TrainCheck learns from the script after the fix; then the one before it is
checked, and the one after it once more. What a message is worth is written in others.toml, and the
doctor's share is taken from the ward's record.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from multiprocessing import process, util
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  # these four are here so that a fork of this process need not import them
import torch._dynamo
import torch.distributed
import torch.utils.data

from amp_course.kit.hardware import device_name
from benchmarks.ward.copies import HERE, RESULTS, STEPS, Case, cases, clone_of, path_of, prepare
from benchmarks.ward.learning import learn, paths
from benchmarks.ward.worth import ATTACHED, Row, judgement, table

SECONDS = 30  # of CPU time, for each process of a script


def start(case: Case, where: Path) -> None:
    """Become the script, in a fork: what is measured is the script, and not the import of torch."""
    script, root = path_of(case), str(HERE.parents[1])
    os.chdir(where)
    process.ORIGINAL_DIR = str(where)  # type: ignore[attr-defined]  # where processes that it spawns look for it
    ours = [one for one in sys.path if one not in ("", root)]
    sys.path[:] = [
        str(where / ("" if "module" in case else os.path.dirname(script))),
        *os.environ["PYTHONPATH"].split(os.pathsep),
        *ours,
    ]
    if (ranks := case.get("ranks", 1)) > 1:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29533", "WORLD_SIZE": str(ranks)}
        children = []
        for rank in range(ranks):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(os.fork())
            if not children[-1]:
                break
        else:
            os._exit(int(any([os.waitpid(one, 0)[1] for one in children])))
    code = 1
    try:
        sys.argv[:] = [script, *case.get("arguments", ())]
        runpy.run_path(str(HERE / "attached" / "sitecustomize.py"), run_name="sitecustomize")
        if "module" in case:
            runpy.run_module(case["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            util._exit_function()  # type: ignore[attr-defined]  # which writes the record
            sys.stderr.flush()
        finally:
            os._exit(code)


def attach(case: Case, where: Path, tool: str, tools: Path) -> Row:
    """Run a prepared script with a tool attached, or with none;
    return what it said, and the CPU's seconds.
    """
    with tempfile.TemporaryDirectory() as out:
        ours, terminal = os.openpty()  # some ask it for its width
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.setsid()
            os.environ |= {
                "PYTHONPATH": paths(tools),
                "OMP_NUM_THREADS": "1",
                "MPLBACKEND": "Agg",
                "TMPDIR": out,
                "WARD_OUT": out,
                "WARD_TOOL": tool,
                "WARD_STEPS": str(case.get("steps", STEPS)),
                "WARD_SECONDS": str(SECONDS),
            }
            tempfile.tempdir = None
            with open(Path(out, "errors"), "wb") as errors, open(os.devnull, "wb") as nowhere:
                for stream, theirs in enumerate((terminal, nowhere.fileno(), errors.fileno())):
                    os.dup2(theirs, stream)
            start(case, where)
        limits = (4, signal.SIGTERM), (5, signal.SIGKILL)
        timers = [
            threading.Timer(times * SECONDS, os.killpg, (child, which)) for times, which in limits
        ]
        for timer in timers:
            timer.start()
        _, status, used = os.wait4(child, 0)
        for timer in timers:
            timer.cancel()
        for one in (ours, terminal):
            os.close(one)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it may have left behind
        records = [json.loads(one.read_text("utf-8")) for one in sorted(Path(out).glob("*.json"))]
        said = Path(out, "errors").read_text("utf-8", "replace").strip().splitlines()
    messages: dict[str, list[Any]] = {}
    for kind, severity, message, place in (one for record in records for one in record["messages"]):
        said_first = f"{message[:200]} [{place[:100]}]" if place else message[:200]
        messages.setdefault(f"{kind} {severity}", [0, said_first])[0] += 1
    row = {
        "updates": max((one["updates"] for one in records), default=0),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "messages": messages,
    }
    if records:
        row |= {"model": records[0]["model"], "optimizer": records[0]["optimizer"]}
    if any(one.get("late") for one in records):
        row["late"] = True
    if status:
        errors_said = [line for line in said if "Error" in line and not line.startswith(" ")]
        row["raised"] = (errors_said or said or [f"status {status}"])[-1][:200]
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is there, a line for each; put the rows into the record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ward.others", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="where the clones are")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the lists (default: all)")
    parser.add_argument("--tools", type=Path, required=True, help="where the tools are installed")
    parser.add_argument(
        "--only", nargs="+", default=["none", *ATTACHED, "TrainCheck"], help="of the tools"
    )
    parser.add_argument(
        "--record", type=Path, default=RESULTS / f"ward_others-{datetime.date.today()}.json"
    )
    chosen = parser.parse_intermixed_args(argv)
    known, models = cases(), judgement()["models"]
    old = json.loads(chosen.record.read_text("utf-8")) if chosen.record.exists() else {}
    rows = {(row["case"], row["tool"]): row for row in old.get("rows", ())}
    start_seconds = old.get("start_seconds") or importing()
    for name in chosen.names or known:
        clone, after = clone_of(known[name], chosen.folder), name.replace("-before", "-after")
        if clone is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found: dict[tuple[str, str], Row] = {}
            for tool in (tool for tool in ("none", *ATTACHED) if tool in chosen.only):
                copy = Path(folder, tool)
                copy.mkdir()
                found[name, tool] = attach(
                    known[name], prepare(known[name], clone, copy), tool, chosen.tools
                )
            learns = "TrainCheck" in chosen.only and name in models
            if learns and (other := clone_of(known[after], chosen.folder)):
                clones, model = (clone, other), models[name]
                pair = learn(known[name], known[after], clones, model, chosen.tools, Path(folder))
                found |= zip(((name, "TrainCheck"), (after, "TrainCheck")), pair, strict=True)
        for (case, tool), row in found.items():
            rows[case, tool] = {"case": case, "kind": known[case]["kind"], "tool": tool} | row
            print(case, tool, json.dumps(row)[:300], flush=True)
        keys = sorted(rows, key=lambda key: (list(known).index(key[0]), key[1]))
        write(chosen.record, [rows[key] for key in keys], start_seconds, chosen.tools)
    return 0


def importing() -> float:
    """Return the CPU's seconds that a process takes to import what a fork of this one has."""
    code = "import numpy, torch._dynamo, torch.distributed, torch.utils.data"
    ran = subprocess.Popen([sys.executable, "-c", code])
    _, _, used = os.wait4(ran.pid, 0)
    ran.returncode = 0
    return round(used.ru_utime + used.ru_stime, 1)


def write(path: Path, rows: list[Row], start_seconds: float, tools: Path) -> None:
    """Write the record, a line for each case and tool."""
    installed = importlib.metadata.distributions(path=[str(tools)])
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {
        one.name: one.version for one in installed if one.name in (*ATTACHED, "traincheck")
    }
    record = {
        "benchmark": "ward_others",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S+00:00}",
        "machine": device_name(torch.device("cpu")),
        "versions": versions,
        "seconds": SECONDS,
        "start_seconds": start_seconds,
    }
    head = json.dumps(record, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    path.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', "utf-8")
    path.with_name("ward_others.md").write_text(table(json.loads(path.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
