"""Run tiny computations on one thread: below a thousand numbers an op's threads wait for each other
longer than they work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread while the body runs;
    the number of before is put back, also after an exception.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
