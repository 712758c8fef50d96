"""Chapter 09: why AMP is not faster, from the roofline to a training step of your own.

Two tools take such a step: `predict_speedup(model, loss_fn, batch)`, and `explain(…)` of
`amp_course.speed.explain`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_course.speed.prediction import Prediction, predict_speedup

__all__ = ["Prediction", "predict_speedup"]


def __getattr__(name: str) -> Any:
    """Import each public name on demand: counting ops needs torch alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("amp_course.speed.prediction"), name)
