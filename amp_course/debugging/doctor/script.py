"""Examine a reader's unchanged training script: run it in a process of its own, and put together what its processes found."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_course.audit.findings import Finding
from amp_course.debugging.doctor import inside
from amp_course.debugging.doctor.diagnosis import Diagnosis, count, finding_of, listed
from amp_course.debugging.doctor.faults import UNDER_STRESS, finding, in_order, without_consequences
from amp_course.debugging.doctor.files import put_back
from amp_course.kit.errors import CourseError

STEPS, SECONDS = 100, 120.0
_GRACE = 15.0  # seconds that the processes get to write what they found
_SPARE = (
    3  # updates at the end of a script: one that is given an inf, one after it, and one that shows that this is over
)
_SHARDED = (
    "Its weights are sharded (DTensors, as FSDP2 makes them), and the doctor cannot follow such a training yet. Examine it with "
    "whole weights on one process; `first_nonfinite` works on a rank of it, too."
)
_LAST = 12  # lines of the script's output
_GPU = re.compile(r"CUDA|NVIDIA|Torch not compiled with|HIP|No GPU|\bgpu\b", re.IGNORECASE)


def examine_script(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    keep_files: bool = False,
    threads: int | None = None,
    again: bool = True,
    ranks: int = 1,
) -> Diagnosis:
    """Run `python script *args` for some updates, and say what is wrong with how it trains.

    steps:      updates that are looked at, at most; fewer, but at least 20, if they take long. After them one is given an inf,
                and the run ends
    seconds:    after which it ends wherever it is
    threads:    for the script's ops; None leaves that to torch
    ranks:      processes in which `torchrun` starts it; with 1, it is started by `python`
    again:      run a script that ended before that, and has a scaler, a second time, for the inf alone
    keep_files: leave what the script wrote; else files in its folder and in the current one are put back as they were

    It runs in a process of its own, without a terminal; what it prints is kept apart. Raises CourseError for a file that is
    missing or is no Python script, ValueError for steps, seconds or ranks below 1.
    """
    path = Path(script)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise CourseError(f"{path} {what}: give the path of a Python script.")
    if path.suffix in (".ipynb", ".sh"):
        raise CourseError(
            f"{path.name} is not a Python script: the doctor runs what `python` runs. In a notebook, call "
            "`doctor(model, train_step, batches)`."
        )
    if steps < 1 or seconds < 1 or ranks < 1:
        raise ValueError(f"steps is {steps}, seconds is {seconds:g} and ranks is {ranks}: all have to be at least 1.")
    subject = " ".join([path.name, *args])
    folder = Path(tempfile.mkdtemp(prefix="amp-course-doctor-"))
    changed: tuple[list[str], list[str]] = ([], [])
    try:
        began = time.monotonic()
        environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        run = functools.partial(_run, path, args, launcher=launcher, keep_files=keep_files, environment=environment)
        code, lines, late = run(steps, seconds, folder)
        results = _results(folder)
        short = [one["updates"] for one in results if one.get("scalers") and one["ended"] in ("end", "exit")]
        left = seconds - (time.monotonic() - began)
        if again and short and not any(one.get("stressed") for one in results) and min(short) > _SPARE and left > 1:
            repeated = folder / "again"
            repeated.mkdir()
            run(min(short) - _SPARE, left, repeated)
            results = _with_stress(results, _results(repeated))
    finally:
        if not keep_files:
            changed = put_back(folder)
            put_back(folder / "again")
        shutil.rmtree(folder, ignore_errors=True)
    return _diagnosis(subject, results, code, lines, late, seconds, changed)


def _run(
    path: Path, args: Sequence[str], steps: int, seconds: float, folder: Path, *, launcher: Sequence[str], keep_files: bool,
    environment: dict[str, str],
) -> tuple[int, list[str], bool]:  # fmt: skip
    """Run the script; return its exit code, the last lines that it printed, and whether it had to be killed."""
    keep = "" if keep_files else os.pathsep.join([str(path.resolve().parent), os.getcwd()])
    command = [
        sys.executable,
        *launcher,
        inside.__file__,
        str(folder),
        str(steps),
        str(seconds),
        keep,
        str(path),
        *args,
    ]
    plain = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg"}
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | plain | environment,
            start_new_session=True,
        )
        late = False
        try:
            process.wait(seconds + _GRACE)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
    text = (folder / "output").read_bytes()[-20_000:].decode("utf-8", "replace")
    return process.returncode, [line.rstrip() for line in text.splitlines() if line.strip()][-_LAST:], late


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; those that write get a moment."""
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        until = time.monotonic() + patience
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)
        if number is signal.SIGTERM:
            time.sleep(0.2)
    process.wait()


def _results(folder: Path) -> list[dict[str, Any]]:
    """Read what each process wrote; those that trained come first, in order of rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("result-*.json")]
    return sorted(found, key=lambda one: (not one.get("passes"), str(one.get("rank"))))


def _with_stress(results: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the results of a run what an inf did in another run of the same script."""
    stressed = {one["rank"]: one for one in again if one.get("stressed")}
    for one in results:
        other = stressed.get(one.get("rank"))
        if other and one["passes"]:
            one["findings"] += [finding for finding in other["findings"] if finding["name"] in UNDER_STRESS]
            one["stressed"] = True
    return results


def _diagnosis(
    subject: str, results: list[dict[str, Any]], code: int, lines: list[str], late: bool, seconds: float,
    changed: tuple[list[str], list[str]],
) -> Diagnosis:  # fmt: skip
    broken = [one for one in results if one.get("ended") == "broken"]
    results = [one for one in results if one.get("ended") != "broken"]
    trained = [one for one in results if one["passes"]]
    if any(one["ended"] in ("steps", "time") for one in trained):  # others then fail for want of a partner
        for one in trained:
            if one["ended"] == "error":
                one["findings"] = [f for f in one["findings"] if f["name"] != "script-raises"]
    found = [finding_of(one) for result in results for one in result["findings"]]
    found += check_ranks(trained)
    findings = without_consequences(in_order(found))
    advice = in_order([finding_of(one) for result in trained for one in result["advice"]])
    observed = list(dict.fromkeys(text for result in trained for text in result["observed"]))
    if changed[0]:
        observed.append(f"The script overwrote {listed(map(_short, changed[0][:3]))}; put back as before.")
    if changed[1]:
        observed.append(
            f"The script wrote {listed(map(_short, changed[1][:3]))}{' and more' * (len(changed[1]) > 3)}; removed again."
        )
    sharded = any(one.get("sharded") for one in results)
    if sharded:
        findings = tuple(one for one in findings if one.name != "script-raises")
    problem = (
        "" if findings or any(one["updates"] for one in trained) else _problem(results, code, lines, late, seconds)
    )
    if sharded and not findings:
        problem = _SHARDED
    if broken and not problem and not trained:
        problem = "The doctor itself failed; please report it: " + broken[0]["text"].strip().splitlines()[-1]
    failed = problem or any(one["ended"] == "error" for one in results)
    return Diagnosis(
        subject, findings, tuple(one for one in advice if one.name not in {f.name for f in findings}),
        tuple(_facts(trained, late)), tuple(observed), tuple(_not_judged(trained)), problem, tuple(lines) if failed else (),
    )  # fmt: skip


def _short(path: str) -> str:
    return f"`{os.path.relpath(path)}`"


def check_ranks(trained: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Compare the processes of one training."""
    if len(trained) < 2 or not all(one["rank"] for one in trained):
        return
    ranks = listed(f"rank {one['rank']}" for one in trained)
    ended = all(one["ended"] in ("end", "exit") for one in trained)
    counts = [[*one["joined"], *([one["updates"]] if ended else [])] for one in trained]
    for numbers in zip(*counts, strict=False):
        if len(set(numbers)) > 1:
            yield finding("ranks-with-different-counts", updates=f"{listed(map(str, numbers))} on {ranks}")
            break
    for number, scales in enumerate(zip(*(one["scales"] for one in trained), strict=False), 1):
        if len({tuple(one) for one in scales}) > 1:
            told = listed(f"{one[0]:g}" for one in scales if one)
            yield finding("ranks-with-different-scales", update=number, loss_scales=f"{told} on {ranks}")
            break
    if all(one["wrapped"] for one in trained):
        for number, sums in enumerate(zip(*(one["digests"] for one in trained), strict=False), 1):
            if len(set(sums)) > 1:
                yield finding("ranks-drift", update=number, sums_of_the_weights=f"{listed(sums)} on {ranks}")
                break


def _problem(results: Sequence[dict[str, Any]], code: int, lines: Sequence[str], late: bool, seconds: float) -> str:
    """Say why there is nothing to judge, and what to do."""
    text = "\n".join(lines)
    main: dict[str, Any] = {"ended": "killed", "error": "", "optimizers": [], "passes": 0}
    main |= results[0] if results else {}
    error = main["error"]
    if "RANK expected" in error or re.search(r"KeyError: '(LOCAL_)?(RANK|WORLD_SIZE)'", error):
        return "It is a script for `torchrun`: say in how many processes the doctor is to start it, `--ranks 2`."
    if "EOFError" in error:
        return (
            "It asks for input from a terminal, and there is none: give what it asks for as an argument, or in a file."
        )
    if main["ended"] == "exit" and "usage:" in text:
        return f"It ended with exit code {code} over its arguments: give them after its name, as you do for `python`."
    if error and _GPU.search(error) and _no_gpu():
        return (
            f"It asks for a GPU, and there is none here: {error}. Run it on a machine that has one, or let it fall back to the "
            "CPU."
        )
    if "ModuleNotFoundError" in error or "ImportError" in error:
        return f"It could not be imported: {error}. Install what it needs in the environment that runs the doctor."
    if "FileNotFoundError" in error:
        return f"It misses a file: {error}. Start the doctor in the folder where you start the script."
    if error:
        return f"It raised an exception before an optimizer stepped: {error}."
    if late or main["ended"] == "time":
        what = "took no step of an optimizer" if not main["passes"] else "completed no update"
        return (
            f"In {seconds:g} seconds it {what}: give it more time with `--timeout`, or less to do before its first step (a "
            "smaller dataset)."
        )
    if main["ended"] == "killed" and code < 0:
        return (
            f"A signal ended it ({signal.Signals(-code).name}), and what had been seen is lost: was it out of memory?"
        )
    if main["ended"] == "exit" and code:
        return f"It ended on its own with exit code {code}, before it trained."
    if main.get("by_hand") and not main["passes"]:
        return (
            f"It called `torch.autograd.grad` {main['by_hand']} times and made no step of an optimizer: what it does with the "
            "gradients by hand cannot be judged. `first_nonfinite` and `watch_ranges` work for it, too."
        )
    made = f"It made {listed(main['optimizers'])}, and" if main["optimizers"] else "It made no optimizer, and"
    if main["passes"]:
        return (
            f"{made} ran {count(main['passes'], 'backward pass').replace('passs', 'passes')}, but no optimizer stepped."
        )
    return f"{made} ran no backward pass: it ended without training. Is the training behind an argument, or in another file?"


def _no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _facts(trained: Sequence[dict[str, Any]], late: bool) -> Iterator[tuple[str, str]]:
    if not trained:
        return
    one = trained[0]
    how = {
        "steps": "as many as asked for", "time": "its time was up", "end": "the script ended", "exit": "the script ended",
        "error": "the script raised an exception",
    }[one["ended"]]  # fmt: skip
    skips = f", {one['skipped']} of them skipped by the scaler" if one["skipped"] else ""
    yield "updates", f"{one['updates']}{skips} ({how})"
    if len(trained) > 1:
        yield "processes", f"{len(trained)} that train"
    yield "optimizers", listed(dict.fromkeys(one["optimizers"]))
    yield "autocast", listed(one["regions"]) if one["regions"] else "no region was entered"
    matmuls = one["matmuls"]
    total = sum(matmuls.values())
    if total:
        yield "matmuls", listed(f"{share / total:.0%} in {dtype}" for dtype, share in sorted(matmuls.items()))
    scales = [scale[0] for scale in one["scales"] if scale]
    if scales:
        yield "loss scale", f"{scales[0]:,g} → {scales[-1]:,g}"
    if len(one["losses"]) > 1:
        yield "loss", f"{one['losses'][0]:.4g} → {one['losses'][-1]:.4g}"
    yield "seconds", f"{one['seconds']:.0f}"


def _not_judged(trained: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if not trained:
        return
    one = trained[0]
    if one["updates"] < 2:
        yield "order of the calls", f"it takes two updates, and there was {count(one['updates'], 'update')}"
    if one["scalers"] and not one["stressed"]:
        yield "what an overflow would do", "no update was left to put an inf into"
    if not one["scalers"]:
        yield "what an overflow would do", "there is no scaler"
