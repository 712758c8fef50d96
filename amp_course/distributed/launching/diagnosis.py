"""Say why a run failed: which rank was the first, what happened to it, and what to do about it.

When one rank ends, the others lose their connection to it and fail as well, often before torchrun
notices the first: their "Connection closed by peer" is an echo, and is passed over as long as there
is anything else.
"""

from __future__ import annotations

import os
import re
import signal

from amp_course.distributed.launching.evidence import End, Evidence, Rank
from amp_course.distributed.launching.time_up import explain_time_up
from amp_course.distributed.launching.wording import (
    EQUALLY_OFTEN,
    PORT_IN_USE,
    at,
    meaning,
    names,
    port_text,
    quoted,
    short,
    who,
)

_ECHO = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Socket closed|recvValue|sendBytes|Connection "
    r"was likely closed|failed to recv, got 0 bytes|remote process exited|connectFullMesh failed"
)
_SIZES = re.compile(
    r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)|(Received data size doesn't match "
    r"expected size)"
)


def diagnose(evidence: Evidence) -> str | None:
    """Say in a sentence or two what went wrong first, naming the rank, the cause and the fix;
    None if nothing did.
    """
    if evidence.ended.why == "time":
        return _raised(evidence) or _exited(evidence) or explain_time_up(evidence)
    if all(code == 0 for code in evidence.ended.codes) and all(
        rank.exit_code in (0, None) for rank in evidence.ranks
    ):
        return None
    for find in (_different_sizes, _raised, _exited, _killed, _echoes, _not_started):
        if told := find(evidence):
            return told
    codes = ", ".join("none" if code is None else str(code) for code in evidence.ended.codes)
    return (
        f"torchrun failed (exit code {codes}) without naming a rank. What it printed is in "
        f"`run.launcher`."
    )


def notes(evidence: Evidence, threads: str) -> tuple[str, ...]:
    """Return what is worth knowing about a run, and no fault."""
    cores = _cores()
    if len(evidence.ranks) > cores:
        return (
            f"{len(evidence.ranks)} ranks share the {cores} cores of this machine "
            f"(OMP_NUM_THREADS={threads}), "
            "so do not compare times.",
        )
    return ()


def _ends(evidence: Evidence, kind: str) -> list[tuple[Rank, End]]:
    """Return the ranks that ended in one way, the first of them first."""
    found = [(rank, rank.end) for rank in evidence.ranks if rank.end and rank.end.kind == kind]
    return sorted(found, key=lambda pair: pair[1].at)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _different_sizes(evidence: Evidence) -> str | None:
    for rank in evidence.ranks:
        if found := _SIZES.search(rank.err + (rank.end.message if rank.end else "")):
            sizes = (
                f": {found[1]} bytes arrived where its own tensor has room for {found[2]}"
                if found[1]
                else ""
            )
            return (
                f"rank {rank.rank} received a tensor of another size than its "
                f"own{sizes}{at(rank.place or rank.end)}. The ranks "
                "called a collective with tensors of different shapes or dtypes, or different "
                "collectives; print `tensor.shape` and `tensor.dtype` before it on each rank."
            )
    return None


def _raised(evidence: Evidence) -> str | None:
    raised = _ends(evidence, "raised")
    first = [(rank, end) for rank, end in raised if not _ECHO.search(end.message)]
    if not first:
        return None
    _, end = first[0]
    alike = [
        other
        for other, their in first
        if (their.what, their.message, their.line) == (end.what, end.message, end.line)
    ]
    return f"{who(alike, len(evidence.ranks))} raised {quoted(end)}{at(end)}.{meaning(end.message)}"


def _exited(evidence: Evidence) -> str | None:
    exits = [(rank, end) for rank, end in _ends(evidence, "exit") if end.code]
    if not exits:
        return None
    rank, end = exits[0]
    alike = [other for other, their in exits if (their.code, their.line) == (end.code, end.line)]
    said = end.message or (rank.err.strip().splitlines() or [""])[-1]
    words = f": {short(said)}" if said and not _ECHO.search(said) else ""
    return (
        f"{who(alike, len(evidence.ranks))} ended with exit code {end.code}{at(end)}{words}. "
        f"torchrun ended the others."
    )


def _killed(evidence: Evidence) -> str | None:
    """Find a rank that left no word. One that raised an echo may abort on its way out,
    and torchrun ends others by SIGTERM.
    """
    silent = [rank for rank in evidence.ranks if rank.end is None or rank.end.kind == "finished"]
    echoes = bool(_ends(evidence, "raised"))
    for rank in silent:
        code = rank.exit_code
        if (
            code is None
            and rank.started
            and rank.end is None
            and echoes
            and None not in evidence.ended.codes
        ):
            return (
                f"rank {rank.rank}'s process ended without a word: it was killed. {_OUT_OF_MEMORY}"
            )
        if code is not None and code < 0 and code != -signal.SIGTERM:
            return _by_signal(rank, -code)
        if code is not None and code > 0:
            when = (
                "after its script had finished"
                if rank.end
                else "without an exception, as by `os._exit`"
            )
            return (
                f"rank {rank.rank}'s process ended with exit code {code} {when}. torchrun ended "
                f"the others."
            )
    ended = [rank for rank in silent if rank.exit_code == -signal.SIGTERM]
    return _by_signal(ended[0], signal.SIGTERM) if ended and not echoes else None


_OUT_OF_MEMORY = (
    "Out of memory is the usual cause: make the batch or the model smaller, or start fewer ranks."
)


def _by_signal(rank: Rank, number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    told = f"rank {rank.rank} was killed by signal {number} ({name}){at(rank.place)}"
    if number == signal.SIGKILL:
        return f"{told}. {_OUT_OF_MEMORY}"
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return f"{told}, which another program sent. Start the run again."
    last = next(
        (
            line
            for line in reversed(rank.err.strip().splitlines())
            if "what()" in line or "rror" in line
        ),
        "",
    )
    words = f" Its last words: {short(last)}." if last else ""
    return f"{told}: native code crashed.{words} The end of its output says more."


def _echoes(evidence: Evidence) -> str | None:
    through = [rank for rank in evidence.ranks if rank.end and rank.end.kind != "raised"]
    for rank, end in _ends(evidence, "raised"):
        if through:
            when = f"when {names(through)} finished"
            return f"{names([rank])} was waiting for other ranks{at(end)} {when}. {EQUALLY_OFTEN}"
        return (
            f"{names([rank])} lost its connection to another rank{at(end)}: {quoted(end)}. No rank "
            f"left a cause; "
            "start the run again, and look at the output of the others."
        )
    return None


def _not_started(evidence: Evidence) -> str | None:
    for number, code in enumerate(evidence.ended.codes):
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            where = f" on node {number}" if evidence.nodes > 1 else ""
            return (
                f"torchrun itself{where} was killed by signal {-code} ({name}), and its ranks "
                f"with it. Start the run again."
            )
    if any(rank.started for rank in evidence.ranks):
        return None
    if PORT_IN_USE.search(evidence.launcher):
        port = port_text(evidence.launcher)
        return (
            f"no rank started, because the port is in use{port}. Choose another, or end the "
            f"program that has it."
        )
    said = [
        line
        for line in evidence.launcher.strip().splitlines()
        if re.match(r"\S*(Error|Exception)\b|.*: error: ", line)
    ]
    return (
        f"no rank started: torchrun failed{': ' + short(said[-1]) if said else ''}. What it "
        f"printed is in `run.launcher`."
    )
