"""A class of thirty, by `make test-classroom`: all under different planted mistakes,
each with the points that are due.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from amp_course.classroom import bubblewrap, command, grading
from amp_course.classroom.folder import ClassFolder
from amp_course.course import Chapter
from tests.classroom.students import hand_in, mistaken, notebook, points, right_answers

pytestmark = [pytest.mark.classroom, pytest.mark.timeout(900)]


def test_thirty_students_each_with_a_mistake_of_their_own(
    place: ClassFolder, loop: Chapter, capsys: pytest.CaptureFixture[str]
) -> None:
    right = right_answers(place, loop)
    every = [
        (exercise, number)
        for exercise in loop.exercises()
        for number in range(len(exercise.mistakes))
    ]
    chosen = [every[student * len(every) // 30] for student in range(30)]
    assert len({(exercise.id, number) for exercise, number in chosen}) == 30 <= len(every)
    for student, (exercise, number) in enumerate(chosen):
        hand_in(
            place,
            loop,
            f"s{student:02d}",
            notebook(place, loop, right | {exercise.name: mistaken(exercise.name, number)}),
        )

    began = time.monotonic()
    command.grade(str(place.root), ["loop"], None, False)
    seconds = time.monotonic() - began
    began = time.monotonic()
    command.make_report(str(place.root), [])
    reported = time.monotonic() - began
    print(
        f"\nthirty submissions graded in {seconds:.0f} s on {os.cpu_count()} cores, the report "
        f"written in {reported:.1f} s"
    )
    print(f"sandbox: {bubblewrap.missing() or 'bubblewrap'}")
    with capsys.disabled():
        print(capsys.readouterr().out)
    assert seconds < 600 and reported < 10

    kept = points(place.root, "06_loop")
    results = grading.load(place, loop)
    assert len(results) == 30
    for result, (exercise, number) in zip(results, chosen, strict=True):
        wrong = [answer for answer in result.answers if not answer.points]
        assert [(answer.exercise, answer.mistake) for answer in wrong] == [
            (exercise.id, exercise.mistakes[number].name)
        ], result.student
        assert result.points == 16 - exercise.difficulty == sum(kept[result.student].values())
        assert result.findings == result.withheld == ()
    page = (place.root / "report" / "06_loop.html").read_text()
    assert (
        "30 submissions" in page
        and Path(place.root / "report" / "06_loop.csv").read_text().count("\n") == 31
    )


def test_every_chapter_can_be_earned_in_full(tmp_path: Path) -> None:
    """The course's own answers, in the kernel that grades:
    all points of every chapter, also where processes are started.
    """
    from amp_course.classroom.folder import create

    list(create(tmp_path / "class", []))
    place = ClassFolder(tmp_path / "class")
    for chapter in place.chapters():
        hand_in(place, chapter, "ada", notebook(place, chapter, right_answers(place, chapter)))
    results = grading.grade(place, place.chapters(), echo=lambda line: None)
    assert len(results) == len(place.chapters()) >= 12
    for result in results:
        assert result.points == sum(answer.of for answer in result.answers), (
            result.assignment,
            result.findings,
            result.withheld,
        )
        assert result.findings == ()
