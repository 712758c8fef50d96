"""Small training steps with one fault each that makes an inf or a NaN, and sound ones:
to try tools on that look for them.
"""

from benchmarks.planted_nonfinite.backward import BACKWARD
from benchmarks.planted_nonfinite.forward import FORWARD
from benchmarks.planted_nonfinite.sound import SOUND
from benchmarks.planted_nonfinite.stepping import STEPPING
from benchmarks.planted_nonfinite.steps import Planted, Setup

FAULTS = (*FORWARD, *BACKWARD, *STEPPING)

__all__ = ["FAULTS", "SOUND", "Planted", "Setup"]
