"""A class of three, in real kernels: points as they are due, kept in nbgrader's gradebook;
interrupted, unchanged, changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_course.classroom import bubblewrap, gradebook, grading, runner
from amp_course.classroom.folder import ClassFolder
from amp_course.classroom.grading import Result, grade, load
from amp_course.classroom.job import Job, Limits
from amp_course.course import Chapter
from amp_course.kit.errors import CourseError
from amp_course.kit.files import locked
from tests.classroom.students import hand_in, mistaken, notebook, points, right_answers

POINTS = {
    "honest_timing": 2,
    "add_autocast": 1,
    "add_scaler": 2,
    "log_scale": 3,
    "count_bytes": 2,
    "evaluate_right": 3,
    "prepare_loaded": 3,
}


def states(result: Result) -> dict[str, str]:
    return {answer.exercise.split(".")[1]: answer.state for answer in result.answers}


def test_a_class_of_three(place: ClassFolder, loop: Chapter) -> None:
    right = right_answers(place, loop)
    by_hand = right["add_scaler"].replace("scaler.scale(loss).backward()", "loss.backward()")
    assert by_hand != right["add_scaler"]
    hand_in(place, loop, "ada", notebook(place, loop, right))
    partly = {
        "add_scaler": by_hand,
        "log_scale": mistaken("log_scale", 0),
        "count_bytes": "",
        "evaluate_right": "def f(:",
    }
    hand_in(place, loop, "<script>alert(1)", notebook(place, loop, right | partly))
    hand_in(place, loop, "chen", b"no notebook")
    lines: list[str] = []
    results = {result.student: result for result in grade(place, [loop], echo=lines.append)}

    assert {student: result.points for student, result in results.items()} == {
        "ada": 16,
        "<script>alert(1)": 6,
        "chen": 0,
    }
    assert sum(POINTS.values()) == 16 == sum(answer.of for answer in results["ada"].answers)
    assert states(results["<script>alert(1)"]) == {
        "honest_timing": "correct",
        "add_autocast": "correct",
        "add_scaler": "not yet",
        "log_scale": "not yet",
        "count_bytes": "not attempted",
        "evaluate_right": "not yet",
        "prepare_loaded": "correct",
    }
    messages = {answer.exercise: answer.message for answer in results["<script>alert(1)"].answers}
    assert (
        messages["loop.evaluate_right"]
        == "the answer's cell raised SyntaxError, so there was nothing to check"
    )
    known = {answer.exercise: answer.mistake for answer in results["<script>alert(1)"].answers}
    assert known["loop.log_scale"] == loop.exercises()[3].mistakes[0].name
    assert "06_loop.ipynb does not hold JSON" in results["chen"].findings[0]
    assert results["ada"].findings == results["ada"].withheld == ()

    kept = points(place.root, "06_loop")
    assert kept["ada"] == {f"points-{name}": points for name, points in POINTS.items()}
    assert sum(kept["<script>alert(1)"].values()) == 6 and sum(kept["chen"].values()) == 0
    assert [one.student for one in load(place, loop)] == ["<script>alert(1)", "ada", "chen"]
    assert ("under bubblewrap" in lines[0]) == (bubblewrap.missing() is None)
    assert ("WITHOUT A SANDBOX" in lines[0]) == (bubblewrap.missing() is not None)

    again: list[str] = []
    assert sorted(grade(place, [loop], echo=again.append), key=lambda one: one.student) == load(
        place, loop
    )
    assert sum("(unchanged)" in line for line in again) == 3
    hand_in(place, loop, "chen", notebook(place, loop, right | {"add_autocast": ""}))
    changed = {result.student: result for result in grade(place, [loop], echo=again.append)}
    assert changed["chen"].points == 15 and changed["ada"] == results["ada"]

    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    feedback = [sys.executable, "-m", "nbgrader", "generate_feedback", "06_loop"]
    done = subprocess.run(
        feedback, cwd=place.root, env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    page = (place.root / "feedback" / "<script>alert(1)" / "06_loop" / "06_loop.html").read_text()
    assert "Not quite:" in page and "<script>alert(1)" not in page


@pytest.mark.slow
def test_interrupted_and_continued(place: ClassFolder, loop: Chapter) -> None:
    for student in ("ada", "bo", "chen"):
        hand_in(
            place,
            loop,
            student,
            notebook(place, loop, right_answers(place, loop), last="import time; time.sleep(0.5)"),
        )
    program = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "amp_course",
        "classroom",
        "grade",
        str(place.root),
        "--jobs",
        "1",
    ]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("[1/3]"):
                run.send_signal(signal.SIGINT)
                break
        rest = run.stdout.read()
        assert run.wait(60) == 130
    assert "[3/3]" not in rest and "type the command again to go on" in rest
    first = load(place, loop)
    assert 1 <= len(first) < 3
    lines: list[str] = []
    results = grade(place, [loop], echo=lines.append)
    assert [result.points for result in results] == [16, 16, 16]
    assert sum("(unchanged)" in line for line in lines) == len(first)


def test_a_damaged_result_is_made_again(place: ClassFolder, loop: Chapter) -> None:
    hand_in(place, loop, "ada", b"no notebook")
    grade(place, [loop], echo=lambda line: None)
    file = place.result(loop, "ada")
    for damage in (
        "",
        "{}",
        '{"format": 1}',
        json.dumps(json.loads(file.read_text()) | {"format": 0}),
    ):
        file.write_text(damage)
        assert load(place, loop) == []
        assert grade(place, [loop], echo=lambda line: None)[0].points == 0
        assert len(load(place, loop)) == 1


def test_two_runs_at_once(place: ClassFolder, loop: Chapter) -> None:
    hand_in(place, loop, "ada", b"no notebook")
    # Another process would wait for the lock; so does another thread.
    with locked(place.gradebook), ThreadPoolExecutor(1) as pool:
        run = pool.submit(grade, place, [loop], echo=lambda line: None)
        with pytest.raises(CourseError, match="another grading run is at work"):
            run.result()


def test_points_given_by_hand_stay(place: ClassFolder, loop: Chapter) -> None:
    hand_in(place, loop, "ada", b"no notebook")
    grade(place, [loop], echo=lambda line: None)
    with gradebook._open(place.root) as (book, _):
        book.find_submission_notebook("06_loop", "06_loop", "ada").grades[0].manual_score = 1.5
        book.db.commit()
    grade(place, [loop], again=True, echo=lambda line: None)
    assert sum(points(place.root, "06_loop")["ada"].values()) == 1.5


def test_a_name_with_an_escape_sequence_is_printed_as_text(
    place: ClassFolder, loop: Chapter
) -> None:
    hand_in(place, loop, "\x1b[31mred", b"no notebook")
    lines: list[str] = []
    grade(place, [loop], echo=lines.append)
    assert "\x1b" not in "".join(lines) and "�[31mred" in lines[-1]


@pytest.mark.slow
def test_the_time_of_one_submission_is_limited(place: ClassFolder, loop: Chapter) -> None:
    slow = "import time\ntime.sleep(2.5)"
    hand_in(
        place,
        loop,
        "ada",
        notebook(
            place,
            loop,
            right_answers(place, loop) | {"add_scaler": slow, "log_scale": "time.sleep(30)"},
        ),
    )
    began = time.monotonic()
    (result,) = grade(place, [loop], echo=lambda line: None, limits=Limits(seconds=10))
    assert time.monotonic() - began < 25
    assert "it was stopped after 10 seconds in all" in result.findings[-1]
    assert states(result)["evaluate_right"] == "no verdict" and states(result)["honest_timing"] in (
        "correct",
        "no verdict",
    )


def test_misplaced_notebooks_are_named(place: ClassFolder, loop: Chapter) -> None:
    hand_in(place, loop, "ada", b"not a notebook")
    (place.root / "submitted" / "bo.ipynb").write_text("{}")
    (place.root / "submitted" / "ada" / "06_loop.ipynb").write_text("{}")
    lines: list[str] = []
    assert len(grade(place, [loop], echo=lines.append)) == 1
    ignored = [line for line in lines if "not in submitted/STUDENT/CHAPTER/" in line]
    assert [line.split(": ")[1] for line in ignored] == ["ada/06_loop.ipynb", "bo.ipynb"]


def test_one_that_cannot_be_graded_does_not_stop_the_others(
    place: ClassFolder, loop: Chapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for student in ("ada", "bo"):
        hand_in(place, loop, student, notebook(place, loop, {}))

    async def fails(job: Job) -> runner.Run:
        if "ada" in str(job.handed_in):
            raise RuntimeError("the machine is on fire")
        return runner.Run(job.book)

    monkeypatch.setattr(grading, "run", fails)
    lines: list[str] = []
    results = grade(place, [loop], echo=lines.append)
    assert "the machine is on fire" in results[0].findings[0] and results[1].findings == ()
    assert [one.student for one in load(place, loop)] == [
        "bo"
    ]  # the next run tries the other again
