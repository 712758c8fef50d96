"""The twelve patients of chapter 11; `ALL` lists them in order."""

from amp_course.debugging.exercises.scaled_clip import scaled_clip

ALL = (scaled_clip,)
