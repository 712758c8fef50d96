"""The book is built once for all its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sites import build


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the book as `make book` does, and return its folder."""
    return build("book", tmp_path_factory.mktemp("book"))
