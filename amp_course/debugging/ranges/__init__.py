"""Watch the ranges of activations, weights and gradients while a model trains, and see a run heat up before it dies."""

from amp_course.debugging.ranges.readings import Reading, read_range
from amp_course.debugging.ranges.watching import RangeWatch, watch_ranges

__all__ = ["RangeWatch", "Reading", "read_range", "watch_ranges"]
