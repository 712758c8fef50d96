"""The decks are made once for all their tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # for tests of what a tool is made of


@pytest.fixture(scope="session")
def decks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make all decks as `make slides` does, and return their folder."""
    out = tmp_path_factory.mktemp("slides") / "site"
    command = [sys.executable, ROOT / "tools" / "slides.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
