"""Count the pages of memory that the system hands out during a step, and what one costs.

glibc gives freed memory back to the system when much of it lies free at the top of the heap, and
the next step pays for getting it again: page by page, in the kernel, and on a large step that can
take longer than the matmuls. It has nothing to do with the GPU or the recipe, but it can eat a
speed-up, and it changes from run to run. `keep_freed_memory` turns it off for this process.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from amp_course.kit.measure import clock

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# environment variables, to be set before Python starts
CURE = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=33554432"
_PROBE_BYTES = 2**25


def page_faults() -> int:
    """Return how many pages this process has received so far; 0 where they are not counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


def clock_and_faults(step: Callable[[], object], device: torch.device | str) -> tuple[float, int]:
    """Return the seconds of a step, from idle device to idle device, and the pages it received."""
    before = page_faults()
    return clock(step, device), page_faults() - before


@functools.cache
def seconds_per_fault() -> float:
    """Return what one page costs, from filling new memory twice; 0 where none is counted."""
    costs = []
    for _ in range(3):
        fresh = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cpu")
        first, faults = clock_and_faults(functools.partial(fresh.fill_, 1), "cpu")
        if faults:
            again = clock(functools.partial(fresh.fill_, 2), "cpu")
            costs.append(max(0.0, first - again) / faults)
        del fresh
    return min(costs, default=0.0)


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep freed memory for the rest of this process; return True if it does.

    Use it to compare loops: otherwise chance favours one of them for the whole run.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(m_mmap_threshold, 32 * 2**20)) and bool(
        mallopt(m_trim_threshold, 2**31 - 1)
    )
