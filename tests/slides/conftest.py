"""The decks are made once for all their tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.sites import ROOT, build

sys.path.insert(0, str(ROOT / "tools"))  # for tests of what a tool is made of


@pytest.fixture(scope="session")
def decks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make all decks as `make slides` does, and return their folder."""
    return build("slides", tmp_path_factory.mktemp("slides"))
