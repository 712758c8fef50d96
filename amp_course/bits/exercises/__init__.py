"""The five exercises of chapter 01; `ALL` lists them in order."""

from amp_course.bits.exercises.decode_fp16 import decode_fp16
from amp_course.bits.exercises.derive_limits import derive_limits
from amp_course.bits.exercises.encode_fp16 import encode_fp16
from amp_course.bits.exercises.find_ulp import find_ulp
from amp_course.bits.exercises.round_bf16 import round_bf16

ALL = (decode_fp16, encode_fp16, find_ulp, derive_limits, round_bf16)
