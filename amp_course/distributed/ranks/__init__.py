"""Real processes, kept warm: each is a rank of one gloo group, and runs a function that it is sent.

A training script belongs in a file, started by torchrun (`launching`). These ranks are for short
work that has to answer within a second, the check of an exercise above all: `pool` starts them,
watches over their collectives and ends them, `worker` is what runs in each of them, `sending` gets
a reader's function there, `answers` runs any function or an exercise's answer on them.
"""

from amp_course.distributed.ranks.answers import (
    call_on_rank,
    cases_on_ranks,
    collectives_so_far,
    each_question,
    try_on_ranks,
    values_on_ranks,
)
from amp_course.distributed.ranks.collective import Collective
from amp_course.distributed.ranks.pool import Ranks, warm_ranks
from amp_course.distributed.ranks.report import Report

__all__ = [
    "Collective",
    "Ranks",
    "Report",
    "call_on_rank",
    "cases_on_ranks",
    "collectives_so_far",
    "each_question",
    "try_on_ranks",
    "values_on_ranks",
    "warm_ranks",
]  # fmt: skip
