"""The auditor: runs a reader's own training step, and says what is wrong with it, by what it does and with numbers."""

from amp_course.audit.audit import audit
from amp_course.diagnosis.findings import Audit, Finding
from amp_course.diagnosis.step_faults import FAULTS

__all__ = ["FAULTS", "Audit", "Finding", "audit"]
