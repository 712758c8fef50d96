"""Chapter 04: which dtype each operation runs in under autocast, and why."""

from amp_course.autocast.policy import Policy
from amp_course.autocast.probe import probe_policy
from amp_course.autocast.region import is_fake, region, stage
from amp_course.autocast.trace import Trace, TraceError, trace

__all__ = ["Policy", "Trace", "TraceError", "is_fake", "probe_policy", "region", "stage", "trace"]
