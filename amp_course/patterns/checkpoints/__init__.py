"""Checkpoints in both senses: trainings saved and resumed, activations dropped and recomputed."""

from amp_course.patterns.checkpoints.file import CheckpointError
from amp_course.patterns.checkpoints.recompute import check_checkpointing
from amp_course.patterns.checkpoints.resume import Run, check_resume
from amp_course.patterns.checkpoints.saving import Position, load_checkpoint, save_checkpoint

__all__ = [
    "CheckpointError",
    "Position",
    "Run",
    "check_checkpointing",
    "check_resume",
    "load_checkpoint",
    "save_checkpoint",
]
