"""The scripts in tools/ that hold the phrasebook against the libraries."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def load(monkeypatch):
    """Import a script of tools/, which imports its neighbours by name."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    yield importlib.import_module
    for name in [one for one in sys.modules if one.startswith("phrasebook")]:
        del sys.modules[name]
    sys.modules.pop("install", None)
