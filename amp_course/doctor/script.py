"""Examine an unchanged training script, in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_course.diagnosis.catalogue import by_grade, finding, in_order
from amp_course.diagnosis.findings import finding_of
from amp_course.diagnosis.report import Report, listed
from amp_course.doctor import reasons
from amp_course.doctor.files import put_back
from amp_course.doctor.ranks import check_ranks
from amp_course.doctor.running import Outcome, run_script
from amp_course.kit.errors import CourseError

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "python3")
STEPS, SECONDS = 100, 120.0
# What an update with an inf in its gradients can show.
UNDER_STRESS = (
    "overflow-not-skipped",
    "no-update-after-skip",
    "kept-after-skip",
    "scheduler-ran-on",
)
# Updates at a script's end: one with an inf, one after it, one that shows that this is over
_SPARE = 3
_SHARDED = (
    "Its weights are sharded (DTensors, as FSDP2 makes them), and the doctor cannot follow such a "
    "training yet. Examine it with whole weights on one process; `first_nonfinite` works on a rank "
    "of it, too."
)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended the run. report: on what was seen until then, None if that was nothing."""

    def __init__(self, report: Report | None) -> None:
        super().__init__()
        self.report = report


def examine_script(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    module: bool = False,
    steps: int = STEPS,
    seconds: float = SECONDS,
    keep_files: bool = False,
    threads: int | None = None,
    again: bool = True,
    ranks: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Run `python script *args` for some updates, and say what is wrong with how it trains.

    module:     `script` is the name of a module, to be run by `python -m`
    steps:      updates that are looked at, at most; fewer, but at least 20, if they take long.
                After them one is given an inf, and the run ends
    seconds:    after which it ends wherever it is
    threads:    for the script's ops; None leaves that to torch
    ranks:      processes in which `torchrun` starts it; with 1, it is started by `python`
    again:      run a script that ended before that, and has a scaler, a second time, for the inf
                alone
    keep_files: leave what the script wrote; else files in its folder and in the current one are put
                back as they were
    progress:   is called a few times a second, with the number of updates so far

    It runs in a process of its own, with a terminal if there is one here; what it prints is kept
    apart. Raises CourseError for a file that is missing or is no Python script, ValueError for
    steps, seconds or ranks below 1, `Interrupted` after Ctrl-C.
    """
    if steps < 1 or seconds < 1 or ranks < 1:
        numbers = f"steps is {steps}, seconds is {seconds:g} and ranks is {ranks}"
        raise ValueError(f"{numbers}: all have to be at least 1.")
    command = ["-m", str(script), *args] if module else [str(_script(Path(script))), *args]
    subject = f"-m {script}" if module else Path(script).name
    run = functools.partial(
        run_script, command, keep_files=keep_files, threads=threads, ranks=ranks, progress=progress
    )
    folder = Path(tempfile.mkdtemp(prefix="amp-course-doctor-"))
    changed: tuple[list[str], list[str]] = ([], [])
    with _interrupted_once():
        try:
            began = time.monotonic()
            outcome = run(steps, seconds, folder)
            results = _results(folder)
            left = seconds - (time.monotonic() - began)
            again = again and not outcome.interrupted and left > 1
            fewest = _updates_for_stress(results) if again else 0
            if fewest > 0:
                repeated = folder / "again"
                repeated.mkdir()
                run(fewest, left, repeated)
                _add_stress(results, _results(repeated))
        finally:
            if not keep_files:
                changed = put_back(folder)
                put_back(folder / "again")
            shutil.rmtree(folder, ignore_errors=True)
    report = _report(subject, args, results, outcome, seconds, changed)
    if outcome.interrupted:
        raise Interrupted(report if report.facts else None)
    return report


def _script(path: Path) -> Path:
    """Return the path of a script that can be run. Raises CourseError for any other."""
    if not path.is_file() and path.name in _LAUNCHERS:
        raise CourseError(
            f"{path.name} starts a script, and the doctor runs the script itself: leave "
            f"{path.name} out, and say `--ranks 2` for two processes."
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise CourseError(
            f"{path} {what}: give the path of a Python script, or -m and the name of a module."
        )
    if path.suffix in (".ipynb", ".sh"):
        raise CourseError(
            f"{path.name} is not a Python script: the doctor runs what `python` runs. In a "
            "notebook, call `doctor(model, train_step, batches)`."
        )
    return path


@contextlib.contextmanager
def _interrupted_once() -> Iterator[None]:
    """Let the first Ctrl-C end what runs, and the next ones not disturb the putting back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _results(folder: Path) -> list[dict[str, Any]]:
    """Read what each process wrote; those that trained come first, in order of rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("result-*.json")]
    return sorted(found, key=lambda one: (not one.get("passes"), str(one.get("rank"))))


def _updates_for_stress(results: list[dict[str, Any]]) -> int:
    """Return after how many updates another run can give one an inf; 0 if there is no need.

    Where most updates were skipped, none with finite gradients would be left.
    """
    if any(one.get("stressed") for one in results):
        return 0
    ended = [one for one in results if one.get("scalers") and one["ended"] in ("end", "exit")]
    updates = [one["updates"] for one in ended if 2 * one["skipped"] <= one["updates"] - 2]
    return min(updates, default=0) - _SPARE


def _add_stress(results: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    """Add to the results of a run what an inf did in another run of the same script."""
    stressed = {one["rank"]: one for one in again if one.get("stressed")}
    for one in results:
        other = stressed.get(one.get("rank"))
        if other and one["passes"]:
            one["findings"] += [it for it in other["findings"] if it["name"] in UNDER_STRESS]
            one["stressed"] = True


def _report(
    subject: str,
    args: Sequence[str],
    results: list[dict[str, Any]],
    outcome: Outcome,
    seconds: float,
    changed: tuple[list[str], list[str]],
) -> Report:
    broken = [one for one in results if one.get("ended") == "broken"]
    results = [one for one in results if one.get("ended") != "broken"]
    trained = [one for one in results if one["passes"] and one["optimizers"]]
    named = [
        reasons.placed(finding_of(one), result) for result in results for one in result["findings"]
    ]
    if any(one["ended"] in ("steps", "time", "interrupt") for one in trained):
        # others fail for want of a partner
        named = [one for one in named if one.name != "script-raises"]
    raised = [one["error"] for one in results if one["error"] and not one["passes"]]
    # a child's, told by its parent
    if raised and any(one["ended"] == "exit" and one["code"] for one in trained):
        named.append(finding("script-raises", f"the script raised {raised[0]}"))
        trained[0]["ended"] = "error"
    named += check_ranks(trained)
    sharded = any(one["sharded"] for one in results)
    if sharded:
        named = [one for one in named if one.name != "script-raises"]
    faults, advice = by_grade(named)
    findings = in_order(faults)
    names = {one.name for one in findings}
    advice += [finding_of(one) for result in trained for one in result["advice"]]
    # which says it too
    left_out = names | ({"wrapper-not-called"} if "ranks-drift" in names else set())
    observed = list(dict.fromkeys(text for result in trained for text in result["observed"]))
    overwritten, made = changed
    if overwritten:
        observed.append(f"The script overwrote {_files(overwritten)}; put back as before.")
    if made:
        observed.append(f"The script wrote {_files(made)}; removed again.")
    updates = max((one["updates"] for one in trained), default=0)
    problem = "" if findings or updates else reasons.reason(results, outcome, seconds)
    if sharded and not findings:
        problem = _SHARDED
    if broken and not problem and not trained:
        last = broken[0]["text"].strip().splitlines()[-1]
        problem = f"The doctor itself failed; please report it: {last}"
    arguments = [("arguments", " ".join(args))] if args else []
    enough = findings or problem or updates >= reasons.ENOUGH
    failed = problem or any(one["ended"] == "error" for one in results)
    return Report(
        findings,
        tuple(reasons.checked(trained)),
        tuple(reasons.not_judged(trained)),
        tuple(observed),
        subject=subject,
        advice=tuple(one for one in in_order(advice) if one.name not in left_out),
        facts=(*arguments, *reasons.facts(trained)),
        too_little="" if enough else reasons.more_to_see(trained),
        problem=problem,
        output=outcome.lines if failed else (),
        device=trained[0]["device"].partition(":")[0] if trained else "cuda",
    )


def _files(paths: Sequence[str]) -> str:
    return listed([*map(_short, paths[:3]), *["more"] * (len(paths) > 3)])


def _short(path: str) -> str:
    return f"`{os.path.relpath(path)}`"
