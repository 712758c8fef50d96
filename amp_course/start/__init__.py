"""Chapter 00, the start page: a taste of AMP, this machine, how exercises work, the map."""

from amp_course.start.map import CourseMap
from amp_course.start.taste import in_words, taste

__all__ = ["CourseMap", "in_words", "taste"]
