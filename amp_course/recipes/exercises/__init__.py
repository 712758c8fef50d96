"""The four exercises of chapter 08; `ALL` lists them in order."""

from amp_course.recipes.exercises.choose_recipe import SITUATIONS, choose_recipe
from amp_course.recipes.exercises.keep_bn_fp32 import keep_bn_fp32
from amp_course.recipes.exercises.o2_by_hand import o2_by_hand
from amp_course.recipes.exercises.where_it_dies import where_it_dies

ALL = (o2_by_hand, keep_bn_fp32, where_it_dies, choose_recipe)

__all__ = ["ALL", "SITUATIONS", "choose_recipe", "keep_bn_fp32", "o2_by_hand", "where_it_dies"]
