"""Judge the answers of a submission in processes that none of its cells has touched.

Before the first cell runs, the kernel splits off a **keeper**: it holds the key, and nothing of the
submission ever runs in it. For each answer the keeper splits off a **judge**, which gets a copy of
the answer, checks it with the course's code as it was before the first cell, and ends. What the
cells do to their own process, the kernel, changes neither. What an answer does while it is called,
it does to its judge: that is looked at afterwards, and cannot be excluded.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from amp_course.checking import Exercise
from amp_course.classroom.integrity import Part, fingerprint, replaced
from amp_course.classroom.verdict import Seal, Verdict

LIMIT = 256 * 2**20  # bytes of an answer
PATIENCE = 40.0  # seconds for what a check does besides running the answer, and for a busy machine
_MOST = 5  # of each kind of evidence


class Keeper:
    """The kernel's side: sends answers to the keeper's process,
    and evidence that cannot be taken back.
    """

    def __init__(self, chapter: str, key: bytes) -> None:
        exercises = _load(chapter)
        before = fingerprint()
        self._here, there = socket.socketpair()
        self._lock = threading.RLock()  # files are opened in any thread
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                self._here.close()
                _keep(there, exercises, Seal(key), before)
            os._exit(0)
        there.close()

    def ask(
        self,
        exercise: str,
        answer: bytes,
        state: str,
        problem: str,
        sources: Mapping[str, list[str]],
        question: str,
    ) -> dict[str, str]:
        """Return a sealed verdict on an answer, a pickle of it;
        if there is none, its state and why are given instead.
        """
        request = {
            "exercise": exercise,
            "state": state,
            "problem": problem,
            "sources": dict(sources),
            "question": question,
        }
        with self._lock:
            _send(self._here, request, answer)
        found, _ = _receive(self._here)
        return dict(found)

    def note(self, kind: str, what: str) -> None:
        """Add to what every verdict from now on says:
        "opened" and a file, "replaced" and a part of the course.
        """
        if self._lock.acquire(timeout=1.0):
            try:
                _send(self._here, {"kind": kind, "what": what}, b"")
            finally:
                self._lock.release()


def _load(chapter: str) -> dict[str, Exercise]:
    import warnings

    import torch

    from amp_course.checking.warmup import load_lazy_modules
    from amp_course.course import find

    exercises = {exercise.id: exercise for exercise in find(chapter).exercises()}
    load_lazy_modules()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch replaces an optimizer's `step` when the first one of its kind is made.
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            kind([torch.zeros(1, requires_grad=True)])
    return exercises


def _keep(
    line: socket.socket, exercises: Mapping[str, Exercise], seal: Seal, before: list[Part]
) -> None:
    """Answer requests until the kernel ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for a cell
    _hide()
    evidence: dict[str, list[str]] = {"opened": [], "replaced": []}
    while True:
        request, answer = _receive(line)
        if "kind" in request:
            found = evidence.get(str(request["kind"]), [])
            if len(found) < _MOST and request["what"] not in found:
                found.append(str(request["what"])[:200])
            continue
        exercise = exercises.get(str(request.get("exercise")))
        if exercise is None:
            _send(line, {}, b"")
            continue
        verdict = _split_off(exercise, answer, request, before)
        verdict = replace(
            verdict,
            opened=tuple(evidence["opened"]),
            replaced=(*verdict.replaced, *evidence["replaced"]),
        )
        _send(line, seal.close(verdict, str(request["question"])), b"")


def _split_off(
    exercise: Exercise, answer: bytes, request: Mapping[str, Any], before: list[Part]
) -> Verdict:
    """Judge one answer in a process of its own, which is killed if it does not end."""
    if request.get("problem"):
        # The submission's process can ask for anything: it must not choose what earns points.
        state = "not attempted" if request.get("state") == "not attempted" else "no verdict"
        return Verdict(exercise.id, state, str(request["problem"]))
    here, there = socket.socketpair()
    process = os.fork()
    if process == 0:
        try:
            here.close()
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _send(there, _judge(exercise, answer, request.get("sources", {}), before), b"")
        except BaseException as error:
            with contextlib.suppress(BaseException):
                _send(there, {"failed": f"{type(error).__name__}: {error}"[:300]}, b"")
        os._exit(0)
    there.close()
    found: dict[str, Any] = {}
    try:
        until = time.monotonic() + 2 * exercise.seconds + PATIENCE
        if select.select([here], [], [], until - time.monotonic())[0]:
            found, _ = _receive(here, until)
    except (EOFError, OSError, ValueError):
        pass
    finally:
        here.close()
        for kill in (
            lambda: os.killpg(process, signal.SIGKILL),
            lambda: os.kill(process, signal.SIGKILL),
        ):
            with contextlib.suppress(OSError):
                kill()
        with contextlib.suppress(OSError):
            os.waitpid(process, 0)
    return _verdict(exercise, found)


def _verdict(exercise: Exercise, found: Mapping[str, Any]) -> Verdict:
    if found.get("state") in ("correct", "not yet", "not attempted"):
        told = {name: str(found[name]) for name in ("state", "message") if name in found}
        mistake = found.get("mistake")
        return Verdict(
            exercise.id,
            message=told.get("message", ""),
            state=told["state"],
            mistake=str(mistake)[:200] if mistake is not None else None,
            notes=tuple(str(note) for note in found.get("notes", ())),
            replaced=tuple(str(path) for path in found.get("replaced", ())),
        )
    why = f" ({found['failed']})" if "failed" in found else ""
    return Verdict(
        exercise.id,
        "no verdict",
        f"the process that checked this answer ended without a verdict{why}",
    )


def _judge(
    exercise: Exercise, pickled: bytes, sources: Mapping[str, list[str]], before: list[Part]
) -> dict[str, Any]:
    import cloudpickle

    os.environ["AMP_COURSE_WORK"] = os.path.join(os.getcwd(), "judged")  # nobody's progress
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
    sys.path.insert(0, "")  # for the student's own modules
    answer = cloudpickle.loads(pickled)
    right = getattr(exercise.judge, "right", None)
    if isinstance(answer, (types.FunctionType, type)) and answer is right:
        return {
            "state": "not yet",
            "message": "the answer is the course's own, taken from its package",
        }
    outcome = exercise._judge_safely(answer)
    return {
        "state": outcome.state,
        "message": outcome.message,
        "mistake": outcome.mistake,
        "notes": outcome.notes,
        "replaced": replaced(before)[:_MOST],
    }


def _hide() -> None:
    """Keep other processes of the same user from reading this one's memory,
    where the system can.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _send(line: socket.socket, message: Mapping[str, Any], more: bytes) -> None:
    text = json.dumps(message).encode()
    line.sendall(struct.pack("!QQ", len(text), len(more)) + text + more)


def _receive(line: socket.socket, until: float | None = None) -> tuple[dict[str, Any], bytes]:
    text, more = struct.unpack("!QQ", _exactly(line, 16, until))
    if max(text, more) > LIMIT:
        raise ValueError("too long")
    message = json.loads(_exactly(line, text, until))
    if not isinstance(message, dict):
        raise ValueError("no message")
    return message, _exactly(line, more, until)


def _exactly(line: socket.socket, count: int, until: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if until is not None:
            line.settimeout(max(0.01, until - time.monotonic()))
        part = line.recv(min(1 << 20, count - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
