"""The kernel that a submission runs in: an ordinary one, which also answers one more message, "check this answer".

Started by `runner` as `python -m amp_course.classroom.kernel -f CONNECTION`. All that a check relies on is loaded, and noted by
`integrity`, before the first cell of the submission runs.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amp_course.classroom.verdict import REPLY, REQUEST, Seal, Verdict

SETTINGS = "AMP_COURSE_GRADING"  # names the file with the settings; it is deleted before the submission runs


def main() -> None:
    """Start the kernel and serve until it is told to stop."""
    place = Path(os.environ.pop(SETTINGS))
    settings = json.loads(place.read_text(encoding="utf-8"))
    place.unlink()
    _limit(settings["file_bytes"], settings["memory_bytes"])
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance()
    app.initialize(sys.argv[1:])
    opened: list[str] = []
    app.kernel.shell_handlers[REQUEST] = _handler(
        app.kernel, settings["chapter"], Seal(bytes.fromhex(settings["key"])), opened
    )
    # Last: a file called torch.py next to the notebook is the submission's own affair.
    shutil.copytree(settings["handed_in"], ".", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.ipynb"))
    sys.path.insert(0, "")
    _watch_files(tuple(settings["forbidden"]), opened)
    settings.clear()
    app.start()


def _limit(file_bytes: int, memory_bytes: int) -> None:
    """Hold each file and the memory of this process, and of those that it starts, to a size."""
    for what, size in (
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(what, (most, most))


def _handler(kernel: Any, chapter: str, seal: Seal, opened: list[str]) -> Callable[..., None]:
    """Load what checks need, and return what answers a request: `{"exercise", "answer", "question"}` → a sealed verdict."""
    import warnings

    import torch

    from amp_course.checking.warmup import load_lazy_modules
    from amp_course.classroom.integrity import fingerprint, replaced
    from amp_course.course import find

    exercises = {exercise.id: exercise for exercise in find(chapter).exercises()}
    load_lazy_modules()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (
            torch.optim.SGD,
            torch.optim.Adam,
            torch.optim.AdamW,
        ):  # torch replaces `step` at the first one of a kind
            kind([torch.zeros(1, requires_grad=True)])
    before = fingerprint()

    def answer_request(stream: Any, identity: Any, message: Any) -> None:
        content = message["content"]
        verdict = judge(content["exercise"], content["answer"])
        kernel.session.send(stream, REPLY, seal.close(verdict, content["question"]), message, ident=identity)

    def judge(name: str, source: str) -> Verdict:
        exercise, changed = exercises[name], replaced(before)
        try:
            answer = eval(source, kernel.shell.user_ns)
        except Exception as error:
            missing = type(error) is NameError
            message = (
                "Nothing of that name was left to check." if missing else f"{source} raised {type(error).__name__}."
            )
            return Verdict(name, "not attempted", message, replaced=tuple(changed), opened=tuple(opened))
        if isinstance(answer, (types.FunctionType, type)) and answer is getattr(exercise.judge, "right", None):
            return Verdict(
                name, "not yet", "The answer is the course's own object, taken from its package.", opened=tuple(opened)
            )
        outcome = exercise._judge_safely(answer)
        changed = changed or replaced(before)
        return Verdict(
            name, outcome.state, str(outcome), outcome.mistake, outcome._html(), tuple(changed[:5]), tuple(opened)
        )

    return answer_request


def _watch_files(forbidden: tuple[str, ...], opened: list[str]) -> None:
    """Note from now on which files of the class the process tries to open; nothing can switch this off again."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in (
            "open",
            "sqlite3.connect",
            "os.listdir",
            "os.scandir",
            "os.remove",
            "os.rename",
            "shutil.copyfile",
        ):
            return
        for path in arguments[:2]:
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.abspath(os.fsdecode(path))
                if (name.startswith(forbidden) or os.path.basename(name).startswith("gradebook.db")) and len(
                    opened
                ) < 5:
                    opened.append(os.path.basename(name) or name)

    sys.addaudithook(note)


if __name__ == "__main__":
    main()
