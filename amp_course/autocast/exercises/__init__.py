"""The seven exercises of chapter 04; `ALL` lists them in order."""

from amp_course.autocast.exercises.end_region import end_region
from amp_course.autocast.exercises.fp32_island import fp32_island
from amp_course.autocast.exercises.matmul_dtype import matmul_dtype
from amp_course.autocast.exercises.mini_autocast import (
    FP32_OPS,
    LOWER_OPS,
    WIDEST_OPS,
    mini_autocast,
)
from amp_course.autocast.exercises.predict_dtypes import TWELVE, predict_dtypes
from amp_course.autocast.exercises.safe_function import safe_function
from amp_course.autocast.exercises.safe_loss import safe_loss

__all__ = ["ALL", "FP32_OPS", "LOWER_OPS", "TWELVE", "WIDEST_OPS"]

ALL = (
    predict_dtypes,
    mini_autocast,
    end_region,
    fp32_island,
    safe_function,
    safe_loss,
    matmul_dtype,
)
