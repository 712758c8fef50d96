"""Checkpoints in both senses: save a training in a file and resume it;
drop activations and recompute them.
"""

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
