"""The exercise engine: what an exercise is, how an answer is judged, what is remembered of it.

All that an exercise's file needs is here.
"""

from amp_course.checking.blank import is_blank
from amp_course.checking.differences import Results, alike, show_number, show_value
from amp_course.checking.exercise import Card, Exercise
from amp_course.checking.explain import Explained, explain, is_learners, short, signature, where
from amp_course.checking.judging import Case, Failed, call_answer
from amp_course.checking.limit import TimeUp, within
from amp_course.checking.mistakes import Mistake, edited
from amp_course.checking.outcome import Outcome, Wrong
from amp_course.checking.reading import (
    read_bool,
    read_dict,
    read_integer,
    read_number,
    read_pair,
    read_tensor,
)
from amp_course.checking.warmup import load_lazy_modules

__all__ = [
    "Card",
    "Case",
    "Exercise",
    "Explained",
    "Failed",
    "Mistake",
    "Outcome",
    "Results",
    "TimeUp",
    "Wrong",
    "alike",
    "call_answer",
    "edited",
    "explain",
    "is_blank",
    "is_learners",
    "load_lazy_modules",
    "read_bool",
    "read_dict",
    "read_integer",
    "read_number",
    "read_pair",
    "read_tensor",
    "short",
    "show_number",
    "show_value",
    "signature",
    "where",
    "within",
]
