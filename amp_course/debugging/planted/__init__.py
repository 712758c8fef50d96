"""Small training steps with one fault each that makes an inf or a NaN, and sound ones: to try tools on that look for them."""

from amp_course.debugging.planted.backward import BACKWARD
from amp_course.debugging.planted.forward import FORWARD
from amp_course.debugging.planted.sound import SOUND
from amp_course.debugging.planted.stepping import STEPPING
from amp_course.debugging.planted.steps import Planted, Setup

FAULTS = (*FORWARD, *BACKWARD, *STEPPING)

__all__ = ["FAULTS", "SOUND", "Planted", "Setup"]
