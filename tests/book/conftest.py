"""The book is built once for all its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the book as `make book` does, and return its folder."""
    out = tmp_path_factory.mktemp("book") / "site"
    command = [sys.executable, ROOT / "tools" / "book.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
