"""Say why a run failed: which rank failed first, what happened to it, and what to do about it.

When one rank ends, the others lose their connection to it and fail as well, often before torchrun
notices the first. Their "Connection closed by peer" is an echo, ignored if there is anything else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from amp_course.distributed.launching.evidence import End, Evidence, Place, Rank
from amp_course.distributed.launching.wording import at, meaning, names, quoted, short, who
from amp_course.kit.hardware import usable_cores

_ECHO = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Socket closed|recvValue|sendBytes|Connection "
    r"was likely closed|failed to recv, got 0 bytes|remote process exited|connectFullMesh failed"
)
_SIZES = re.compile(
    r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)|(Received data size doesn't match "
    r"expected size)"
)
_EQUALLY_OFTEN = (
    "A collective returns only once every rank has called it: make all ranks call the "
    "same ones, in the same order."
)
_OUT_OF_MEMORY = (
    "Out of memory is the usual cause: make the batch or the model smaller, or start fewer ranks."
)


def diagnose(evidence: Evidence) -> str | None:
    """Return a sentence or two on what went wrong first, naming the rank, the cause and the fix;
    None if nothing did.
    """
    if evidence.ended.time_up:
        return _raised(evidence) or _exited(evidence) or _time_up(evidence)
    if not any(evidence.ended.codes) and not any(rank.exit_code for rank in evidence.ranks):
        return None
    for find in (_different_sizes, _raised, _exited, _killed, _echoes, _not_started):
        if problem := find(evidence):
            return problem
    codes = ", ".join("none" if code is None else str(code) for code in evidence.ended.codes)
    return (
        f"torchrun failed (exit code {codes}) without naming a rank. What it printed is in "
        f"`run.launcher`."
    )


def notes(ranks: int, threads: str) -> tuple[str, ...]:
    """Return what is worth knowing about a run, though it is no fault."""
    cores = usable_cores()
    if ranks <= cores:
        return ()
    return (
        f"{ranks} ranks share the {cores} cores of this machine (OMP_NUM_THREADS={threads}), "
        "so do not compare times.",
    )


def _ends(evidence: Evidence, kind: str) -> list[tuple[Rank, End]]:
    """Return the ranks that ended in one way, the earliest first."""
    found = [(rank, rank.end) for rank in evidence.ranks if rank.end and rank.end.kind == kind]
    return sorted(found, key=lambda pair: pair[1].at)


def _different_sizes(evidence: Evidence) -> str | None:
    for rank in evidence.ranks:
        if found := _SIZES.search(rank.err + (rank.end.message if rank.end else "")):
            sizes = ""
            if found[1]:
                sizes = f": {found[1]} bytes arrived where its own tensor has room for {found[2]}"
            return (
                f"rank {rank.rank} received a tensor of another size than its "
                f"own{sizes}{at(rank.place or rank.end)}. The ranks "
                "called a collective with tensors of different shapes or dtypes, or different "
                "collectives; print `tensor.shape` and `tensor.dtype` before it on each rank."
            )
    return None


def _raised(evidence: Evidence) -> str | None:
    raised = [pair for pair in _ends(evidence, "raised") if not _ECHO.search(pair[1].message)]
    if not raised:
        return None
    _, end = raised[0]
    same = (end.what, end.message, end.line)
    alike = [rank for rank, e in raised if (e.what, e.message, e.line) == same]
    return f"{who(alike, len(evidence.ranks))} raised {quoted(end)}{at(end)}.{meaning(end.message)}"


def _exited(evidence: Evidence) -> str | None:
    exits = [(rank, end) for rank, end in _ends(evidence, "exit") if end.code]
    if not exits:
        return None
    rank, end = exits[0]
    alike = [other for other, e in exits if (e.code, e.line) == (end.code, end.line)]
    last = end.message or (rank.err.strip().splitlines() or [""])[-1]
    words = f": {short(last)}" if last and not _ECHO.search(last) else ""
    return (
        f"{who(alike, len(evidence.ranks))} ended with exit code {end.code}{at(end)}{words}. "
        f"torchrun ended the others."
    )


def _killed(evidence: Evidence) -> str | None:
    """Find a rank that was killed without recording an end. A rank that raised an echo may abort as
    it ends, and torchrun ends others by SIGTERM.
    """
    silent = [rank for rank in evidence.ranks if rank.end is None or rank.end.kind == "finished"]
    echoes = bool(_ends(evidence, "raised"))
    for rank in silent:
        code = rank.exit_code
        if code is None:
            vanished = rank.started and rank.end is None
            if vanished and echoes and None not in evidence.ended.codes:
                return (
                    f"rank {rank.rank}'s process ended without a word: it was killed. "
                    f"{_OUT_OF_MEMORY}"
                )
        elif code > 0:
            when = (
                "after its script had finished"
                if rank.end
                else "without an exception, as by `os._exit`"
            )
            return (
                f"rank {rank.rank}'s process ended with exit code {code} {when}. torchrun ended "
                f"the others."
            )
        elif code not in (0, -signal.SIGTERM):
            return _by_signal(rank, -code)
    ended = [rank for rank in silent if rank.exit_code == -signal.SIGTERM]
    return _by_signal(ended[0], signal.SIGTERM) if ended and not echoes else None


def _by_signal(rank: Rank, number: int) -> str:
    killed = f"rank {rank.rank} was killed by signal {_signal(number)}{at(rank.place)}"
    if number == signal.SIGKILL:
        return f"{killed}. {_OUT_OF_MEMORY}"
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return f"{killed}, which another program sent. Start the run again."
    errors = [line for line in rank.err.splitlines() if "what()" in line or "rror" in line]
    words = f" Its last words: {short(errors[-1])}." if errors else ""
    return f"{killed}: native code crashed.{words} The end of its output says more."


def _signal(number: int) -> str:
    """Name a signal. Example: 9 → "9 (SIGKILL)" """
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    return f"{number} ({name})"


def _echoes(evidence: Evidence) -> str | None:
    finished = [rank for rank in evidence.ranks if rank.end and rank.end.kind != "raised"]
    for rank, end in _ends(evidence, "raised"):
        if finished:
            when = f"when {names(finished)} finished"
            return f"{names([rank])} was waiting for other ranks{at(end)} {when}. {_EQUALLY_OFTEN}"
        return (
            f"{names([rank])} lost its connection to another rank{at(end)}: {quoted(end)}. No rank "
            f"left a cause; start the run again, and look at the output of the others."
        )
    return None


def _not_started(evidence: Evidence) -> str | None:
    for code in evidence.ended.codes:
        if code is not None and code < 0:
            return (
                f"torchrun itself was killed by signal {_signal(-code)}, and its ranks with it. "
                f"Start the run again."
            )
    if any(rank.started for rank in evidence.ranks):
        return None
    errors = [
        line
        for line in evidence.launcher.splitlines()
        if re.match(r"\S*(Error|Exception)\b|.*: error: ", line)
    ]
    return (
        f"no rank started: torchrun failed{': ' + short(errors[-1]) if errors else ''}. What it "
        f"printed is in `run.launcher`."
    )


def _time_up(evidence: Evidence) -> str:
    """Say which ranks had finished, where the others were, and what may help."""
    began = f"time was up after {evidence.ended.seconds:.0f} seconds"
    absent = [rank for rank in evidence.ranks if not rank.started]
    if len(absent) == len(evidence.ranks):
        return f"{began}, and no rank had started. What torchrun printed is in `run.launcher`."
    done = [rank for rank in evidence.ranks if rank.end]
    busy = [rank for rank in evidence.ranks if rank.started and not rank.end]
    states = [f"{names(done)} had finished"] if done else []
    states += [_still(alike) for alike in _by_place(busy)]
    states += [f"{names(absent)} had not started"] if absent else []
    return f"{began}: {'; '.join(states)}. {_remedy(busy, done, len(evidence.ranks))}"


def _by_place(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Group the ranks that were at the same place."""
    found: dict[Place | None, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank.place, []).append(rank)
    return list(found.values())


def _still(ranks: Sequence[Rank]) -> str:
    place, verb = ranks[0].place, "was" if len(ranks) == 1 else "were"
    where = f"at line {place.line}, `{short(place.source)}`" if place else "running"
    waiting = ""
    if place and place.collective:
        waiting = f", waiting for other ranks in `{place.collective}`"
    return f"{names(ranks)} {verb} still {where}{waiting}"


def _remedy(busy: Sequence[Rank], done: Sequence[Rank], ranks: int) -> str:
    if not busy:
        return (
            "Their scripts have finished, but their processes have not ended: join their threads "
            "and subprocesses."
        )
    waiting = [rank.place for rank in busy if rank.place and rank.place.collective]
    if not waiting:
        return "Look at that line, or pass a larger `seconds` if the script needs longer."
    joining = ("init_process_group", "new_group", "rendezvous")
    if len(waiting) == len(busy) and all(place.collective in joining for place in waiting):
        return (
            "The ranks never found each other: use one address and a free port on all of them, and "
            f"a `world_size` of {ranks}. torchrun sets all three; `init_process_group()` without "
            "arguments takes them."
        )
    if done or len(waiting) < len(busy) or len({place.line for place in waiting}) > 1:
        return _EQUALLY_OFTEN
    return "Pass a larger `seconds` if the script only needs longer."
