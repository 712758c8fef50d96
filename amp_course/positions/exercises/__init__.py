"""The five exercises of chapter 03; `ALL` lists them in order."""

from amp_course.positions.exercises.catch_fault import catch_fault
from amp_course.positions.exercises.count_ids import count_ids
from amp_course.positions.exercises.exact_alibi import exact_alibi
from amp_course.positions.exercises.find_collision import find_collision
from amp_course.positions.exercises.repair_rope import repair_rope

ALL = (find_collision, count_ids, repair_rope, exact_alibi, catch_fault)
