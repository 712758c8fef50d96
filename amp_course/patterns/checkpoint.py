"""The old path of `several`: `audit` imports it from here. Everything about checkpoints is in `checkpoints/`."""

from amp_course.patterns.checkpoints.saving import several

__all__ = ["several"]
