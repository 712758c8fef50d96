"""Summarize a class's results: who solved what, which mistakes were made, where hints were needed,
and what to teach next.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_course.checking import Exercise
from amp_course.classroom.grading import Answer, Result
from amp_course.course import Chapter

_SHARED = 0.2  # a mistake that this share of the class made concerns all
_SOLVED = 0.8  # an exercise that this share has solved need not be taught again


@dataclass(frozen=True)
class MistakeMet:
    """A known mistake, its feedback, and how many students made it, on the way or at last."""

    name: str
    feedback: str
    students: int


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise in a class.

    solved, not_yet, not_attempted, no_verdict: numbers of students, by what they submitted; they
        add up to the class
    hints, solution: numbers of students who saw a hint, or the solution
    attempts:        the median number of checks, where it is known; else None
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
        """The share of students who did not solve it, times the exercise's importance."""
        return self.exercise.importance * (1 - self.solved / self.students)


@dataclass(frozen=True)
class ClassReport:
    """A class's work on one chapter.

    names:  id → a student's name; the id is shown where there is none
    points: id → points of students who were given points by hand, in nbgrader
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
        weak = [
            exercise
            for exercise in self.exercises
            if exercise.solved / exercise.students < _SOLVED
            or any(met.students / exercise.students >= _SHARED for met in exercise.mistakes)
        ]
        return tuple(sorted(weak, key=lambda exercise: -exercise.urgency)[:3])


def was_graded(result: Result) -> bool:
    """Return True if a submission could be graded at all."""
    return any(answer.state != "no verdict" for answer in result.answers)


def report(
    chapter: Chapter,
    results: Sequence[Result],
    names: Mapping[str, str],
    points: Mapping[str, float] | None = None,
) -> ClassReport:
    """Summarize a class's results on one chapter; there must be at least one."""
    graded = [result for result in results if was_graded(result)]
    exercises = [_count(exercise, graded) for exercise in chapter.exercises() if graded]
    by_student = sorted(results, key=lambda result: result.student)
    return ClassReport(chapter, tuple(by_student), names, points or {}, tuple(exercises))


def _count(exercise: Exercise, results: Sequence[Result]) -> ExerciseReport:
    histories = [result.history.get(exercise.id, {}) for result in results]
    known = [history["attempts"] for history in histories if history.get("attempts")]
    answers: list[Answer] = []
    met: Counter[str] = Counter()
    for result, history in zip(results, histories, strict=True):
        own = [answer for answer in result.answers if answer.exercise == exercise.id]
        met.update({*(a.mistake for a in own if a.mistake), *history.get("mistakes", {})})
        answers += own
    states = Counter(
        "correct" if answer.points else "not yet" if answer.state == "correct" else answer.state
        for answer in answers
    )
    feedback = {mistake.name: _without_facts(mistake.feedback) for mistake in exercise.mistakes}
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
            MistakeMet(name, feedback[name], count)
            for name, count in met.most_common()
            if name in feedback  # a submission may claim anything about itself
        ),
    )


def _without_facts(feedback: str) -> str:
    """Leave out what a check would fill in: "the scale is {scale}" → "the scale is …"."""
    return re.sub(r"\{[^{}]*\}", "…", feedback)
