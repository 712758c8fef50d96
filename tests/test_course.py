"""The map of the course, and where its folders are."""

import sys
import types
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
    assert all(chapter.question.endswith("?") and chapter.minutes > 0 for chapter in course.CHAPTERS)


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
    with pytest.raises(CourseError, match=f"no chapter '{name}'.*00_start, 01_bits, .*12_frontiers"):
        course.find(name)


def test_a_chapter_without_exercises_has_none() -> None:
    assert course.Chapter(99, "nowhere", "?", 1).exercises() == ()


def test_the_exercises_are_those_the_chapter_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = types.ModuleType("amp_course.fake"), types.ModuleType("amp_course.fake.exercises")
    module.ALL = ["one", "two"]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert course.Chapter(99, "fake", "?", 1).exercises() == ("one", "two")


def test_a_library_that_a_chapter_lacks_is_not_taken_for_no_exercises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(course.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="sklearn"):
        course.CHAPTERS[6].exercises()


def test_the_root_is_the_named_folder(clone: Path) -> None:
    assert course_root() == clone.resolve()


def test_a_wrong_name_is_refused_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path / "gone"))
    with pytest.raises(CourseError, match=r"AMP_COURSE_ROOT is .*gone, which has no folder notebooks/: set it to"):
        course_root()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that does not lie in a clone, and a current folder."""
    monkeypatch.delenv("AMP_COURSE_ROOT", raising=False)
    monkeypatch.setattr("amp_course.kit.paths.__file__", str(tmp_path / "site" / "amp_course" / "kit" / "paths.py"))
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


def test_no_root_at_all_says_what_to_do(elsewhere: Path) -> None:
    with pytest.raises(CourseError, match="run this in the folder where you cloned the course, or set AMP_COURSE_ROOT"):
        course_root()


def test_the_readers_folder(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(work_dir()) != str(clone / "my_work")  # the tests' own, set in conftest.py
    assert ROOT not in work_dir().parents
    monkeypatch.delenv("AMP_COURSE_WORK")
    assert work_dir() == clone / "my_work"
    assert not work_dir().exists()
