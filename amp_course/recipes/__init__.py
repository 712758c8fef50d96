"""Chapter 08: the recipes of mixed precision training, side by side over one loop."""

from amp_course.recipes.base import BaseRecipe
from amp_course.recipes.recipe import (
    ALL,
    AMP_BF16,
    HALF_BN32,
    O0,
    O1,
    O2,
    O3,
    PURE_BF16,
    PURE_BF16_SR,
    find,
)
from amp_course.recipes.table import Measured, RecipeTable, measure, measure_all

__all__ = [
    "ALL",
    "AMP_BF16",
    "HALF_BN32",
    "O0",
    "O1",
    "O2",
    "O3",
    "PURE_BF16",
    "PURE_BF16_SR",
    "BaseRecipe",
    "Measured",
    "RecipeTable",
    "find",
    "measure",
    "measure_all",
]
