"""Old names, until all is moved: see `catalogue`."""

from amp_course.diagnosis.catalogue import BEHAVIOURS, Fault, catalogue

__all__ = ["BEHAVIOURS", "FAULTS", "Fault"]

FAULTS = {name: one for name, one in catalogue().items() if one.of in BEHAVIOURS}
