"""Examine a reader's unchanged training script: run it in a process of its own, and put together what its processes found."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amp_course.diagnosis.catalogue import finding, in_order, known
from amp_course.diagnosis.findings import Finding, finding_of
from amp_course.diagnosis.report import Report, listed
from amp_course.doctor.files import put_back
from amp_course.doctor.reasons import ENOUGH, checked, facts, more_to_see, not_judged, placed, reason
from amp_course.doctor.running import Outcome, run_script
from amp_course.kit.errors import CourseError

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "python3")
STEPS, SECONDS = 100, 120.0
# What an update with an inf in its gradients can show.
UNDER_STRESS = ("overflow-not-skipped", "no-update-after-skip", "kept-after-skip", "scheduler-ran-on")
_SPARE = 3  # updates at a script's end: one that is given an inf, one after it, and one that shows that this is over
_SHARDED = (
    "Its weights are sharded (DTensors, as FSDP2 makes them), and the doctor cannot follow such a training yet. Examine it with "
    "whole weights on one process; `first_nonfinite` works on a rank of it, too."
)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended the run. report: on what was seen until then, None if that was nothing."""

    def __init__(self, report: Report | None) -> None:
        super().__init__()
        self.report = report


def examine_script(
    script: str | os.PathLike[str], args: Sequence[str] = (), *, module: bool = False, steps: int = STEPS,
    seconds: float = SECONDS, keep_files: bool = False, threads: int | None = None, again: bool = True, ranks: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Report:  # fmt: skip
    """Run `python script *args` for some updates, and say what is wrong with how it trains.

    module:     `script` is the name of a module, to be run by `python -m`
    steps:      updates that are looked at, at most; fewer, but at least 20, if they take long. After them one is given an inf,
                and the run ends
    seconds:    after which it ends wherever it is
    threads:    for the script's ops; None leaves that to torch
    ranks:      processes in which `torchrun` starts it; with 1, it is started by `python`
    again:      run a script that ended before that, and has a scaler, a second time, for the inf alone
    keep_files: leave what the script wrote; else files in its folder and in the current one are put back as they were
    progress:   is called a few times a second, with the number of updates so far

    It runs in a process of its own, with a terminal if there is one here; what it prints is kept apart. Raises CourseError for
    a file that is missing or is no Python script, ValueError for steps, seconds or ranks below 1, `Interrupted` after Ctrl-C.
    """
    if steps < 1 or seconds < 1 or ranks < 1:
        raise ValueError(f"steps is {steps}, seconds is {seconds:g} and ranks is {ranks}: all have to be at least 1.")
    command = ["-m", str(script), *args] if module else [str(_script(Path(script))), *args]
    subject = f"-m {script}" if module else Path(script).name
    run = functools.partial(run_script, command, keep_files=keep_files, threads=threads, ranks=ranks, progress=progress)
    folder = Path(tempfile.mkdtemp(prefix="amp-course-doctor-"))
    changed: tuple[list[str], list[str]] = ([], [])
    with _interrupted_once():
        try:
            began = time.monotonic()
            outcome = run(steps, seconds, folder)
            results = _results(folder)
            short = [
                one["updates"]
                for one in results
                if one.get("scalers") and one["ended"] in ("end", "exit") and not _all_skipped(one)
            ]
            left = seconds - (time.monotonic() - began)
            stressed = any(one.get("stressed") for one in results)
            if again and short and not stressed and not outcome.interrupted and min(short) > _SPARE and left > 1:
                repeated = folder / "again"
                repeated.mkdir()
                run(min(short) - _SPARE, left, repeated)
                results = _with_stress(results, _results(repeated))
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
            f"{path.name} starts a script, and the doctor runs the script itself: leave {path.name} out, and say `--ranks 2` for "
            "two processes."
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise CourseError(f"{path} {what}: give the path of a Python script, or -m and the name of a module.")
    if path.suffix in (".ipynb", ".sh"):
        raise CourseError(
            f"{path.name} is not a Python script: the doctor runs what `python` runs. In a notebook, call "
            "`doctor(model, train_step, batches)`."
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


def _all_skipped(one: dict[str, Any]) -> bool:
    """Tell whether most updates were skipped: then none with finite gradients is left to put an inf into."""
    return bool(2 * one["skipped"] > one["updates"] - 2)


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


def _report(
    subject: str, args: Sequence[str], results: list[dict[str, Any]], outcome: Outcome, seconds: float,
    changed: tuple[list[str], list[str]],
) -> Report:  # fmt: skip
    broken = [one for one in results if one.get("ended") == "broken"]
    results = [one for one in results if one.get("ended") != "broken"]
    trained = [one for one in results if one["passes"] and one["optimizers"]]
    if any(one["ended"] in ("steps", "time", "interrupt") for one in trained):  # others then fail for want of a partner
        for one in trained:
            if one["ended"] == "error":
                one["findings"] = [f for f in one["findings"] if f["name"] != "script-raises"]
    raised = [one["error"] for one in results if one["error"] and not one["passes"]]
    if raised and any(one["ended"] == "exit" and one["code"] for one in trained):  # a child's, told by its parent
        trained[0]["findings"].append(asdict(finding("script-raises", f"the script raised {raised[0]}")))
        trained[0]["ended"] = "error"
    sharded = any(one.get("sharded") for one in results)
    named = [placed(finding_of(one), result) for result in results for one in result["findings"]]
    named += check_ranks(trained)
    if sharded:
        named = [one for one in named if one.name != "script-raises"]
    findings = in_order(one for one in named if not known(one.name).is_advice)
    advice = [one for one in named if known(one.name).is_advice]
    advice += [finding_of(one) for result in trained for one in result["advice"]]
    if any(one.name == "ranks-drift" for one in findings):  # which says it too
        advice = [one for one in advice if one.name != "wrapper-not-called"]
    observed = list(dict.fromkeys(text for result in trained for text in result["observed"]))
    if changed[0]:
        observed.append(f"The script overwrote {listed(map(_short, changed[0][:3]))}; put back as before.")
    if changed[1]:
        more = ["more"] * (len(changed[1]) > 3)
        observed.append(f"The script wrote {listed([*map(_short, changed[1][:3]), *more])}; removed again.")
    updates = max((one["updates"] for one in trained), default=0)
    problem = "" if findings or updates else reason(results, outcome, seconds)
    if sharded and not findings:
        problem = _SHARDED
    if broken and not problem and not trained:
        problem = "The doctor itself failed; please report it: " + broken[0]["text"].strip().splitlines()[-1]
    failed = problem or any(one["ended"] == "error" for one in results)
    return Report(
        findings,
        tuple(checked(trained)),
        tuple(not_judged(trained)),
        tuple(observed),
        subject=subject,
        advice=tuple(one for one in in_order(advice) if one.name not in {f.name for f in findings}),
        facts=(*([("arguments", " ".join(args))] if args else []), *facts(trained)),
        too_little="" if findings or problem or updates >= ENOUGH else more_to_see(trained),
        problem=problem,
        output=outcome.lines if failed else (),
        device=trained[0]["device"].partition(":")[0] if trained else "cuda",
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
                why = trained[0].get("drift", {})
                yield finding("ranks-drift", update=number, sums_of_the_weights=f"{listed(sums)} on {ranks}", **why)
                return
    drifting = _drifting([one["weights"] for one in trained])
    if drifting is not None:
        number, place, values = drifting
        lines = trained[0]["lines"]
        cause = (
            "a weight and its gradient were the same on all ranks, and after the step the weight is not: what one rank does "
            "between the backward pass and the step, a clip for one, another does not"
        )
        yield finding("ranks-drift", cause, update=number, variant="alone", weight=f"number {place} in the optimizer",
                      its_sums_afterwards=f"{listed(map(repr, values))} on {ranks}",
                      place=lines.get("clip") or lines.get("step", ""))  # fmt: skip


def _drifting(ranks: Sequence[Sequence[Sequence[tuple[float, float]]]]) -> tuple[int, int, list[float]] | None:
    """Look for a weight that was the same on all ranks, with the same gradient, and is not in the next update.

    Ranks that each have a part of a model get other gradients, and those that step a part of it each have the whole again by
    the next backward pass. Return the number of the update and of the weight, from 1, and the weight's sums.
    """
    for number, (now, following) in enumerate(itertools.pairwise(zip(*ranks, strict=False)), 1):
        weights = zip(zip(*now, strict=False), zip(*following, strict=False), strict=False)
        for place, (pairs, later) in enumerate(weights, 1):
            values = [value for value, _ in later]
            same = len({tuple(one) for one in pairs}) == 1
            if same and pairs[0][1] and len(set(values)) > 1 and all(map(math.isfinite, (*pairs[0], *values))):
                return number, place, values
    return None
