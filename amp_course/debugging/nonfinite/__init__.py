"""Find the op that made the first inf or NaN: forward, backward or in the optimizer."""

from amp_course.debugging.nonfinite.first import first_nonfinite
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.watching.ops import Watch

__all__ = ["Nonfinite", "Watch", "first_nonfinite"]
