"""The six exercises of chapter 05; `ALL` lists them in order."""

from amp_course.scaler.exercises.clip_scaled import clip_scaled
from amp_course.scaler.exercises.scaler_class import scaler_class
from amp_course.scaler.exercises.scheduler_waits import scheduler_waits
from amp_course.scaler.exercises.static_scaling import static_scaling
from amp_course.scaler.exercises.unscale_and_check import unscale_and_check
from amp_course.scaler.exercises.update_rule import update_rule

ALL = (static_scaling, unscale_and_check, update_rule, scaler_class, clip_scaled, scheduler_waits)
