"""Training scripts as variants of one loop, read from loops.toml."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path
from typing import Any

DATA: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
_OUTSIDE = ("model", "optimizer", "scaler", "before", "loop", "after")  # of the loop's body
_HEAD = """import os, sys, time
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
rule = torch.randn(12, 4)
"""


def script(kind: str, name: str) -> str:
    """Return the text of a script: its loop, with other lines in some places."""
    changes = DATA[kind][name]
    base = DATA["base"]["amp"] | (DATA["base"]["fp32"] if changes.get("base") == "fp32" else {})
    lines = [
        changes.get(part, text)
        if part in _OUTSIDE
        else textwrap.indent(changes.get(part, text), "    ")
        for part, text in base.items()
    ]
    return _HEAD + "\n".join(line for line in lines if line) + "\n"
