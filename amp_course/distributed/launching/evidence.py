"""Gather what the ranks of a run left behind: their records, their output, the lines that they were
at, and torchrun's own report.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from amp_course.distributed.launching.running import Ended

RANK_MAIN = Path(__file__).with_name("rank_main.py")
_MOST_BYTES = 200_000  # read from each end of a stream
# In both of torchrun's reports: "failed (exitcode: -9) local_rank: 1 (pid: 42)" and
# "exitcode  : -9 (pid: 42)".
_EXIT = re.compile(r"exitcode\s*:\s*(-?\d+)\)?(?: local_rank: \d+)? \(pid: (\d+)\)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
# Lines that torch and gloo print about themselves while the ranks find each other.
_NOISE = re.compile(
    r"^(\[Gloo\] Rank \d+ is connected to|(\[rank\d+\]: ?)?\[[WI]\d+ [\d:.]+ "
    r"(socket|TCPStore|ProcessGroup)\w*\.cpp)"
)


@dataclass(frozen=True)
class End:
    """How a script ended, by its own record.

    kind:    it "finished", "raised" or called sys.exit ("exit")
    at:      seconds since 1970
    what:    the name of the exception
    message: of the exception, or the argument of sys.exit
    line:    of the script that raised it, with its text in `source`
    """

    kind: Literal["finished", "raised", "exit"]
    at: float
    what: str = ""
    message: str = ""
    code: int = 0
    line: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Place:
    """A line of the script, and the function of torch.distributed that it had called, if any."""

    line: int | None
    source: str
    collective: str


@dataclass(frozen=True)
class Rank:
    """What is known of one rank.

    out, err:  what it printed
    exit_code: of its process, where known; minus the number of the signal that killed it
    started:   whether its process began to run the script
    end:       how the script ended, if it did
    place:     where it was when it crashed, or when time was up
    """

    rank: int
    out: str
    err: str
    exit_code: int | None
    started: bool = True
    end: End | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Evidence:
    """All that is known of a run.

    launcher: what torchrun printed, and what torch printed about itself in the ranks
    """

    ended: Ended
    ranks: tuple[Rank, ...]
    launcher: str


def gather(folder: Path, script: Path, ranks: int, ended: Ended) -> Evidence:
    """Read a run's folder."""
    printed = "\n".join(read_text(file) for file in sorted(folder.glob("command*.*"))).strip()
    codes = {pid: int(code) for code, pid in _EXIT.findall(printed)}
    found, noise = [], [printed]
    for rank in range(ranks):
        base = folder / f"rank{rank}"
        pid, record = read_text(base.with_suffix(".pid")), read_text(base.with_suffix(".json"))
        end = End(**json.loads(without_paths(record))) if record else None
        out, out_noise = _without_noise(read_text(base.with_suffix(".out")))
        err, err_noise = _without_noise(read_text(base.with_suffix(".err")))
        noise += out_noise + err_noise
        code = codes.get(pid)
        if code is None and end is not None:
            code = 1 if end.kind == "raised" else end.code
        place = _place(read_text(base.with_suffix(".dump")), script) or _place(err, script)
        out, err = without_paths(out), without_paths(err)
        found.append(Rank(rank, out, err, code, bool(pid), end, place))
    launcher = "\n".join(filter(None, noise)).replace(str(RANK_MAIN), str(script))
    return Evidence(ended, tuple(found), without_paths(launcher))


def read_text(file: Path) -> str:
    """Return the text of a file, of a long one only both ends; "" if there is no file."""
    if not file.exists():
        return ""
    with open(file, "rb") as stream:
        data = stream.read(_MOST_BYTES)
        size = os.fstat(stream.fileno()).st_size
        if size > 2 * _MOST_BYTES:
            stream.seek(-_MOST_BYTES, os.SEEK_END)
            data += f"\n… {size - 2 * _MOST_BYTES:,} bytes left out …\n".encode()
        return (data + stream.read()).decode(errors="replace")


def without_paths(text: str) -> str:
    """Shorten the paths of packages, the course, temporary files and the current folder, which say
    nothing on someone else's page.
    """
    shorter = {
        sysconfig.get_path("purelib"): "…/site-packages",
        sysconfig.get_path("stdlib"): "…/lib",
        os.getcwd() + os.sep: "",
        str(Path(__file__).resolve().parents[2]): "…/amp_course",
        tempfile.gettempdir() + os.sep: "…" + os.sep,
    }
    for path, short in shorter.items():
        text = text.replace(path, short)
    return text


def _without_noise(text: str) -> tuple[str, list[str]]:
    lines = text.splitlines()
    noise = [line for line in lines if _NOISE.match(line)]
    if not noise:
        return text, []
    return "\n".join(line for line in lines if line not in noise), noise


def _place(dump: str, script: Path) -> Place | None:
    """Find the script's innermost line in faulthandler's dump; innermost frames come first."""
    for thread in re.split(r"\n\s*\n", dump):
        frames = [
            (found[1], int(found[2]), found[3])
            for found in map(_FRAME.match, thread.splitlines())
            if found
        ]
        inner = next((n for n, (file, _, _) in enumerate(frames) if file == str(script)), None)
        if inner is None:
            continue
        called = (
            name
            for file, _, name in reversed(frames[:inner])
            if Path(file).parts[-2:-1] == ("distributed",) and name != "wrapper"
        )
        line = frames[inner][1]
        linecache.checkcache(str(script))
        return Place(line, linecache.getline(str(script), line).strip(), next(called, ""))
    return None
