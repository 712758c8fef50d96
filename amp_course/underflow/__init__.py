"""Chapter 02: how numbers die quietly, and what keeps them alive."""

from amp_course.underflow.master import MasterSGD
from amp_course.underflow.record import GradientRecorder
from amp_course.underflow.stochastic import stochastic_round
from amp_course.underflow.sums import kahan_running_sum, pairwise_sum, running_sum
from amp_course.underflow.zones import ZoneFractions, zone_fractions, zone_histogram

__all__ = [
    "GradientRecorder",
    "MasterSGD",
    "ZoneFractions",
    "kahan_running_sum",
    "pairwise_sum",
    "running_sum",
    "stochastic_round",
    "zone_fractions",
    "zone_histogram",
]
