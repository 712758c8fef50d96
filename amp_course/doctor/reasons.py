"""Say how a script's run went: the facts, what could not be judged, or why nothing could."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import count, listed
from amp_course.doctor.running import Outcome

ENOUGH = 6  # updates: with fewer, most of what is looked for cannot be seen
# Behaviour → the kinds of events that a fault of it is about, the first that there is.
_CALLS = {
    "backward": ("backward",),
    "autocast": ("region",),
    "steps": ("step", "scaler.step"),
    "updates": ("update", "unscale"),
    "scheduler": ("scheduler",),
    "clearing": ("backward",),
    "clipping": ("clip",),
    "loss scale": ("step", "scaler.step"),
    "overflow": ("step", "scaler.step"),
    "accumulation": ("backward",),
}
_MORE = "let it train longer, with more epochs or more batches"
# How it ended → as a fact; why no inf could be put into an update; what would show more.
_ENDS = {
    "steps": ("as many as asked for", "", "ask for more with `--steps`"),
    "time": ("its time was up", "its time was up before", "give it more time with `--timeout`"),
    "interrupt": ("interrupted", "it was interrupted before", "let it go on"),
    "error": (
        "an exception ended it",
        "an exception ended it before",
        "find out why it ended with an exception",
    ),
    "end": ("the script ended", "it ended before", _MORE),
    "exit": ("the script ended", "it ended before", _MORE),
}
_ELSEWHERE = {"cleared-before-step", "scaler-inside-step"}  # the calls at fault are others
_GPU = re.compile(r"CUDA|NVIDIA|Torch not compiled with|HIP|No GPU|\bgpu\b", re.IGNORECASE)
_DOWNLOAD = re.compile(
    r"URLError|ConnectionError|gaierror|LocalEntryNotFoundError|OfflineModeIsEnabled|ProxyError"
)
_TERMINAL = re.compile(r"stty: |Inappropriate ioctl|not a tty|not a terminal", re.IGNORECASE)


def reason(results: Sequence[dict[str, Any]], outcome: Outcome, seconds: float) -> str:
    """Say why there is nothing to judge, and what to do."""
    main: dict[str, Any] = {
        "ended": "killed",
        "error": "",
        "optimizers": [],
        "passes": 0,
        "by_hand": 0,
        "programs": [],
    }
    main |= results[0] if results else {}
    ended, code = main["ended"], outcome.code
    if main["error"]:
        return _error(main["error"], outcome)
    if not results and outcome.late:
        return (
            f"After {seconds:g} seconds it was too busy to stop, and what had been seen is lost: "
            f"give it more time with "
            "`--timeout`, or less to do (a smaller model)."
        )
    if ended == "exit" and "usage:" in "\n".join(outcome.lines):
        return (
            f"It ended with exit code {code} over its arguments: give them after its name, as "
            f"you do for `python`."
        )
    if outcome.late or ended == "time":
        what = (
            "completed no update"
            if main["passes"] and main["optimizers"]
            else "took no step of an optimizer"
        )
        return (
            f"In {seconds:g} seconds it {what}: give it more time with `--timeout`, or less to do "
            f"before its first step (a "
            "smaller dataset)."
        )
    if ended == "killed" and code < 0:
        return (
            f"A signal ended it ({signal.Signals(-code).name}), and what had been seen is lost: "
            f"was it out of memory?"
        )
    if not results:
        return (
            f"It ended with exit code {code}, and what had been seen is lost: did a child of it "
            f"crash, or a launcher?"
        )
    if ended == "exit" and code:
        return f"It ended on its own with exit code {code}, before it trained."
    return _untrained(main)


def _error(error: str, outcome: Outcome) -> str:
    """Say what the exception means that ended a script before an optimizer stepped."""
    if "RANK expected" in error or re.search(r"KeyError: '(LOCAL_)?(RANK|WORLD_SIZE)'", error):
        return (
            "It is a script for `torchrun`: say in how many processes the doctor is to start "
            "it, `--ranks 2`."
        )
    if "EOFError" in error:
        return (
            "It asks for input: give what it asks for as an argument, or in a file (`< "
            "answers.txt`)."
        )
    if _TERMINAL.search("\n".join([error, *outcome.lines])):
        return (
            f"It asks its terminal something, and there is none here: start the doctor in a "
            f"terminal. ({error})"
        )
    if _GPU.search(error) and not import_module("torch").cuda.is_available():
        return (
            f"It asks for a GPU, and there is none here: {error}. Run it on a machine that has "
            f"one, or let it fall back to the "
            "CPU."
        )
    if _DOWNLOAD.search(error):
        return (
            f"It could not download something: {error}. Run it once where there is a network, so "
            f"that its data are there, or "
            "give it data of your own."
        )
    if "ModuleNotFoundError" in error or "ImportError" in error:
        return (
            f"It could not be imported: {error}. Install what it needs in the environment that "
            f"runs the doctor."
        )
    if "FileNotFoundError" in error:
        return (
            f"It misses a file: {error}. Start the doctor in the folder where you start the script."
        )
    return f"It raised an exception before an optimizer stepped: {error}."


def _untrained(main: dict[str, Any]) -> str:
    """Say what a script did that ended, and stepped no optimizer of torch's."""
    passes = count(main["passes"], "backward pass").replace("passs", "passes")
    grads = (
        f"called `torch.autograd.grad` {count(main['by_hand'], 'time')}" if main["by_hand"] else ""
    )
    gradients = listed(filter(None, [f"ran {passes}" if main["passes"] else "", grads]))
    if main["optimizers"] and gradients:
        return f"It made {_kinds(main['optimizers'])}, and {gradients}, but no optimizer stepped."
    if gradients:
        return (
            f"It {gradients}, and made no `torch.optim.Optimizer`: it changes its weights by hand, "
            f"or by a library with "
            "optimizers of its own, and the doctor follows torch's alone. `first_nonfinite` and "
            "`watch_ranges` work for it, too."
        )
    if main["programs"]:
        return (
            f"It started other programs and trained nothing itself: `{main['programs'][0]}`. The "
            f"doctor does not follow those: "
            "examine that program instead."
        )
    made = (
        f"It made {_kinds(main['optimizers'])}, and"
        if main["optimizers"]
        else "It made no optimizer, and"
    )
    return (
        f"{made} ran no backward pass: it ended without training. Is the training behind an "
        f"argument, or in another file?"
    )


def _kinds(optimizers: Sequence[str]) -> str:
    """Write which optimizers there are: ["SGD", "Adam", "Adam"] → "SGD and 2 Adam"."""
    return listed(
        f"{number} {name}" if number > 1 else name for name, number in Counter(optimizers).items()
    )


def more_to_see(trained: Sequence[dict[str, Any]]) -> str:
    """Say how much was seen, and what would be enough."""
    one = trained[0]
    how = _ENDS[one["ended"]][2]
    seen = count(one["updates"], "complete update")
    return (
        f"There was nothing wrong in {seen}, which is too little to say more: {how}. {ENOUGH} "
        f"updates are enough for most."
    )


def facts(trained: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield name and text of what was seen of the processes that train."""
    if not trained:
        return
    one = trained[0]
    how = _ENDS[one["ended"]][0]
    if one["ended"] == "steps" and one["updates"] < one["asked"]:
        how = f"of {one['asked']} that were asked for: they take long, and these are enough"
    skips = f", {one['skipped']} of them skipped by the scaler" if one["skipped"] else ""
    yield "updates", f"{one['updates']}{skips} ({how})"
    if len(trained) > 1:
        yield "processes", f"{len(trained)} that train"
    yield "optimizers", _kinds(one["optimizers"])
    groups = Counter(one["groups"])
    if groups and not any("LBFGS" in kind for kind in one["optimizers"]) and max(groups) > 1:
        told = (
            f"{size} in {number} of {groups.total()} updates"
            for size, number in groups.most_common(3)
        )
        yield (
            "backward passes",
            f"{next(iter(groups))} in each update" if len(groups) == 1 else listed(told),
        )
    yield "autocast", listed(one["regions"]) or "no region was entered"
    if total := sum(one["matmuls"].values()):
        shares = sorted(one["matmuls"].items())
        yield "matmuls", listed(f"{share / total:.0%} in {dtype}" for dtype, share in shares)
    scales = [scale[0] for scale in one["scales"] if scale]
    if scales:
        yield "loss scale", f"{scales[0]:,g} → {scales[-1]:,g}"
    if len(one["losses"]) > 1:
        yield "loss", f"{one['losses'][0]:.4g} → {one['losses'][-1]:.4g}"
    yield from one["machine"]
    yield "it ran for", f"{one['seconds']:.0f} s"


def checked(trained: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the behaviours that were judged."""
    if not trained or not trained[0]["updates"]:
        return
    one = trained[0]
    as_list, scaled = one["updates"] > 1, one["updates"] > 1 and one["scalers"]
    yield from ("values", "weights", "run")
    yield from ("backward", "autocast", "steps", "clearing") if as_list else ()
    yield from ("updates", "clipping", "loss scale") if scaled else ()
    if one["scalers"] and one["stressed"]:
        yield "overflow"
    if len(trained) > 1 and all(one["rank"] and one["wrapped"] for one in trained):
        yield "ranks"


def not_judged(trained: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what could not be judged, and why."""
    if not trained:
        return
    one = trained[0]
    if one["updates"] < 2:
        there = "was 1" if one["updates"] else "were none"
        yield "order of the calls", f"that takes two complete updates; there {there}"
    if not one["scalers"]:
        yield "what an overflow would do", "there is no scaler"
    elif not one["stressed"]:
        why = _ENDS[one["ended"]][1]
        left = f"{why} an inf could be put into an update" if why else ""
        yield (
            "what an overflow would do",
            left or "no update with finite gradients was left to put an inf into",
        )
    if len(trained) > 1 and all(other["rank"] for other in trained) and not one["wrapped"]:
        yield (
            "whether all weights stay the same on all ranks",
            "nothing wraps the model, and each rank may have a part of it; weights with the same "
            "gradients were compared",
        )


def placed(one: Finding, result: dict[str, Any]) -> Finding:
    """Return a finding with the line of the calls that it is about, if it names none yet."""
    if one.name in _ELSEWHERE or one.place or any("line" in key for key in one.evidence):
        return one
    lines = (result.get("lines", {}).get(kind) for kind in _CALLS.get(one.behaviour, ()))
    return replace(one, place=next(filter(None, lines), ""))
