"""Find the op that made the first inf or NaN: forward, backward or in the optimizer."""

from amp_course.debugging.nonfinite.first import first_nonfinite
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.watching.ops import Watch
from amp_course.watching.origins import Frame, Line, NonfiniteOrigin
from amp_course.watching.values import Values

__all__ = ["Frame", "Line", "Nonfinite", "NonfiniteOrigin", "Values", "Watch", "first_nonfinite"]
