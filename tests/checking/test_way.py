"""CONTRIBUTING describes the way of a check in names that exist."""

import importlib
import importlib.util
import re
from pathlib import Path

from amp_course import checking
from amp_course.checking.judging import Judge
from amp_course.checking.mistakes import Mistake

KINDS = {"Exercise": checking.Exercise, "Judge": Judge, "Mistake": Mistake}


def test_every_name_exists():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    way = text.partition("The way of a check")[2].split("```")[1]
    names = [name.split(".") for name in re.findall(r"\b[A-Za-z_]+\.[A-Za-z_]+", way)]
    assert len(names) > 8
    for first, second in names:
        holder = KINDS.get(first) or importlib.import_module(f"amp_course.checking.{first}")
        assert second in {*vars(holder), *getattr(holder, "__annotations__", {})}, (
            f"{first}.{second}"
        )
