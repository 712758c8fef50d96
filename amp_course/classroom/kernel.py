"""The kernel that a submission runs in: an ordinary one that also answers the message "check this
answer".

`kernel_client` starts it: `python -P -m amp_course.classroom.kernel -f CONNECTION`. The answers are
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

# the variable with the path of the settings, which are deleted before the submission runs
SETTINGS = "AMP_COURSE_GRADING"


def main() -> None:
    """Start the kernel and serve until a message stops it."""
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
    # Last: until then, the course must not import a torch.py that was submitted.
    _copy(Path(settings["handed_in"]), Path.cwd())
    sys.path.insert(0, "")
    _watch_files(tuple(settings["forbidden"]), keeper)
    app.start()


def _limit(file_bytes: int, memory_bytes: int) -> None:
    """Limit the size of each file and the memory of this process and of those that it starts."""
    import resource  # here: the grader imports this module too, and Windows has no `resource`

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
    ignore = shutil.ignore_patterns("*.ipynb")
    with contextlib.suppress(shutil.Error):
        shutil.copytree(source, target, symlinks=True, ignore=ignore, dirs_exist_ok=True)


def _handler(kernel: Any, keeper: Keeper, exercises: Mapping[str, Exercise]) -> Callable[..., None]:
    """Return the handler of requests: `{"exercise", "answer", "question"}` → a sealed verdict."""
    before = fingerprint(exercises.values())

    def answer_request(stream: Any, identity: Any, message: Any) -> None:
        content = message["content"]
        reply: dict[str, str] = {}
        # if the submission broke this process, there is no verdict
        with contextlib.suppress(Exception):
            for path in replaced(before, exercises.values())[:3]:
                keeper.note("replaced", path)
            answer = _pickled(content["answer"], kernel.shell.user_ns)
            reply = keeper.ask(content["exercise"], *answer, _cells(), content["question"])
        kernel.session.send(stream, REPLY, reply, message, ident=identity)

    return answer_request


def _pickled(source: str, names: dict[str, Any]) -> tuple[bytes, str, str]:
    """Return a pickled answer, "" and ""; or, if that is impossible, b"", its state and why."""
    import cloudpickle

    try:
        answer = eval(source, names)
    except NameError:
        return b"", "not attempted", "Nothing of that name was left to check."
    except Exception as error:
        return b"", "not attempted", f"{source} raised {type(error).__name__}."
    try:
        copied = cloudpickle.dumps(answer)
        if len(copied) <= LIMIT:
            return copied, "", ""
        why = (
            f"with all that it uses it has {len(copied) / 2**20:,.0f} MB, and "
            f"{LIMIT / 2**20:.0f} MB is the most"
        )
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    problem = f"The answer could not be copied into the process that checks it ({why})."
    return b"", "no verdict", problem[:400]


def _cells() -> dict[str, list[str]]:
    """Return the cells that ran, by the file names in tracebacks: messages quote their lines."""
    found: Iterable[tuple[str, Any]] = list(linecache.cache.items())
    return {
        name: list(entry[2]) for name, entry in found if "ipykernel" in name and len(entry) == 4
    }


def _watch_files(forbidden: tuple[str, ...], keeper: Keeper) -> None:
    """Report to the keeper which files of the class the process tries to open; nothing can switch
    this off again.
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
