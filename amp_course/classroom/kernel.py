"""The kernel that a submission runs in: an ordinary one, which also answers one more message,
"check this answer".

Started by `runner` as `python -P -m amp_course.classroom.kernel -f CONNECTION`. The answers are
judged elsewhere (`judging`).
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from amp_course.checking import Exercise
from amp_course.classroom.integrity import fingerprint, replaced
from amp_course.classroom.judging import LIMIT, Keeper, load
from amp_course.classroom.verdict import REPLY, REQUEST

# names the file with the settings; it is deleted before the submission runs
SETTINGS = "AMP_COURSE_GRADING"


def main() -> None:
    """Start the kernel and serve until it is told to stop."""
    place = Path(os.environ.pop(SETTINGS))
    settings = json.loads(place.read_text(encoding="utf-8"))
    place.unlink()
    _limit(settings["file_bytes"], settings["memory_bytes"])
    exercises = load(settings["chapter"])
    keeper = Keeper(exercises, bytes.fromhex(settings.pop("key")))

    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance()
    app.initialize(sys.argv[1:])
    app.kernel.shell_handlers[REQUEST] = _handler(app.kernel, keeper, exercises)
    # Last: a file called torch.py next to the notebook is the submission's own affair.
    _copy(Path(settings["handed_in"]), Path.cwd())
    sys.path.insert(0, "")
    _watch_files(tuple(settings["forbidden"]), keeper)
    app.start()


def _limit(file_bytes: int, memory_bytes: int) -> None:
    """Hold each file and the memory of this process, and of those that it starts, to a size."""
    import resource  # here: the grader reads this module too, and Windows has none

    limits = (
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CORE, 0),
    )
    for what, size in limits:
        hard = resource.getrlimit(what)[1]
        most = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(what, (most, most))


def _copy(source: Path, target: Path) -> None:
    """Copy what was submitted next to the notebook, as far as it can be read."""
    with contextlib.suppress(shutil.Error):
        shutil.copytree(
            source,
            target,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.ipynb"),
            dirs_exist_ok=True,
        )


def _handler(kernel: Any, keeper: Keeper, exercises: Mapping[str, Exercise]) -> Callable[..., None]:
    """Return what answers a request: `{"exercise", "answer", "question"}` → a sealed verdict."""
    before = fingerprint(exercises.values())

    def answer_request(stream: Any, identity: Any, message: Any) -> None:
        content = message["content"]
        reply: dict[str, str] = {}
        # the submission may have done anything to this process; no verdict, then
        with contextlib.suppress(Exception):
            for path in replaced(before, exercises.values())[:3]:
                keeper.note("replaced", path)
            answer = _pickled(content["answer"], kernel.shell.user_ns)
            reply = keeper.ask(content["exercise"], *answer, _cells(), content["question"])
        kernel.session.send(stream, REPLY, reply, message, ident=identity)

    return answer_request


def _pickled(source: str, names: dict[str, Any]) -> tuple[bytes, str, str]:
    """Return a copy of an answer that can be sent; or none, the state of the answer then,
    and why.
    """
    import cloudpickle

    try:
        answer = eval(source, names)
    except NameError:
        return b"", "not attempted", "Nothing of that name was left to check."
    except Exception as error:
        return b"", "not attempted", f"{source} raised {type(error).__name__}."
    try:
        copied, why = cloudpickle.dumps(answer), ""
        if len(copied) > LIMIT:
            why = (
                f"with all that it uses it has {len(copied) / 2**20:,.0f} MB, and "
                f"{LIMIT / 2**20:.0f} MB is the most"
            )
    except Exception as error:
        copied, why = b"", f"{type(error).__name__}: {error}"
    if why:
        return (
            b"",
            "no verdict",
            f"The answer could not be copied into the process that checks it ({why})."[:400],
        )
    return copied, "", ""


def _cells() -> dict[str, list[str]]:
    """Return the cells that ran, by the name that tracebacks give them:
    messages quote their lines.
    """
    found: Iterable[tuple[str, Any]] = list(linecache.cache.items())
    return {
        name: list(entry[2]) for name, entry in found if "ipykernel" in name and len(entry) == 4
    }


def _watch_files(forbidden: tuple[str, ...], keeper: Keeper) -> None:
    """Tell the keeper from now on which files of the class the process tries to open;
    nothing can switch this off again.
    """
    events = {
        "open",
        "sqlite3.connect",
        "os.listdir",
        "os.scandir",
        "os.remove",
        "os.rename",
        "shutil.copyfile",
    }

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in events:
            return
        for path in arguments[:2]:
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.abspath(os.fsdecode(path))
                if name.startswith(forbidden) or os.path.basename(name).startswith("gradebook.db"):
                    keeper.note("opened", os.path.basename(name) or name)

    sys.addaudithook(note)


if __name__ == "__main__":
    main()
