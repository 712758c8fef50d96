"""A submission to run, and what it may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from amp_course.classroom.assignment import Task


@dataclass(frozen=True)
class Limits:
    """What one submission may use; `cell_seconds` is for each cell, `seconds` for all of them."""

    cell_seconds: float = 60.0
    seconds: float = 300.0
    disk_bytes: int = 256 * 2**20
    memory_bytes: int = 6 * 2**30
    output_bytes: int = 2**20  # of one cell
    processes: int = 200  # at once; two ranks with their loaders have ten


@dataclass(frozen=True)
class Job:
    """What is to be run, and how.

    book:       a prepared submission; its cells receive their outputs
    chapter:    the word of the chapter
    handed_in:  the folder that was submitted, whose other files the notebook may need
    class_root: the class's folder, which a submission must not open
    """

    book: NotebookNode
    chapter: str
    tasks: Sequence[Task]
    handed_in: Path
    class_root: Path
    sandboxed: bool
    limits: Limits
