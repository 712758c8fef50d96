"""The map of the course, and where its folders are."""

import itertools
import json
import re
from pathlib import Path

import pytest

from amp_course import course
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root, work_dir

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty clone that the course takes for its own."""
    for name in ("notebooks", "exercises"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    return tmp_path


def test_the_chapters_stand_in_order_under_names_of_their_own() -> None:
    assert [chapter.number for chapter in course.CHAPTERS] == list(range(13))
    assert len({chapter.word for chapter in course.CHAPTERS}) == 13
    assert course.CHAPTERS[6].stem == "06_loop"
    assert all(
        chapter.question.endswith("?") and chapter.minutes > 0 for chapter in course.CHAPTERS
    )


def seconds_to_read(path: Path) -> float:
    """Measure a notebook: dense prose at 150 words a minute, 10 s for a line of code, 2 s for a
    line of output, a minute for a figure and five for a panel. Running it goes on meanwhile.
    """
    seconds = 0.0
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            seconds += len(source.split()) / 150 * 60
            continue
        seconds += 10 * len([line for line in source.splitlines() if line.strip()])
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", [])))
            panel = any("widget" in kind for kind in data)
            seconds += 300 if panel else 60 if "image/png" in data else 2 * len(text.splitlines())
    return seconds


@pytest.mark.parametrize("chapter", course.CHAPTERS, ids=lambda chapter: chapter.word)
def test_the_minutes_of_a_chapter_are_what_reading_it_takes(chapter: course.Chapter) -> None:
    path = ROOT / "notebooks" / f"{chapter.stem}.ipynb"
    assert chapter.minutes % 5 == 0
    assert seconds_to_read(path) / 60 == pytest.approx(chapter.minutes, rel=0.25)
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"]]
    assert re.findall(r"takes about (\d+) minutes", cells[0]) == [str(chapter.minutes)]


def last_words(folder: str, chapter: course.Chapter) -> str:
    cells = json.loads((ROOT / folder / f"{chapter.stem}.ipynb").read_text("utf-8"))["cells"]
    return " ".join("".join(cells[-1]["source"]).split())


def test_what_a_chapter_says_of_its_exercises_is_the_sum_of_their_cards() -> None:
    for chapter in course.CHAPTERS[1:]:
        pattern = r"your own copy[^)]*about (an|\d+) (hour|minutes)\)"
        ((count, unit),) = re.findall(pattern, last_words("notebooks", chapter))
        minutes = 60 if unit == "hour" else int(count)
        assert minutes == pytest.approx(chapter.exercise_minutes(), rel=0.15), chapter


def test_a_chapter_leads_to_its_exercises_and_both_to_the_next_chapter() -> None:
    for chapter, following in itertools.pairwise(course.CHAPTERS[1:]):
        end = last_words("notebooks", chapter)
        assert f"(../my_work/{chapter.stem}.ipynb)" in end and f"({following.stem}.ipynb)" in end
        assert f"(../notebooks/{following.stem}.ipynb)" in last_words("exercises", chapter)


def test_the_whole_is_the_sum() -> None:
    reading, exercises = course.hours()
    assert abs(reading - sum(chapter.minutes for chapter in course.CHAPTERS) / 60) <= 0.5
    cards = [exercise.minutes for chapter in course.CHAPTERS for exercise in chapter.exercises()]
    assert len(cards) >= 79 and abs(exercises - sum(cards) / 60) <= 0.5
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{reading} hours of reading and {exercises} hours of exercises" in " ".join(
        readme.split()
    )


def test_available_are_those_with_a_notebook(clone: Path) -> None:
    assert course.available() == ()
    (clone / "notebooks" / "06_loop.ipynb").touch()
    (clone / "notebooks" / "05_loop.ipynb").touch()
    assert [chapter.word for chapter in course.available()] == ["loop"]


@pytest.mark.parametrize("name", ["loop", "6", "06", "06_loop", "06_loop.ipynb", " Loop "])
def test_a_chapter_is_found_by_each_of_its_names(name: str) -> None:
    assert course.find(name).word == "loop"


@pytest.mark.parametrize("name", ["lopo", "13", "", "6_loop", "006"])
def test_an_unknown_chapter_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(
        CourseError, match=f"no chapter '{name}'.*00_start, 01_bits, .*12_frontiers"
    ):
        course.find(name)


def test_a_library_that_a_chapter_lacks_is_not_taken_for_no_exercises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(course.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="sklearn"):
        course.CHAPTERS[6].exercises()


def test_a_wrong_name_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path / "gone"))
    with pytest.raises(
        CourseError, match=r"AMP_COURSE_ROOT is .*gone, which has no folder notebooks/: set it to"
    ):
        course_root()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that does not lie in a clone, and a current folder."""
    monkeypatch.delenv("AMP_COURSE_ROOT", raising=False)
    monkeypatch.setattr(
        "amp_course.kit.paths.__file__", str(tmp_path / "site" / "amp_course" / "kit" / "paths.py")
    )
    inner = tmp_path / "clone" / "my_work" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path


def test_the_root_is_the_folder_the_package_lies_in(elsewhere: Path) -> None:
    (elsewhere / "site" / "notebooks").mkdir(parents=True)
    assert course_root() == elsewhere / "site"


def test_the_root_is_looked_for_upward(elsewhere: Path) -> None:
    (elsewhere / "clone" / "notebooks").mkdir()
    with pytest.raises(CourseError):  # somebody's notebooks, but not the course's
        course_root()
    (elsewhere / "clone" / "exercises").mkdir()
    assert course_root() == elsewhere / "clone"


def test_the_learners_folder(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(work_dir()) != str(clone / "my_work")  # the tests' own, set in conftest.py
    assert ROOT not in work_dir().parents
    monkeypatch.delenv("AMP_COURSE_WORK")
    assert work_dir() == clone / "my_work"
    assert not work_dir().exists()
