"""Judge the answers of a submission in processes that none of its cells has touched.

Before the first cell runs, the kernel forks a **keeper**: it holds the key, and nothing of the
submission ever runs in it. For each answer the keeper forks a **judge**, which gets a copy of the
answer, checks it with the course's code as it was before the first cell, and ends. What the cells
do to their own process, the kernel, changes neither. What an answer changes while it is called, it
changes in its judge: this is checked afterwards, but cannot be prevented.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import multiprocessing
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

from amp_course.checking import Exercise, Outcome, load_lazy_modules
from amp_course.classroom.integrity import fingerprint, replaced
from amp_course.classroom.verdict import Seal, Verdict
from amp_course.course import find

LIMIT = 256 * 2**20  # bytes of an answer
PATIENCE = 40.0  # seconds for the rest of a check, and for a busy machine
_MOST = 5  # pieces of each kind of evidence


class Keeper:
    """The kernel's side: sends answers to the keeper's process, and evidence, which stays there."""

    def __init__(self, exercises: Mapping[str, Exercise], key: bytes) -> None:
        self._here, there = multiprocessing.Pipe()
        self._lock = threading.RLock()  # files are opened in any thread
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                self._here.close()
                _keep(there, exercises, Seal(key))
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
        """Return a sealed verdict on a pickled answer; without an answer, `state` and `problem` say
        why there is none.
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
        return _receive(self._here)[0]

    def note(self, kind: str, what: str) -> None:
        """Add evidence to all later verdicts: "opened" and a file, or "replaced" and a part of the
        course.
        """
        with self._lock:
            _send(self._here, {"kind": kind, "what": what})


def load(chapter: str) -> dict[str, Exercise]:
    """Return a chapter's exercises by id, and load all that a check needs."""
    load_lazy_modules()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {exercise.id: exercise for exercise in find(chapter).exercises()}


def _keep(line: Connection, exercises: Mapping[str, Exercise], seal: Seal) -> None:
    """Answer requests until the kernel ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for a cell
    before = fingerprint(exercises.values())
    evidence: dict[str, list[str]] = {"opened": [], "replaced": []}
    while True:
        request, answer = _receive(line)
        if "kind" in request:
            found = evidence[request["kind"]]
            if len(found) < _MOST and request["what"] not in found:
                found.append(request["what"][:200])
            continue
        verdict = _fork_judge(exercises, answer, request, before)
        verdict = replace(
            verdict,
            opened=tuple(evidence["opened"]),
            replaced=(*verdict.replaced, *evidence["replaced"]),
        )
        _send(line, seal.close(verdict, request["question"]))


def _fork_judge(
    exercises: Mapping[str, Exercise],
    answer: bytes,
    request: Mapping[str, Any],
    before: Mapping[str, Any],
) -> Verdict:
    """Judge one answer in a process of its own, which is killed if it does not end."""
    exercise = exercises[request["exercise"]]
    if request["problem"]:
        # The submission's process can send any state: it must not choose one that earns points.
        state = "not attempted" if request["state"] == "not attempted" else "no verdict"
        return Verdict(exercise.id, state, request["problem"])
    found: dict[str, Any]
    here, there = multiprocessing.Pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            found = _judge(exercise, answer, request["sources"])
            found["replaced"] = replaced(before, exercises.values())[:_MOST]
            _send(there, found)
        except BaseException as error:
            _send(there, {"failed": f" ({type(error).__name__}: {error})"[:300]})
        finally:
            os._exit(0)
    there.close()
    found = {"failed": ""}
    with contextlib.suppress(EOFError, OSError, ValueError):
        if here.poll(2 * exercise.seconds + PATIENCE):
            found, _ = _receive(here)
    here.close()
    for kill in (os.killpg, os.kill):  # it may have no group of its own yet
        with contextlib.suppress(OSError):
            kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    if "failed" in found:
        message = f"the process that checked this answer ended without a verdict{found['failed']}"
        return Verdict(exercise.id, "no verdict", message)
    lists = {name: tuple(found[name]) for name in ("notes", "replaced")}
    return Verdict(exercise.id, **found | lists)


def _judge(exercise: Exercise, pickled: bytes, sources: Mapping[str, list[str]]) -> dict[str, Any]:
    import cloudpickle

    os.environ["AMP_COURSE_WORK"] = os.path.join(os.getcwd(), "judged")  # for unwanted progress
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
    sys.path.insert(0, "")  # for the student's own modules
    answer = cloudpickle.loads(pickled)
    if isinstance(answer, (types.FunctionType, type)) and answer is exercise.judge.right:
        outcome = Outcome("not yet", "the answer is the course's own, taken from its package")
    else:
        outcome = exercise._judge_safely(answer)
    return asdict(outcome)


def _send(line: Connection, message: Mapping[str, Any], more: bytes = b"") -> None:
    line.send_bytes(json.dumps(message).encode())
    line.send_bytes(more)


def _receive(line: Connection) -> tuple[dict[str, Any], bytes]:
    return json.loads(line.recv_bytes(LIMIT)), line.recv_bytes(LIMIT)
