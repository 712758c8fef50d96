"""What a class's results say: who solved what, which mistakes were met, where hints were needed,
and what to teach next.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_course.checking import Exercise
from amp_course.classroom.grading import Result
from amp_course.course import Chapter

_SHARED = 0.2  # a mistake that so many of the class met is worth a word to all
_SOLVED = 0.8  # what so many have solved need not be taught again


@dataclass(frozen=True)
class MistakeMet:
    """A known mistake: how many students met it, on the way or in what they submitted,
    and what each of them was told.
    """

    name: str
    told: str
    against: str
    students: int


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise in a class.

    solved, not_yet, not_attempted, no_verdict: numbers of students, by what they submitted; they
        add up to the class
    hints, solution:                            numbers of students who had a hint, or the solution,
        shown
    attempts:                                   the median number of checks of those of whom it is
        known, or None
    """

    exercise: Exercise
    solved: int
    not_yet: int
    not_attempted: int
    no_verdict: int
    hints: int
    solution: int
    attempts: float | None
    mistakes: tuple[MistakeMet, ...]

    @property
    def students(self) -> int:
        return self.solved + self.not_yet + self.not_attempted + self.no_verdict

    @property
    def urgency(self) -> float:
        """Return how urgent it is to teach it again: the share that did not solve it,
        times the exercise's importance.
        """
        return self.exercise.importance * (1 - self.solved / self.students)


@dataclass(frozen=True)
class ClassReport:
    """A class's work on one chapter.

    names:  id → a student's name; the id is shown where there is none
    points: id → points of those to whom a person gave other points than the check, in nbgrader
    """

    chapter: Chapter
    results: tuple[Result, ...]
    names: Mapping[str, str]
    points: Mapping[str, float]
    exercises: tuple[ExerciseReport, ...]

    @property
    def graded(self) -> int:
        """Return how many submissions could be graded; the others are in no count."""
        return sum(was_graded(result) for result in self.results)

    @property
    def missing(self) -> list[str]:
        """Return the names of those who submitted nothing, as far as names are known."""
        there = {result.student for result in self.results}
        return sorted(name for student, name in self.names.items() if student not in there)

    def points_of(self, result: Result) -> float:
        """Return a submission's points, those given by hand if there are any."""
        return self.points.get(result.student, result.points)

    @property
    def teach_next(self) -> tuple[ExerciseReport, ...]:
        """Return the exercises to go through again, the most urgent first;
        none if the class is ready to go on.
        """
        wanting = [
            one
            for one in self.exercises
            if one.solved / one.students < _SOLVED
            or any(met.students / one.students >= _SHARED for met in one.mistakes)
        ]
        return tuple(sorted(wanting, key=lambda one: -one.urgency)[:3])


def was_graded(result: Result) -> bool:
    """Return True if a submission could be graded at all."""
    return any(answer.state != "no verdict" for answer in result.answers)


def report(
    chapter: Chapter,
    results: Sequence[Result],
    names: Mapping[str, str],
    points: Mapping[str, float] | None = None,
) -> ClassReport:
    """Count what a class's results on one chapter say; there must be at least one."""
    graded = [result for result in results if was_graded(result)]
    exercises = (
        tuple(_count(exercise, graded) for exercise in chapter.exercises()) if graded else ()
    )
    return ClassReport(
        chapter, tuple(sorted(results, key=lambda one: one.student)), names, points or {}, exercises
    )


def _count(exercise: Exercise, results: Sequence[Result]) -> ExerciseReport:
    answers = [
        answer for result in results for answer in result.answers if answer.exercise == exercise.id
    ]
    states = Counter(
        "correct" if answer.points else "not yet" if answer.state == "correct" else answer.state
        for answer in answers
    )
    histories = [result.history.get(exercise.id, {}) for result in results]
    known = [history["attempts"] for history in histories if history.get("attempts")]
    met: Counter[str] = Counter()
    for result, history in zip(results, histories, strict=True):
        last = [
            answer.mistake
            for answer in result.answers
            if answer.exercise == exercise.id and answer.mistake
        ]
        met.update({*last, *history.get("mistakes", {})})
    table = {mistake.name: mistake for mistake in exercise.mistakes}
    return ExerciseReport(
        exercise=exercise,
        solved=states["correct"],
        not_yet=states["not yet"],
        not_attempted=states["not attempted"] + len(results) - len(answers),
        no_verdict=states["no verdict"],
        hints=sum(history.get("hints", 0) > 0 for history in histories),
        solution=sum(history.get("solution", False) for history in histories),
        attempts=statistics.median(known) if known else None,
        mistakes=tuple(
            MistakeMet(name, _without_facts(table[name].feedback), table[name].violates, count)
            for name, count in met.most_common()
            if name in table  # a submission may claim anything about itself
        ),
    )


def _without_facts(told: str) -> str:
    """Return the words of a mistake with what a check would fill in left open:
    "the scale is {scale}" → "the scale is …".
    """
    return re.sub(r"\{[^{}]*\}", "…", told)
