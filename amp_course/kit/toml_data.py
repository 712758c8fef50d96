"""Read the tables of facts in TOML files, each next to the module that uses it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_toml(module: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file. Example: read_toml(__file__, "cards.toml")["card"]"""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))
