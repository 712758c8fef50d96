"""Find out which recipe survives at which batch size:
the training runs, and the map that records how each one ended.
"""

from amp_course.recipes.survival.records import IMAGENET, PublishedRun, SurvivalMap, load_survival
from amp_course.recipes.survival.runs import (
    SETTINGS,
    SIZES,
    FirstStep,
    RawNet,
    RunResult,
    Setting,
    find_setting,
    first_step,
    train_to_the_end,
)

__all__ = [
    "IMAGENET",
    "SETTINGS",
    "SIZES",
    "FirstStep",
    "PublishedRun",
    "RawNet",
    "RunResult",
    "Setting",
    "SurvivalMap",
    "find_setting",
    "first_step",
    "load_survival",
    "train_to_the_end",
]
