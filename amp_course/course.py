"""The map of the course: its chapters, in order, and the exercises of each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root

if TYPE_CHECKING:
    from amp_course.checking import Exercise


@dataclass(frozen=True)
class Chapter:
    """One chapter; its word names the notebook, the package folder, the exercises,
    the solutions and the tests.

    minutes: to read the notebook and try its cells and panel; tests/test_course.py estimates it
    """

    number: int
    word: str
    question: str
    minutes: int

    @property
    def stem(self) -> str:
        """The notebook's name without its suffix: (6, "loop") → "06_loop"."""
        return f"{self.number:02d}_{self.word}"

    def exercises(self) -> tuple[Exercise, ...]:
        """Import and return the chapter's exercises; () if it has none yet. Imports torch."""
        name = f"amp_course.{self.word}.exercises"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Only the chapter itself may be missing, but not a library that it needs.
            if error.name not in (name, f"amp_course.{self.word}"):
                raise
            return ()
        return tuple(module.ALL)

    def exercise_minutes(self) -> int:
        """Return how long the exercises take, according to their cards. Imports torch."""
        return sum(exercise.minutes for exercise in self.exercises())


CHAPTERS = (
    Chapter(0, "start", "Is my machine ready, and how does this course work?", 10),
    Chapter(1, "bits", "What can 16 bits hold?", 45),
    Chapter(2, "underflow", "How do numbers die quietly?", 55),
    Chapter(3, "positions", "Why does a language model lose its place in bf16?", 45),
    Chapter(4, "autocast", "Which dtype does each op run in, and who decides?", 60),
    Chapter(5, "scaler", "How does loss scaling save gradients?", 45),
    Chapter(6, "loop", "How do I write an AMP loop, and what does it buy me?", 60),
    Chapter(
        7,
        "patterns",
        "How do clipping, accumulation, several optimizers and checkpoints fit in?",
        75,
    ),
    Chapter(8, "recipes", "O0 to O3, naive, Paddle, Colossal-AI: which recipe survives?", 60),
    Chapter(9, "speed", "Why is AMP not faster on my machine?", 60),
    Chapter(10, "distributed", "What changes with many processes?", 70),
    Chapter(11, "debugging", "My loss is NaN. Now what?", 50),
    Chapter(12, "frontiers", "What lies below 16 bits?", 65),
)


def hours() -> tuple[int, int]:
    """Return how long the course takes, in hours rounded: (reading, exercises). Imports torch."""
    reading = sum(chapter.minutes for chapter in CHAPTERS)
    return round(reading / 60), round(sum(chapter.exercise_minutes() for chapter in CHAPTERS) / 60)


def available() -> tuple[Chapter, ...]:
    """Return the chapters whose notebook exists."""
    notebooks = course_root() / "notebooks"
    return tuple(chapter for chapter in CHAPTERS if (notebooks / f"{chapter.stem}.ipynb").is_file())


def find(name: str) -> Chapter:
    """Return the chapter that is called "loop", "6", "06", "06_loop" or "06_loop.ipynb".

    Raises CourseError, with the names that exist, for any other name.
    """
    wanted = name.strip().lower().removesuffix(".ipynb")
    for chapter in CHAPTERS:
        if wanted in (chapter.word, chapter.stem, str(chapter.number), f"{chapter.number:02d}"):
            return chapter
    known = ", ".join(chapter.stem for chapter in CHAPTERS)
    raise CourseError(
        f"there is no chapter '{name}': name one of {known}, by number, word or both."
    )
