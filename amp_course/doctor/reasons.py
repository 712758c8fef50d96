"""Describe how a script's run went: the facts, what could not be judged, or why nothing could."""

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

ENOUGH = 6  # updates: with fewer, most faults do not show
# Behaviour → the kinds of events that its faults are about; the first that there is counts.
_CALLS = {
    **dict.fromkeys(("backward", "clearing", "accumulation"), ("backward",)),
    **dict.fromkeys(("steps", "loss scale", "overflow"), ("step", "scaler.step")),
    "autocast": ("region",),
    "updates": ("update", "unscale"),
    "scheduler": ("scheduler",),
    "clipping": ("clip",),
}
_ENDED = (
    "the script ended",
    "it ended before",
    "let it train longer, with more epochs or more batches",
)
# How it ended → as a fact; why no inf could be put into an update; how to see more
_ENDS = {
    "steps": ("as many as asked for", "", "ask for more with `--steps`"),
    "time": ("its time was up", "its time was up before", "give it more time with `--timeout`"),
    "interrupt": ("interrupted", "it was interrupted before", "let it go on"),
    "error": (
        "an exception ended it",
        "an exception ended it before",
        "find out why it ended with an exception",
    ),
    "end": _ENDED,
    "exit": _ENDED,
}
_ELSEWHERE = {"cleared-before-step", "scaler-inside-step"}  # other calls are at fault
_GPU = r"(?i)CUDA|NVIDIA|Torch not compiled with|HIP|No GPU|\bgpu\b"


def reason(results: Sequence[dict[str, Any]], outcome: Outcome, seconds: float) -> str:
    """Return why there is nothing to judge, and what to do."""
    main: dict[str, Any] = {"ended": "killed", "error": "", "optimizers": [], "passes": 0}
    main |= results[0] if results else {}
    ended, code = main["ended"], outcome.code
    if main["error"]:
        return _error(main["error"], outcome)
    if not results and outcome.late:
        return (
            f"After {seconds:g} seconds it was too busy to stop, and what had been seen is lost: "
            "give it more time with `--timeout`, a smaller model, or a machine with less to do."
        )
    if ended == "exit" and "usage:" in "\n".join(outcome.lines):
        return (
            f"It ended with exit code {code} over its arguments: give them after its name, as you "
            "do for `python`."
        )
    if outcome.late or ended == "time":
        trains = main["passes"] and main["optimizers"]
        what, less = "took no step of an optimizer", "less to do before its first one (less data)"
        if trains:
            what, less = "completed no update", "a smaller model or batch, or fewer micro-batches"
        return f"In {seconds:g} seconds it {what}: give it more time with `--timeout`, or {less}."
    if ended == "killed" and code < 0:
        name = signal.Signals(-code).name
        return f"A signal ended it ({name}), and what had been seen is lost: was it out of memory?"
    if not results:
        return (
            f"It ended with exit code {code}, and what had been seen is lost: did a child of it "
            "crash, or a launcher?"
        )
    if ended == "exit" and code:
        return f"It ended on its own with exit code {code}, before it trained."
    return _untrained(main)


# What an exception means if it ended a script before an optimizer stepped; the first that matches
_ERRORS = {
    r"RANK expected|KeyError: '(LOCAL_)?(RANK|WORLD_SIZE)'": (
        "It is a script for `torchrun`: say in how many processes the doctor is to start it, "
        "`--ranks 2`."
    ),
    "EOFError": (
        "It asks for input: give what it asks for as an argument, or in a file (`< answers.txt`)."
    ),
    "(?i)stty: |Inappropriate ioctl|not a tty|not a terminal": (
        "It asks its terminal something, and there is none here: start the doctor in a terminal. "
        "({})"
    ),
    _GPU: (
        "It asks for a GPU, and there is none here: {}. Run it on a machine that has one, or let "
        "it fall back to the CPU."
    ),
    "URLError|ConnectionError|gaierror|LocalEntryNotFoundError|OfflineModeIsEnabled|ProxyError": (
        "It could not download something: {}. Run it once where there is a network, so that its "
        "data are there, or give it data of your own."
    ),
    "ModuleNotFoundError|ImportError": (
        "It could not be imported: {}. Install what it needs in the environment that runs the "
        "doctor."
    ),
    "FileNotFoundError": (
        "It misses a file: {}. Start the doctor in the folder where you start the script."
    ),
    "": "It raised an exception before an optimizer stepped: {}.",
}


def _error(error: str, outcome: Outcome) -> str:
    for pattern, meaning in _ERRORS.items():
        text = "\n".join([error, *outcome.lines]) if "stty" in pattern else error
        if pattern == _GPU and import_module("torch").cuda.is_available():
            continue
        if re.search(pattern, text):
            return meaning.format(error)
    return ""


def _untrained(main: dict[str, Any]) -> str:
    """Say what a script did that ended without a step of one of torch's optimizers."""
    passes = count(main["passes"], "backward pass").replace("passs", "passes")
    grads = f"called `torch.autograd.grad` {count(main['by_hand'], 'time')}"
    ways = {f"ran {passes}": main["passes"], grads: main["by_hand"]}
    gradients = listed(way for way, times in ways.items() if times)
    if main["optimizers"] and gradients:
        return f"It made {_kinds(main['optimizers'])}, and {gradients}, but no optimizer stepped."
    if gradients:
        return (
            f"It {gradients}, and made no `torch.optim.Optimizer`: it changes its weights by hand, "
            "or by a library with optimizers of its own, and the doctor follows torch's alone. "
            "`first_nonfinite` and `watch_ranges` work for it, too."
        )
    if main["programs"]:
        return (
            f"It started other programs and trained nothing itself: `{main['programs'][0]}`. The "
            "doctor does not follow those: examine that program instead."
        )
    return (
        f"It made {_kinds(main['optimizers']) or 'no optimizer'}, and ran no backward pass: it "
        "ended without training. Is the training behind an argument, or in another file?"
    )


def _kinds(optimizers: Sequence[str]) -> str:
    """List kinds of optimizers: ["SGD", "Adam", "Adam"] → "SGD and 2 Adam"."""
    counts = Counter(optimizers).items()
    return listed(f"{number} {name}" if number > 1 else name for name, number in counts)


def more_to_see(trained: Sequence[dict[str, Any]]) -> str:
    """Say how much ran, and what would be enough."""
    one = trained[0]
    updates, more = count(one["updates"], "complete update"), _ENDS[one["ended"]][2]
    return (
        f"There was nothing wrong in {updates}, which is too little to say more: {more}. {ENOUGH} "
        "updates are enough for most."
    )


def facts(trained: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield facts about the processes that train, each with its name."""
    if not trained:
        return
    one = trained[0]
    how = _ENDS[one["ended"]][0]
    if one["ended"] == "steps" and one["updates"] < one["asked"]:
        how = f"of the {one['asked']} asked for; they are slow, and these are enough"
    skips = f", {one['skipped']} of them skipped by the scaler" if one["skipped"] else ""
    yield "updates", f"{one['updates']}{skips} ({how})"
    if len(trained) > 1:
        yield "processes", f"{len(trained)} that train"
    yield "optimizers", _kinds(one["optimizers"])
    groups = Counter(one["groups"])
    if groups and not any("LBFGS" in kind for kind in one["optimizers"]) and max(groups) > 1:
        of = f"of {groups.total()} updates"
        several = listed(f"{size} in {number} {of}" for size, number in groups.most_common(3))
        each = f"{next(iter(groups))} in each update"
        yield "backward passes", each if len(groups) == 1 else several
    yield "autocast", listed(one["regions"]) or _without_autocast(one)
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


def _without_autocast(result: dict[str, Any]) -> str:
    if missing := listed(result["missing_devices"]):
        return f"every region is for {missing}, which this machine lacks: none is on"
    return "no region was entered"


def checked(trained: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the behaviours that were judged."""
    if not trained or not trained[0]["updates"]:
        return
    one = trained[0]
    yield from ("values", "weights", *["run"] * (one["ended"] != "error"))
    if one["updates"] > 1:
        yield from ("backward", *["autocast"] * bool(one["regions"]))
        if one["reached"]:
            yield from ("steps", "clearing")
            yield from ("updates", "clipping", "loss scale") if one["scalers"] else ()
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
    if one["updates"] and not one["reached"]:
        yield (
            "steps and clearing",
            "no backward pass reaches the weights that the optimizers step, such as fp32 copies: "
            "the script's own code gives them their gradients",
        )
    if not one["regions"]:
        yield "autocast", _without_autocast(one)
    if one["changed_while_scaled"]:
        yield (
            "clipping",
            "the script's own code changes gradients that carry the loss scale, and nothing shows "
            "whether it allows for that; after `scaler.unscale_(optimizer)` it need not",
        )
    if not one["scalers"]:
        yield "what an overflow would do", "there is no scaler"
    elif not one["stressed"]:
        why = _ENDS[one["ended"]][1]
        left = f"{why} an inf could be put into an update" if why else ""
        none = "no update with finite gradients was left to put an inf into"
        yield "what an overflow would do", left or none
    if len(trained) > 1 and all(other["rank"] for other in trained) and not one["wrapped"]:
        yield (
            "whether all weights stay the same on all ranks",
            "nothing wraps the model, and each rank may have a part of it; weights with the same "
            "gradients were compared",
        )


def placed(one: Finding, result: dict[str, Any]) -> Finding:
    """Return a finding with the line of the calls that it is about, if it has none yet."""
    if one.name in _ELSEWHERE or one.place or any("line" in key for key in one.evidence):
        return one
    lines = (result.get("lines", {}).get(kind) for kind in _CALLS.get(one.behaviour, ()))
    return replace(one, place=next(filter(None, lines), ""))
