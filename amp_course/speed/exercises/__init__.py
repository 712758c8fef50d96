"""The six exercises of chapter 09; `ALL` lists them in order."""

from amp_course.speed.exercises.amp_ceiling import amp_ceiling
from amp_course.speed.exercises.linear_intensity import linear_intensity
from amp_course.speed.exercises.make_fast import make_fast
from amp_course.speed.exercises.name_bottleneck import name_bottleneck
from amp_course.speed.exercises.no_sync import no_sync
from amp_course.speed.exercises.pad_vocabulary import pad_vocabulary

ALL = (linear_intensity, amp_ceiling, no_sync, pad_vocabulary, name_bottleneck, make_fast)
