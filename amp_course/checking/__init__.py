"""The exercise engine: what an exercise is, how an answer is judged, what is remembered of it."""

from amp_course.checking.exercise import Exercise, Wrong
from amp_course.checking.outcome import Outcome

__all__ = ["Exercise", "Outcome", "Wrong"]
