"""Watch the ranges of activations, weights and gradients while a model trains,
and see a run heat up before it dies.
"""

from amp_course.watching.ranges import RangeWatch, watch_ranges
from amp_course.watching.readings import Reading, read_range

__all__ = ["RangeWatch", "Reading", "read_range", "watch_ranges"]
