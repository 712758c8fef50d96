"""Warm processes: each is a rank of one gloo group, and runs the functions that it receives.

A training script belongs in a file, started by torchrun (`launching`). These ranks are for short
work that has to be done within a second, above all the check of an exercise: `pool` starts them,
watches their collectives and ends them, `worker` runs in each of them, `sending` sends a learner's
function there, `answers` runs any function or an exercise's answer on them.
"""

from amp_course.distributed.ranks.answers import (
    before_each_collective,
    call_on_rank,
    cases_on_ranks,
    collectives_so_far,
    try_on_ranks,
    values_on_ranks,
)
from amp_course.distributed.ranks.collective import Collective
from amp_course.distributed.ranks.pool import Ranks, warm_ranks

__all__ = [
    "Collective",
    "Ranks",
    "before_each_collective",
    "call_on_rank",
    "cases_on_ranks",
    "collectives_so_far",
    "try_on_ranks",
    "values_on_ranks",
    "warm_ranks",
]
