"""Make the book and the slides as their commands do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(tool: str, folder: Path) -> Path:
    """Run `tools/TOOL.py --out FOLDER/site`; return that folder."""
    out = folder / "site"
    command = [sys.executable, ROOT / "tools" / f"{tool}.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
