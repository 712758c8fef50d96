"""The doctor: runs a training step or a whole script, and says what is wrong with it, by what it does and with numbers."""

from amp_course.debugging.doctor.diagnosis import Diagnosis
from amp_course.debugging.doctor.own_step import doctor
from amp_course.debugging.doctor.script import examine_script

__all__ = ["Diagnosis", "doctor", "examine_script"]
