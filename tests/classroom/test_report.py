"""The class's page: counted from results, without a name where it is projected,
harmless whatever students are called.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from amp_course.classroom import bubblewrap, command
from amp_course.classroom.assignment import named
from amp_course.classroom.folder import ClassFolder
from amp_course.classroom.grading import Answer, Result
from amp_course.classroom.report import ClassReport, report
from amp_course.classroom.report_page import FLAG, index, page, table
from amp_course.course import Chapter
from amp_course.kit.errors import CourseError
from tests.classroom.students import hand_in
from tests.kit.page import Page

EVIL = "<script>alert(1)</script>"


def result(chapter: Chapter, student: str, wrong: dict[str, str | None], **more: Any) -> Result:
    """A result in which all is right but what is named: exercise → its known mistake, or None."""
    answers = tuple(
        Answer(one.id, 0.0, one.difficulty, "not yet", wrong[one.name], EVIL)
        if one.name in wrong
        else Answer(one.id, float(one.difficulty), one.difficulty, "correct", None, "Correct.")
        for one in chapter.exercises()
    )
    return Result("key", student, chapter.stem, "2026-01-01T00:00:00", 2.0, True, answers, **more)


def mistake(chapter: Chapter, exercise: str, number: int = 0) -> str:
    return next(one for one in chapter.exercises() if one.name == exercise).mistakes[number].name


@pytest.fixture
def found(loop: Chapter) -> ClassReport:
    history = {
        "loop.add_scaler": {
            "attempts": 4,
            "hints": 2,
            "solution": True,
            "mistakes": {mistake(loop, "add_scaler", 1): 3, EVIL: 9},
        }
    }
    results = [
        result(
            loop,
            EVIL,
            {"add_scaler": mistake(loop, "add_scaler"), "log_scale": None},
            history=history,
        ),
        result(
            loop,
            "bo",
            {"add_scaler": mistake(loop, "add_scaler")},
            findings=(f"the cell {EVIL} was changed",),
        ),
        result(loop, "=cmd|'/c calc'!A0", {}, history={"loop.add_scaler": {"attempts": 1}}),
        result(loop, "dora", {}, withheld=("it replaced part of what judges it: Exercise.check",)),
    ]
    return report(loop, results, {"bo": f"Bo {EVIL}"})


def test_what_is_counted(found: ClassReport, loop: Chapter) -> None:
    scaler = next(one for one in found.exercises if one.exercise.name == "add_scaler")
    assert (
        scaler.solved,
        scaler.not_yet,
        scaler.not_attempted,
        scaler.no_verdict,
        scaler.students,
    ) == (2, 2, 0, 0, 4)
    assert (scaler.hints, scaler.solution, scaler.attempts) == (1, 1, 2.5)
    met = {one.name: one.students for one in scaler.mistakes}
    assert met == {
        mistake(loop, "add_scaler"): 2,
        mistake(loop, "add_scaler", 1): 1,
    }  # what a submission made up is left out
    assert found.teach_next[0] is scaler
    assert all("{" not in one.feedback for exercise in found.exercises for one in exercise.mistakes)


@pytest.mark.parametrize("projected", [False, True])
def test_nothing_of_a_student_is_markup(found: ClassReport, projected: bool) -> None:
    text = page(found, projected)
    assert not any("script" in str(one) for one in Page(text).elements) and EVIL not in text
    assert not re.search(r"(?:src|href)=|https?:|@import|url\(", text)


def test_the_projected_page_names_nobody(found: ClassReport) -> None:
    named, projected = page(found, projected=False), page(found, projected=True)
    for student in ("Bo", "dora", "cmd", "alert", "Exercise.check"):
        assert re.search(rf"\b{student}\b", named) and not re.search(
            rf"\b{student}\b", projected
        ), student
    assert (
        "2 of 4" in projected and found.exercises[2].mistakes[1].name not in projected
    )  # only one student met it


@pytest.mark.parametrize("size", [1, 2])
def test_too_few_to_hide_among(loop: Chapter, size: int) -> None:
    few = report(
        loop, [result(loop, f"s{number}", {"add_scaler": None}) for number in range(size)], {}
    )
    assert "too few" in page(few, projected=True) and "Add the scaler" not in page(
        few, projected=True
    )
    assert "Add the scaler" in page(few, projected=False)


def test_the_table(found: ClassReport) -> None:
    rows = list(csv.DictReader(io.StringIO(table(found))))
    assert [row["id"] for row in rows] == [EVIL, "'=cmd|'/c calc'!A0", "bo", "dora"]
    assert (
        rows[0]["points"] == "11"
        and rows[0]["of"] == "16"
        and rows[0]["log_scale"] == "not yet"
        and rows[0]["hints"] == "2"
    )
    assert rows[2]["name"] == f"Bo {EVIL}" and "was changed" in rows[2]["remarks"]
    assert not any(value.startswith(("=", "+", "-", "@")) for row in rows for value in row.values())


def test_by_the_command(
    place: ClassFolder, loop: Chapter, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CourseError, match="nothing has been graded"):
        command.make_report(str(place.root), [])
    for number in range(30):
        hand_in(place, loop, f"{number:02d} {EVIL.replace('/', '')}", b"no notebook")
    command.grade(str(place.root), [], 2, False)
    shown = capsys.readouterr().out
    assert "[30/30]" in shown and shown.count("– – – – – –") == 30
    began = time.monotonic()
    command.make_report(str(place.root), [])
    assert time.monotonic() - began < 10
    folder = place.root / "report"
    assert {file.name for file in folder.iterdir()} == {
        "06_loop.html",
        "06_loop-projected.html",
        "06_loop.csv",
        "index.html",
    }
    assert "<script" not in "".join(file.read_text() for file in Path(folder).glob("*.html"))
    page_of_all = (folder / "index.html").read_text()
    assert 'href="06_loop-projected.html"' in page_of_all and "30</td>" in page_of_all


def test_the_command_says_at_the_end_too_that_there_was_no_sandbox(
    place: ClassFolder,
    loop: Chapter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bubblewrap, "missing", lambda: "no bwrap here")
    hand_in(place, loop, "ada", b"no notebook")
    command.grade(str(place.root), [], 1, False)
    shown = capsys.readouterr().out
    assert shown.startswith("WITHOUT A SANDBOX: no bwrap here.")
    assert "\nWITHOUT A SANDBOX: these submissions ran with your rights" in shown


def test_who_submitted_nothing_and_what_could_not_be_graded(loop: Chapter) -> None:
    unread = result(loop, "chen", {})
    none = tuple(
        dataclasses.replace(answer, points=0.0, state="no verdict") for answer in unread.answers
    )
    results = [result(loop, name, {}) for name in "abcd"] + [
        dataclasses.replace(unread, answers=none)
    ]
    found = report(loop, results, {"zoe": "Zoë", "a": "Ada"}, {"b": 1.5})
    assert found.missing == ["Zoë"] and found.graded == 4 and found.exercises[0].students == 4
    shown = page(found, projected=False)
    assert "Not submitted, of those in students.csv: Zoë." in shown and "Zoë" not in page(
        found, projected=True
    )
    assert "1 submission could not be graded and is in no count below" in shown
    assert "12.4 of 16 points on average" in shown and "1.5 of 16" in shown  # (3 · 16 + 1.5) / 4
    assert "nothing again" in index([found])


def test_a_cheater_is_flagged_wherever_their_name_is(found: ClassReport, loop: Chapter) -> None:
    """Though what they handed in is blank, and no exercise says that points are withheld."""
    blank = tuple(
        dataclasses.replace(one, points=0.0, state="not attempted")
        for one in result(loop, "dora", {}).answers
    )
    cheater = dataclasses.replace(
        result(loop, "dora", {}), answers=blank, withheld=("it replaced x",)
    )
    flagged = report(loop, [result(loop, "ada", {}), cheater], {})
    for text in (page(flagged, projected=False), index([flagged])):
        rows = re.findall(r"<tr>.*?</tr>", text.replace("\n", " "))
        assert [FLAG in row for row in rows if 'scope="row">dora' in row] == [True]
        assert not any(FLAG in row for row in rows if 'scope="row">ada' in row)
    assert FLAG not in page(flagged, projected=True)
    assert [row["review"] for row in csv.DictReader(io.StringIO(table(flagged)))] == ["", "yes"]


def test_students_by_chapters(found: ClassReport, loop: Chapter) -> None:
    start = named("start")
    more = report(
        start, [result(start, "bo", {}), result(start, "eve", {})], {"bo": "Bo", "zoe": "Zoë"}
    )
    text = index([more, dataclasses.replace(found, names={})]).split("Who has how many points")[1]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)
    ]
    assert rows[0] == ["student", "00_start<br>of 1", "06_loop<br>of 16", "all<br>of 17"]
    assert (
        ["Bo", "1", "14", "15"] in rows
        and ["eve", "1", "–", "1"] in rows
        and ["Zoë", "–", "–", "0"] in rows
    )
    assert len(rows) == 1 + 6


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_pages_are_for_everyone(
    found: ClassReport, theme: str, width: int, tmp_path: Path, chromium: Any
) -> None:
    """They fit a narrow screen, ask no other host for anything,
    and axe finds no violation of WCAG 2.2 AA.
    """
    texts = {"named": page(found, False), "projected": page(found, True), "index": index([found])}
    browser_page = chromium.new_page(color_scheme=theme, viewport={"width": width, "height": 900})
    asked: list[str] = []
    browser_page.on("request", lambda request: asked.append(request.url))
    for name, text in texts.items():
        file = tmp_path / f"{name}.html"
        file.write_text(text, "utf-8")
        browser_page.goto(file.as_uri())
        assert browser_page.evaluate("document.documentElement.scrollWidth") <= width, name
        wcag = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
        assert Axe().run(browser_page, options=wcag).response["violations"] == []
    browser_page.close()
    assert [url for url in asked if not url.startswith("file:")] == []
