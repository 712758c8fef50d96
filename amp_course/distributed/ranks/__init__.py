"""Real processes, kept warm: each is a rank of one gloo group, and runs a function that it is sent.

A training script belongs in a file, started by torchrun (`launching`). These ranks are for short
work that has to answer within a second, the check of an exercise above all: `pool` starts them,
watches over their collectives and ends them, `worker` is what runs in each of them, `sending` gets
a reader's function there, `answers` plays an exercise's answer on them, `trial` runs any function.
"""

from amp_course.distributed.ranks.answers import (
    call_on_rank,
    cases_on_ranks,
    collectives_so_far,
    each_question,
    run_on_ranks,
)
from amp_course.distributed.ranks.collective import Collective
from amp_course.distributed.ranks.pool import Ranks, RanksFailed, warm_ranks
from amp_course.distributed.ranks.report import Report
from amp_course.distributed.ranks.trial import try_on_ranks

__all__ = [
    "Collective",
    "Ranks",
    "RanksFailed",
    "Report",
    "call_on_rank",
    "cases_on_ranks",
    "collectives_so_far",
    "each_question",
    "run_on_ranks",
    "try_on_ranks",
    "warm_ranks",
]  # fmt: skip
