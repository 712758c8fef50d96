"""Watch the ranges of activations, weights and gradients in training, and see trouble coming."""

from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.readings import Reading, read_range

__all__ = ["RangeWatch", "Reading", "read_range", "watch_ranges"]
