"""The one exercise of chapter 00; `ALL` lists it."""

from amp_course.start.exercises.which_dtype import which_dtype

ALL = (which_dtype,)
