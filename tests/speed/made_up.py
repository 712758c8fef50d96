"""Made-up times for the experiments, and what none of them may change."""

import os
import warnings

import numpy as np
import torch

# A process's first optimizer step loads it, and it sets filters and an environment variable
import torch._dynamo

from amp_course.kit.dtypes import _BACKENDS
from amp_course.speed.experiments.interleaved import Comparison

CPU = torch.device("cpu")
SHORT = 0.02  # seconds: three rounds at the least


def made_up(**seconds):
    """Return a Comparison in which side a_b took so many seconds a step,
    a little more and a little less from round to round.
    """
    wobble = np.array((0.99, 1.0, 1.0, 1.0, 1.01))
    times = {name: tuple(one * wobble) for name, one in seconds.items()}
    return Comparison(times, dict.fromkeys(times, next(iter(times))), {})


def settings():
    modes = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    modes += torch.is_autocast_enabled("cpu"), torch.get_num_threads()
    backends = [backend.fp32_precision for backend in _BACKENDS]
    return modes, backends, dict(os.environ), list(warnings.filters)
