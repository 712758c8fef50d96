"""Count the pages of memory that the system hands out during a step, and what one costs.

glibc gives freed memory back to the system when much of it lies free at the top of the heap, and
the next step pays for getting it again: page by page, in the kernel, and on a large step that can
take longer than the matmuls. No GPU and no recipe has a hand in it, but it can eat a speed-up, and
it changes from run to run. `keep_freed_memory` turns it off for this process.
"""

from __future__ import annotations

import ctypes
import functools
import time

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# in the environment, before Python starts
CURE = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=33554432"
_TOUCHED = 2**25  # bytes


def page_faults() -> int:
    """Return how many pages this process was handed so far; 0 where it is not told."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


@functools.cache
def seconds_per_fault() -> float:
    """Return what one page costs, from filling new memory and again; 0 if none is counted."""
    best = float("inf")
    for _ in range(3):
        fresh = torch.empty(_TOUCHED, dtype=torch.uint8, device="cpu")
        before, start = page_faults(), time.perf_counter()
        fresh.fill_(1)
        first, faults = time.perf_counter() - start, page_faults() - before
        start = time.perf_counter()
        fresh.fill_(2)
        if faults:
            best = min(best, max(0.0, first - (time.perf_counter() - start)) / faults)
        del fresh
    return best if best < float("inf") else 0.0


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep what is freed, for the rest of this process; return whether it
    did.

    For comparisons of loops: the lottery favours one side of a process, any of them, for a whole
    run.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(m_mmap_threshold, 32 * 2**20)) and bool(
        mallopt(m_trim_threshold, 2**31 - 1)
    )
