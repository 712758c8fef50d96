"""The ten exercises of chapter 07; `ALL` lists them in order."""

from amp_course.patterns.exercises.accumulate import accumulate
from amp_course.patterns.exercises.clip_both import clip_both
from amp_course.patterns.exercises.ema_step import ema_step
from amp_course.patterns.exercises.frozen_layers import frozen_layers
from amp_course.patterns.exercises.gradient_penalty import gradient_penalty
from amp_course.patterns.exercises.recompute import recompute
from amp_course.patterns.exercises.resume_mid_accumulation import resume_mid_accumulation
from amp_course.patterns.exercises.resume_training import resume_training
from amp_course.patterns.exercises.save_training import save_training
from amp_course.patterns.exercises.two_optimizers import two_optimizers

ALL = (
    accumulate,
    two_optimizers,
    gradient_penalty,
    save_training,
    resume_training,
    resume_mid_accumulation,
    recompute,
    frozen_layers,
    clip_both,
    ema_step,
)
