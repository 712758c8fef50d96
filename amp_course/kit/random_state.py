"""Remember the state of every random generator that a training draws from, and put it back:
torch, CUDA, NumPy, Python.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]


def random_state() -> RandomState:
    """Return the states of torch's, NumPy's and Python's global generators, as tensors and plain
    values.

    `torch.save` stores it, and `torch.load(…, weights_only=True)` reads it. CUDA is left out until
    something has used it.
    """
    numpy: Any = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": _cuda_states(),
        "numpy": (numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]),
        "python": random.getstate(),
    }


def set_random_state(state: RandomState) -> None:
    """Put back what `random_state` returned; CUDA's only on a machine with as many GPUs."""
    torch.set_rng_state(state["torch"])
    if (
        state["cuda"]
        and torch.cuda.is_available()
        and len(state["cuda"]) == torch.cuda.device_count()
    ):
        torch.cuda.set_rng_state_all(state["cuda"])
    name, key, *rest = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def _cuda_states() -> list[torch.Tensor]:
    try:
        return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    except RuntimeError:  # the driver or a device is gone
        return []


@contextlib.contextmanager
def same_random_state() -> Iterator[None]:
    """Put the random state back at the end of the block: what it draws leaves no trace."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
