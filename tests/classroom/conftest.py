"""A class of two chapters, made once; tests hand in to copies of it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_course.classroom.assignment import named
from amp_course.classroom.folder import ClassFolder, create
from amp_course.course import Chapter

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a class, which nbgrader takes long to make, is of the slow part."""
    for item in items:
        if item.path.parent == HERE and "made" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _libraries_may_warn() -> Iterator[None]:
    """nbgrader's and its libraries' deprecations are for their developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("classroom") / "class"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(list(create(root, ["loop", "start"]))) == 2
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> ClassFolder:
    shutil.copytree(made, tmp_path / "class")
    return ClassFolder(tmp_path / "class")


@pytest.fixture(scope="session")
def loop() -> Chapter:
    return named("loop")
