"""The recipes: what each keeps in which dtype, and its stepper, scaler and lists of ops."""

from amp_course.recipes.training.base import BaseRecipe
from amp_course.recipes.training.half_step import HalfStep, record_half_step
from amp_course.recipes.training.recipes import (
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
    "HalfStep",
    "find",
    "record_half_step",
]
