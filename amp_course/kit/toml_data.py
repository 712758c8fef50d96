"""Read the tables of facts that stand in TOML files, each next to the module that uses it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_toml(module: str, name: str) -> dict[str, Any]:
    """Return what a TOML file holds. Example: read_toml(__file__, "cards.toml")["card"]"""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))
