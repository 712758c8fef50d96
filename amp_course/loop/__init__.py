"""Chapter 06: write an AMP loop, time it honestly, and read what it buys on this machine."""

from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32, TF32, Recipe, find_recipe
from amp_course.loop.train import RunRecord, train

__all__ = ["AMP_BF16", "AMP_FP16", "FP32", "TF32", "Recipe", "RunRecord", "find_recipe", "train"]
