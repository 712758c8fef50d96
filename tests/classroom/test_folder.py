"""The class's folder: made, continued, refused; nothing that is there is overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amp_course.classroom import gradebook
from amp_course.classroom.folder import ClassFolder, create
from amp_course.course import Chapter
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root


def made(root: Path, *names: str) -> list[str]:
    return list(create(root, names))


def test_made_and_made_again(place: ClassFolder, loop: Chapter) -> None:
    assert {chapter.word for chapter in place.chapters()} == {"start", "loop"}
    assert gradebook.has(place.root, "06_loop") and not gradebook.has(place.root, "07_patterns")
    place.source(loop).write_text(
        place.source(loop).read_text().replace("Time a step honestly", "Time it")
    )
    before = place.source(loop).read_bytes(), place.release(loop).read_bytes()
    assert made(place.root, "6") == ["06_loop: kept as it is"]
    assert (place.source(loop).read_bytes(), place.release(loop).read_bytes()) == before


def test_a_newer_assignment_is_offered_not_put_in_its_place(
    place: ClassFolder, loop: Chapter
) -> None:
    old = place.source(loop).read_text()
    digest = old.split('"digest": "')[1][:16]
    place.source(loop).write_text(old.replace(digest, "0" * 16))
    (line,) = made(place.root, "loop")
    assert (
        line.startswith("06_loop: kept as it is; the course's is newer")
        and digest not in place.source(loop).read_text()
    )


@pytest.mark.parametrize("lost", ["release", "gradebook.db", "source", "README.md"])
def test_half_made(place: ClassFolder, loop: Chapter, lost: str) -> None:
    """An interrupted `init` leaves the mark and some of the rest: it goes on from there."""
    target = place.root / lost
    if target.is_dir():
        for file in target.rglob("*.ipynb"):
            file.unlink()
    else:
        target.unlink()
    made(place.root, "loop")
    assert (
        gradebook.has(place.root, "06_loop")
        and place.release(loop).is_file()
        and place.source(loop).is_file()
    )
    assert (place.root / "README.md").is_file()


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CourseError, match="is a file"):
        made(tmp_path / "file")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("x")
    with pytest.raises(CourseError, match="holds other things and no class"):
        made(tmp_path / "thesis", "loop")
    assert os.listdir(tmp_path / "thesis") == ["chapter1.tex"]
    with pytest.raises(CourseError, match="one inside the other"):
        made(course_root() / "my_class", "loop")
    assert not (course_root() / "my_class").exists()
    with pytest.raises(CourseError, match="one inside the other"):
        made(course_root().parent, "loop")
    with pytest.raises(CourseError, match="there is no chapter 'lop'"):
        made(tmp_path / "new", "lop")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        made(tmp_path / "class", "loop")


def test_no_class_there_and_a_chapter_that_is_not_in_it(place: ClassFolder, tmp_path: Path) -> None:
    with pytest.raises(
        CourseError, match="holds no class: make one with `amp-course classroom init"
    ):
        ClassFolder(tmp_path)
    with pytest.raises(
        CourseError, match=r"07_patterns is not in this class: .* 07_patterns` adds it"
    ):
        place.chapters(["06", "07"])


def test_names(place: ClassFolder) -> None:
    assert place.names() == {}
    (place.root / "students.csv").write_text(
        "\ufeffid,name\na1,Ada Lovelace\n,nobody\nb2,\n", encoding="utf-8"
    )
    assert place.names() == {"a1": "Ada Lovelace"}
    (place.root / "students.csv").write_text("a1;Ada\n")
    with pytest.raises(CourseError, match="columns id and name"):
        place.names()


def test_who_handed_in(place: ClassFolder, loop: Chapter) -> None:
    assert place.handed_in(loop) == []
    for name in ("bo", "ada", ".hidden", "<script>alert(1)", "chen & co"):
        (place.root / "submitted" / name / "06_loop").mkdir(parents=True)
    (place.root / "submitted" / "dora" / "07_patterns").mkdir(parents=True)
    (place.root / "submitted" / "notes.txt").write_text("x")
    assert [one.student for one in place.handed_in(loop)] == [
        "<script>alert(1)",
        "ada",
        "bo",
        "chen & co",
    ]
