"""A queue of work, such as a GPU has: work is queued at once and done later.

On CUDA it is the GPU's own stream. Elsewhere a background thread stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from amp_course.kit.measure import synchronize


class WorkQueue:
    """Queue work with `launch(function)`, wait for it with `synchronize()`, end with `close()`.

    While the background thread lives, every step of the process is slower (twice on 2 cores): it
    has OpenMP threads of its own, and with more threads than cores OpenMP lets them sleep between
    ops.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._thread = None if self.device.type == "cuda" else ThreadPoolExecutor(1, "work queue")
        self._waiting: list[Future[object]] = []

    def launch(self, work: Callable[[], object]) -> None:
        """Queue a piece of work and return at once."""
        if self._thread is None:
            work()  # its kernels go into the GPU's stream; the call returns before they have run
        else:
            self._waiting.append(self._thread.submit(work))

    def synchronize(self) -> None:
        """Wait until all queued work is done; raise what it raised."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()
        synchronize(self.device)

    def close(self) -> None:
        """Finish the queued work and end the background thread."""
        self.synchronize()
        if self._thread is not None:
            self._thread.shutdown()
