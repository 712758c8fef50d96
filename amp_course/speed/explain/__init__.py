"""Explain where a training step's time goes, on the reader's own step, and what would make it
faster.

`explain` runs the step dozens of times, a short one hundreds: plainly, for its time; under
`torch.profiler`, for the kinds of work in it; once op by op, for what is read and cast where; then
it tries what its advice would change, on copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from amp_course.speed.explain.explanation import Explanation
from amp_course.speed.explain.findings import Advice
from amp_course.speed.explain.kinds import KINDS
from amp_course.speed.explain.measuring import measure
from amp_course.speed.explain.running import Runner, StepFailed

__all__ = ["KINDS", "Advice", "Explanation", "StepFailed", "explain"]


def explain(
    train_step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    seconds: float = 6.0,
    patience: float = 30.0,
) -> Explanation:
    """Run `train_step(*batch)` dozens of times, a short one hundreds, and say where its time goes.

    train_step: whatever you call for a batch. It really trains: weights, optimizer and scaler move
                on by that many steps.
    batches:    a DataLoader or a list of batches, begun again when it ends; waiting for it is part
                of the step. Without it the step is called with nothing, and fetches its data
                itself.
    seconds:    for all that is timed; a slow step takes longer, for about ten of them are needed
    patience:   seconds that a batch, or half a step, may take

    Raises StepFailed for a step that raises or does not end, and for batches that are missing, hang
    or end; TypeError for what cannot be called or read; RuntimeError inside another profiler.
    Example: explain(step, loader).advice[0].cause → "waiting-for-data"
    """
    run = Runner(train_step, batches, patience)
    try:
        return measure(run, seconds)
    finally:
        run.close()
