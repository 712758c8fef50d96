"""Chapter 04: which dtype each operation runs in under autocast, and why."""

from amp_course.autocast.policy import Policy
from amp_course.autocast.probe import probe_policy

__all__ = ["Policy", "probe_policy"]
