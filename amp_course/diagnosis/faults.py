"""Old names, until all is moved: see `catalogue`."""

from amp_course.diagnosis.catalogue import catalogue, finding, in_order, without_consequences

__all__ = ["ADVICE", "FAULTS", "UNDER_STRESS", "finding", "in_order", "without_consequences"]

FAULTS = {name: one for name, one in catalogue().items() if one.grade == "fault"}
ADVICE = {name: one for name, one in catalogue().items() if one.grade == "advice"}
# What an update with an inf in its gradients can show.
UNDER_STRESS = ("overflow-not-skipped", "no-update-after-skip", "kept-after-skip", "scheduler-ran-on")
