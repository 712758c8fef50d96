"""Measure a recipe in a live training step: the bytes it keeps in which dtype,
and whether its update reaches the weights.
"""

from amp_course.recipes.measuring.table import (
    Bytes,
    Measured,
    RecipeTable,
    by_format,
    formats_text,
    measure,
    measure_all,
)
from amp_course.recipes.measuring.update_reach import Reach, reach

__all__ = [
    "Bytes",
    "Measured",
    "Reach",
    "RecipeTable",
    "by_format",
    "formats_text",
    "measure",
    "measure_all",
    "reach",
]
