"""The seven exercises of chapter 06; `ALL` lists them in order."""

from amp_course.loop.exercises.add_autocast import add_autocast
from amp_course.loop.exercises.add_scaler import add_scaler
from amp_course.loop.exercises.count_bytes import count_bytes
from amp_course.loop.exercises.evaluate_right import evaluate_right
from amp_course.loop.exercises.honest_timing import honest_timing
from amp_course.loop.exercises.log_scale import log_scale
from amp_course.loop.exercises.prepare_loaded import prepare_loaded

ALL = (
    honest_timing,
    add_autocast,
    add_scaler,
    log_scale,
    count_bytes,
    evaluate_right,
    prepare_loaded,
)
