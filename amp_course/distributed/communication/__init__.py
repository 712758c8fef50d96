"""What many ranks send each other, and what 16 bits change about it.

`counting` records the collectives of a step, for the DDP and FSDP2 `setups`; `sums` averages
gradients in 16 bits over simulated ranks, and `accuracy` measures the loss; `ring` estimates times
on links that this machine lacks. `figures` draws all of it.
"""

from amp_course.distributed.communication.accuracy import (
    digit_gradients,
    measure_ranks,
    measure_scales,
)
from amp_course.distributed.communication.counting import count_collectives, total_bytes
from amp_course.distributed.communication.ring import (
    INFINIBAND_NDR,
    NVLINK_4,
    RingModel,
    TwoLevelModel,
    fit,
    halve_bytes,
)
from amp_course.distributed.communication.setups import SETUPS

__all__ = [
    "INFINIBAND_NDR",
    "NVLINK_4",
    "SETUPS",
    "RingModel",
    "TwoLevelModel",
    "count_collectives",
    "digit_gradients",
    "fit",
    "halve_bytes",
    "measure_ranks",
    "measure_scales",
    "total_bytes",
]
