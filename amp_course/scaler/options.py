"""Refuse options of a scaler that make no sense, and say what would.
PyTorch checks two of them only.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def positive(value: Any, name: str) -> float:
    """Return `value` if it is a positive and finite number in float32; raise ValueError if not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a number: pass a float such as 2.0**16.")
    rounded = torch.tensor(float(value)).item()  # 1e39 is inf in float32, and 1e-46 is 0
    if not (math.isfinite(rounded) and rounded > 0):
        raise ValueError(
            f"{name} is {value!r}, and a scale is a positive, finite float32: start with 2.0**16."
        )
    return float(value)


def whole(value: Any, at_least: int, name: str) -> None:
    """Raise ValueError for what is not a whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(
            f"{name} is {value!r}, and it counts steps: pass a whole number of at least {at_least}."
        )


def check_options(
    init_scale: Any = 1.0,
    growth_factor: Any = 2.0,
    backoff_factor: Any = 0.5,
    growth_interval: Any = 1,
    growth_tracker: Any = 0,
) -> None:
    """Raise ValueError for the first of a scaler's numbers that makes no sense, with what would."""
    positive(init_scale, "init_scale")
    if not positive(growth_factor, "growth_factor") > 1:
        raise ValueError(
            f"growth_factor is {growth_factor!r}, and growing takes more than 1: usually 2.0."
        )
    if not positive(backoff_factor, "backoff_factor") < 1:
        raise ValueError(
            f"backoff_factor is {backoff_factor!r}, and backing off takes less than 1: usually 0.5."
        )
    whole(growth_interval, 1, "growth_interval")
    whole(growth_tracker, 0, "_growth_tracker")
