"""The auditor: runs a training step, and says what is wrong with it, by what it does."""

from amp_course.audit.audit import audit
from amp_course.diagnosis.catalogue import BEHAVIOURS, catalogue
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import Report

__all__ = ["FAULTS", "Finding", "Report", "audit"]

FAULTS = {name: one for name, one in catalogue().items() if one.of in BEHAVIOURS}
