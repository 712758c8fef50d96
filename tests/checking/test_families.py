"""Each family of mistakes serves two exercises or more."""

from amp_course.checking import families
from amp_course.course import available


def test_each_family_serves_two_exercises_or_more():
    exercises = [exercise for chapter in available() for exercise in chapter.exercises()]
    lines = [{(one.name, one.feedback) for one in exercise.mistakes} for exercise in exercises]
    every = {name: one for name, one in vars(families).items() if name.isupper()}
    assert [name for name, one in every.items() if sum(one in of for of in lines) < 2] == []
