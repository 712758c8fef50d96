"""Chapter 03: why a language model loses its place in bf16."""

from amp_course.positions.alibi import alibi_bias, alibi_slopes
from amp_course.positions.counting import (
    distinct_positions,
    first_collision,
    first_past_range,
    most_sharing,
    position_values,
)
from amp_course.positions.experiment import Repeater, train_repeater
from amp_course.positions.rope import Rope, exact_angles, fixed_offset_scores, turn_error
from amp_course.positions.sharing import runs, share

__all__ = [
    "Repeater",
    "Rope",
    "alibi_bias",
    "alibi_slopes",
    "distinct_positions",
    "exact_angles",
    "first_collision",
    "first_past_range",
    "fixed_offset_scores",
    "most_sharing",
    "position_values",
    "runs",
    "share",
    "train_repeater",
    "turn_error",
]
