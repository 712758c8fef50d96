"""The seven exercises of chapter 10; `ALL` lists them in order."""

from amp_course.distributed.exercises.agreed_step import agreed_step
from amp_course.distributed.exercises.average_fp16 import average_fp16
from amp_course.distributed.exercises.clip_sharded import clip_sharded
from amp_course.distributed.exercises.ddp_step import ddp_step
from amp_course.distributed.exercises.mean_loss import mean_loss
from amp_course.distributed.exercises.share_checkpoint import share_checkpoint
from amp_course.distributed.exercises.shared_accuracy import shared_accuracy

ALL = (
    mean_loss,
    ddp_step,
    agreed_step,
    clip_sharded,
    average_fp16,
    share_checkpoint,
    shared_accuracy,
)
