"""The experiments of chapter 09: each cause is produced, measured, fixed and measured again,
all sides in turn in one run.
"""

from amp_course.speed.experiments.casts import break_even, fp32_island
from amp_course.speed.experiments.causes import (
    host_reads,
    no_fast_units,
    odd_sizes,
    too_little_work,
)
from amp_course.speed.experiments.compiling import compiled
from amp_course.speed.experiments.datasets import AugmentedDigits, SlowSource
from amp_course.speed.experiments.interleaved import Comparison, compare
from amp_course.speed.experiments.levers import (
    attention,
    channels_last,
    cuda_graphs,
    matmul_precision,
    optimizers,
    zero_grad,
)
from amp_course.speed.experiments.loading import (
    loader_bound,
    measure_pace,
    open_loader,
    pinned_memory,
    read,
)
from amp_course.speed.experiments.memory import freed_memory
from amp_course.speed.experiments.threads import threads_and_workers, too_many_threads
from amp_course.speed.experiments.workers import prefetch, start_up, worker_counts

__all__ = [
    "AugmentedDigits",
    "Comparison",
    "SlowSource",
    "attention",
    "break_even",
    "channels_last",
    "compare",
    "compiled",
    "cuda_graphs",
    "fp32_island",
    "freed_memory",
    "host_reads",
    "loader_bound",
    "matmul_precision",
    "measure_pace",
    "no_fast_units",
    "odd_sizes",
    "open_loader",
    "optimizers",
    "pinned_memory",
    "prefetch",
    "read",
    "start_up",
    "threads_and_workers",
    "too_little_work",
    "too_many_threads",
    "worker_counts",
    "zero_grad",
]
