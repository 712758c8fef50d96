"""The auditor: runs a training step, and says from what it does what is wrong with it."""

from amp_course.audit.audit import audit
from amp_course.diagnosis.catalogue import BEHAVIOURS, catalogue
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import Report

__all__ = ["FAULTS", "Finding", "Report", "audit"]

FAULTS = {name: fault for name, fault in catalogue().items() if fault.of in BEHAVIOURS}
