"""Chapter 08: the recipes of mixed precision training, side by side over one loop."""

from amp_course.recipes.measuring import Measured, RecipeTable, measure, measure_all
from amp_course.recipes.training import (
    ALL,
    AMP_BF16,
    HALF_BN32,
    O0,
    O1,
    O2,
    O3,
    PURE_BF16,
    PURE_BF16_SR,
    BaseRecipe,
    find,
)

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
