"""Find the op that made the first inf or NaN: forward, backward or in the optimizer."""

from amp_course.debugging.nonfinite.first import first_nonfinite
from amp_course.debugging.nonfinite.records import Birth, Frame, Line
from amp_course.debugging.nonfinite.report import Nonfinite
from amp_course.debugging.nonfinite.values import Values
from amp_course.debugging.nonfinite.watch import Watch

__all__ = ["Birth", "Frame", "Line", "Nonfinite", "Values", "Watch", "first_nonfinite"]
