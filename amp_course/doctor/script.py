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
# What an update with an inf in its gradients can show
_UNDER_STRESS = (
    "overflow-not-skipped",
    "no-update-after-skip",
    "kept-after-skip",
    "scheduler-ran-on",
)
# Updates needed at a script's end: one with an inf, the one after it, and the start of another
_SPARE = 3
_SHARDED = (
    "Its weights are sharded (DTensors, as FSDP2 makes them), and the doctor cannot follow such a "
    "training yet. Examine it with whole weights on one process; `first_nonfinite` works on a rank "
    "of it, too."
)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended the run. report: on what ran until then, None if that was nothing."""

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
    steps:      updates to examine, at most; fewer, but at least 20, if they take long. Then an inf
                is injected into one, and the run ends
    seconds:    after which the run ends, wherever it is
    threads:    for the script's ops; None leaves that to torch
    ranks:      processes in which `torchrun` starts it; with 1, it is started by `python`
    again:      if the script ended before the inf, and has a scaler, run it again for the inf
    keep_files: leave what the script wrote; else files in its folder and in the current one are put
                back
    progress:   called a few times a second with the number of updates so far

    It runs in a process of its own, with a terminal if there is one here; its output is not shown.
    Raises CourseError for a file that is missing or is no Python script, ValueError for
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
                put_back(folder / "again")  # the second run first: it began where the first ended
                changed = put_back(folder)
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
    """Let the first Ctrl-C end the run; ignore the next ones while files are put back."""
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
    """Return after how many updates another run can inject an inf; 0 or less if it should not.

    If most updates were skipped, none with finite gradients would be left.
    """
    if any(one.get("stressed") for one in results):
        return 0
    ended = [one for one in results if one.get("scalers") and one["ended"] in ("end", "exit")]
    updates = [one["updates"] for one in ended if 2 * one["skipped"] <= one["updates"] - 2]
    return min(updates, default=0) - _SPARE


def _add_stress(results: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    """Add to the results of a run what an inf did in another run of the script."""
    stressed = {one["rank"]: one for one in again if one.get("stressed")}
    for one in results:
        other = stressed.get(one.get("rank"))
        if other and one["passes"]:
            found = other["findings"]
            one["findings"] += [data for data in found if data["name"] in _UNDER_STRESS]
            one["stressed"] = True


def _report(
    subject: str,
    args: Sequence[str],
    results: list[dict[str, Any]],
    outcome: Outcome,
    seconds: float,
    changed: tuple[list[str], list[str]],
) -> Report:
    """Combine the results of all processes into one report."""
    broken = [one for one in results if one.get("ended") == "broken"]
    results = [one for one in results if one.get("ended") != "broken"]
    trained = [one for one in results if one["passes"] and one["optimizers"]]
    found = [
        reasons.placed(finding_of(one), result) for result in results for one in result["findings"]
    ]
    raised = [one["error"] for one in results if one["error"] and not one["passes"]]
    # If the doctor ended one process, others may have failed for want of a partner.
    ended = [one["ended"] for one in trained if one["ended"] in ("steps", "time", "interrupt")]
    if ended:
        found = [one for one in found if one.name != "script-raises"]
        stressed = any(one["stressed"] for one in trained)
        for one in trained:
            one |= {"ended": ended[0], "stressed": stressed} if one["ended"] == "error" else {}
    # The exception of a child, which its parent reports
    elif raised and any(one["ended"] == "exit" and one["code"] for one in trained):
        found.append(finding("script-raises", f"the script raised {raised[0]}"))
        trained[0]["ended"] = "error"
    found += check_ranks(trained)
    sharded = any(one["sharded"] for one in results)
    if sharded:
        found = [one for one in found if one.name != "script-raises"]
    faults, advice = by_grade(found)
    findings = in_order(faults)
    names = {one.name for one in findings}
    advice += [finding_of(one) for result in trained for one in result["advice"]]
    # The finding "ranks-drift" says that the wrapper is not called.
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
    names = [f"`{os.path.relpath(path)}`" for path in paths[:3]]
    return listed([*names, "more"] if len(paths) > 3 else names)
