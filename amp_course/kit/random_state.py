"""Save and restore the global random generators of a training: torch, CUDA, NumPy, Python."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]


def random_state() -> RandomState:
    """Return the states of the global generators, as tensors and plain values.

    `torch.load(…, weights_only=True)` reads what `torch.save` stores. CUDA is left out until
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
    cuda = state["cuda"]
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
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
    """Restore the random state at the end of the block, as if nothing had been drawn in it."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
