"""Speed-ups that others published, for the report card to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amp_course.kit.toml_data import read_toml


@dataclass(frozen=True)
class Published:
    """One published pair: the baseline's seconds (or rate) and the faster one's, as speed-up."""

    what: str
    hardware: str
    baseline: str
    faster: str
    speedup: float
    source: str


def _row(row: dict[str, Any]) -> Published:
    slow, fast = row.pop("seconds", None) or row.pop("rates")[::-1]
    return Published(speedup=slow / fast, **row)


PUBLISHED = tuple(map(_row, read_toml(__file__, "published.toml")["published"]))
