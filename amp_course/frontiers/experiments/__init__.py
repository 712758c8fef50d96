"""Trainings below 16 bits: the same model, data and seeds, with operands or activations rounded in
many ways.
"""

from amp_course.frontiers.experiments.gradient_errors import real_tensors
from amp_course.frontiers.experiments.table import TrainingTable, load_trainings
from amp_course.frontiers.experiments.training import Run, train_gpt, train_resnet
from amp_course.frontiers.experiments.variants import (
    GRADIENTS_ONLY,
    OPTIMIZERS,
    VARIANTS,
    CompressedVariant,
    find_variant,
)

__all__ = [
    "GRADIENTS_ONLY",
    "OPTIMIZERS",
    "VARIANTS",
    "CompressedVariant",
    "Run",
    "TrainingTable",
    "find_variant",
    "load_trainings",
    "real_tensors",
    "train_gpt",
    "train_resnet",
]
