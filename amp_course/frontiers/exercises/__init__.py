"""The six exercises of chapter 12; `ALL` lists them in order."""

from amp_course.frontiers.exercises.compressed_hooks import compressed_hooks
from amp_course.frontiers.exercises.delayed_scale import delayed_scale
from amp_course.frontiers.exercises.kahan_sgd import kahan_sgd
from amp_course.frontiers.exercises.mx_block import mx_block
from amp_course.frontiers.exercises.pack_two_bits import pack_two_bits
from amp_course.frontiers.exercises.scale_to_fp8 import scale_to_fp8

ALL = (scale_to_fp8, delayed_scale, mx_block, pack_two_bits, compressed_hooks, kahan_sgd)
