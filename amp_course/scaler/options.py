"""Check the options of a scaler, of which PyTorch checks only two."""

from __future__ import annotations

from typing import Any

import torch


def positive(value: Any, name: str) -> float:
    """Return `value` if it is a positive and finite number in float32; raise ValueError if not."""
    if not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a number: pass a float such as 2.0**16.")
    if not 0 < torch.tensor(float(value)).item() < torch.inf:  # 1e39 is inf in float32
        raise ValueError(
            f"{name} is {value!r}, and a scale is a positive, finite float32: start with 2.0**16."
        )
    return float(value)


def check_options(
    init_scale: Any = 1.0,
    growth_factor: Any = 2.0,
    backoff_factor: Any = 0.5,
    growth_interval: Any = 1,
) -> None:
    """Raise ValueError, with a value that works, for the first option that makes no sense."""
    positive(init_scale, "init_scale")
    if not positive(growth_factor, "growth_factor") > 1:
        raise ValueError(
            f"growth_factor is {growth_factor!r}, and growing takes more than 1: usually 2.0."
        )
    if not positive(backoff_factor, "backoff_factor") < 1:
        raise ValueError(
            f"backoff_factor is {backoff_factor!r}, and backing off takes less than 1: usually 0.5."
        )
    if not isinstance(growth_interval, int) or growth_interval < 1:
        raise ValueError(
            f"growth_interval is {growth_interval!r}, and it counts steps: pass a whole number of "
            "at least 1."
        )
