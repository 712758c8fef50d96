"""The thirteen exercises of chapter 11; `ALL` lists them in order."""

from amp_course.debugging.exercises.anomaly_warmup import anomaly_warmup
from amp_course.debugging.exercises.bf16_updates import bf16_updates
from amp_course.debugging.exercises.first_bad_module import first_bad_module
from amp_course.debugging.exercises.late_anomaly import late_anomaly
from amp_course.debugging.exercises.masked_rows import masked_rows
from amp_course.debugging.exercises.name_curves import name_curves
from amp_course.debugging.exercises.never_cleared import never_cleared
from amp_course.debugging.exercises.poisoned_norm import poisoned_norm
from amp_course.debugging.exercises.ranks_differ import ranks_differ
from amp_course.debugging.exercises.scaled_clip import scaled_clip
from amp_course.debugging.exercises.scaler_syncs import scaler_syncs
from amp_course.debugging.exercises.t5_overflow import t5_overflow
from amp_course.debugging.exercises.uneven_ranks import uneven_ranks

ALL = (
    scaled_clip,
    never_cleared,
    uneven_ranks,
    t5_overflow,
    masked_rows,
    ranks_differ,
    anomaly_warmup,
    late_anomaly,
    first_bad_module,
    scaler_syncs,
    bf16_updates,
    name_curves,
    poisoned_norm,
)
