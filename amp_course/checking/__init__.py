"""The exercise engine: what an exercise is, how an answer is judged, what is remembered of it.

All that an exercise's file needs is here.
"""

from amp_course.checking.blank import is_blank
from amp_course.checking.differences import Results, alike, show_number, show_value
from amp_course.checking.exercise import Exercise
from amp_course.checking.explain import explain, short, signature
from amp_course.checking.judging import Failed, Turn, call_answer
from amp_course.checking.mistakes import Mistake, edited
from amp_course.checking.outcome import Outcome, Wrong
from amp_course.checking.reading import read_bool, read_dict, read_integer, read_number, read_pair, read_tensor

__all__ = [
    "Exercise", "Failed", "Mistake", "Outcome", "Results", "Turn", "Wrong", "alike", "call_answer", "edited", "explain",
    "is_blank", "read_bool", "read_dict", "read_integer", "read_number", "read_pair", "read_tensor", "short", "show_number",
    "show_value", "signature",
]  # fmt: skip
