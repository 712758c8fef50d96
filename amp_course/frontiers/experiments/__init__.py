"""Trainings below 16 bits: the same model, data and seeds, with operands or activations rounded in many ways."""

from amp_course.frontiers.experiments.table import TrainingTable
from amp_course.frontiers.experiments.training import Run, train_gpt, train_resnet
from amp_course.frontiers.experiments.variants import VARIANTS, CompressedVariant, Variant, find_variant

__all__ = [
    "VARIANTS",
    "CompressedVariant",
    "Run",
    "TrainingTable",
    "Variant",
    "find_variant",
    "train_gpt",
    "train_resnet",
]
