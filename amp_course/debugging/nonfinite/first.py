"""Run a training step, find the first inf or NaN in it that does harm, and put everything back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from amp_course.audit.arguments import as_list
from amp_course.audit.snapshot import restored
from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.watching.calling import arguments_for, cloned
from amp_course.watching.ops import Watch


def first_nonfinite(
    step: Callable[..., Any],
    batches: Iterable[Any] = ((),),
    *,
    model: nn.Module | Sequence[nn.Module] = (),
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] = (),
    steps: int = 1,
) -> Nonfinite:
    """Run `step(*batch)` up to `steps` times, until an inf or NaN does harm; say which op made it,
    where, and of what.

    A call takes longer than the steps in it (1.6 times a step of 0.1 s, some 13 times one of a
    millisecond): every op is checked, and all that the step can change is copied and restored.

    step:    whatever you call for a batch: a function, a method, a closure
    batches: tuples, dicts or single objects; without any, the step is called without arguments
    model, optimizer, scaler: one or a list, so that they are put back, as is the plain data that
        the step can reach

    Weights, gradients, states, buffers and random numbers are put back. Raises what the step
    raises, unless an inf or NaN had done harm by then; TypeError for a step that cannot be called
    and for what holds no batches, ValueError for fewer than 1 step and for no batch at all.
    Example: first_nonfinite(step, batches, model=model).first.op → "exp"
    """
    if not callable(step):
        raise TypeError(
            f"step has to be a function that runs one training step, and this is a "
            f"{type(step).__name__}."
        )
    if isinstance(batches, (str, bytes, Mapping, torch.Tensor)) or not isinstance(
        batches, Iterable
    ):
        raise TypeError(
            f"batches is a {type(batches).__name__}: pass a DataLoader or a list of batches, "
            "[(inputs, targets), …]; for a step that fetches its own data, leave it out."
        )
    if steps < 1:
        raise ValueError(f"steps is {steps}: at least one step has to run.")
    models = [one for one in as_list(model) if isinstance(one, nn.Module)]
    own = [*models, *as_list(optimizer), *as_list(scaler)]
    error: BaseException | None = None
    number, watch = 0, Watch(models)
    with restored(own, {"the step": step}) as snapshot, watch:
        for number, batch in enumerate(itertools.islice(batches, steps), 1):
            watch.step = number
            with watch.aside():
                args, kwargs = arguments_for(step, cloned(batch))
            try:
                watch.look_at_result(step(*args, **kwargs))
            except Exception as raised:
                error = raised
                watch.look_at_error(raised)
            watch.look_at_weights()
            harm = any(origin.harmful for origin in watch.origins)
            if error is not None or harm or watch.preexisting:
                break
    if number == 0:
        raise ValueError(
            "batches is empty: pass at least one batch, or leave it out for a step that fetches "
            "its own data."
        )
    found = replace(Nonfinite.of(watch, error), not_put_back=tuple(snapshot.lost.items()))
    if error is not None and found.first is None:
        raise error
    return found
