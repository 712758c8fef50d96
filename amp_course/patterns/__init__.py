"""Chapter 07: clipping, accumulation, several optimizers and checkpoints, wrong and right."""

from amp_course.audit import FAULTS, Finding, Report, audit
from amp_course.patterns.checkpoints import (
    CheckpointError,
    Position,
    Run,
    check_checkpointing,
    check_resume,
    load_checkpoint,
    save_checkpoint,
)
from amp_course.patterns.workbench import Switches, build_loop

__all__ = [
    "FAULTS",
    "CheckpointError",
    "Finding",
    "Position",
    "Report",
    "Run",
    "Switches",
    "audit",
    "build_loop",
    "check_checkpointing",
    "check_resume",
    "load_checkpoint",
    "save_checkpoint",
]
