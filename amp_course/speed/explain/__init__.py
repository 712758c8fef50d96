"""Explain where the time of your own training step goes, and what would make it faster.

`explain` runs the step dozens of times, a short one hundreds of times: without recording, for its
time; under `torch.profiler`, for its kinds of work; once op by op, to see which lines read values
and cast; then it tries on copies what its advice would change.
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
    """Run `train_step(*batch)` dozens or hundreds of times, and say where its time goes.

    train_step: the function you call for a batch. It really trains: weights, optimizer and scaler
                move on by that many steps.
    batches:    a DataLoader or a list of batches, restarted when it ends; waiting for it is part of
                the step. Without it the step is called without arguments, and fetches its own data.
    seconds:    for all measurements; a slow step takes longer, since about ten are needed
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
