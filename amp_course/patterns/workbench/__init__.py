"""The workbench: a training loop assembled from switches, and what its audit finds in it."""

from amp_course.patterns.workbench.loop import Switches, build_loop, source_of
from amp_course.patterns.workbench.page import (
    SIGNS,
    Judgement,
    Line,
    judgements,
    marked_lines,
    workbench_view,
)

__all__ = [
    "SIGNS",
    "Judgement",
    "Line",
    "Switches",
    "build_loop",
    "judgements",
    "marked_lines",
    "source_of",
    "workbench_view",
]
