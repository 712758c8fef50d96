"""The six exercises of chapter 02; `ALL` lists them in order."""

from amp_course.underflow.exercises.lost_fraction import lost_fraction
from amp_course.underflow.exercises.master_sgd import master_sgd
from amp_course.underflow.exercises.safe_softmax import safe_softmax
from amp_course.underflow.exercises.smallest_step import smallest_step
from amp_course.underflow.exercises.steady_sum import steady_sum
from amp_course.underflow.exercises.stochastic_rounding import stochastic_rounding

ALL = (smallest_step, lost_fraction, safe_softmax, steady_sum, master_sgd, stochastic_rounding)
