"""Check any save/load pair: a resumed run has to equal one that never stopped, bit for bit."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_course.audit.arguments import as_list
from amp_course.checking.explain import explain
from amp_course.checking.sandbox import sandbox
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.findings import Finding
from amp_course.diagnosis.report import Report
from amp_course.kit.nested import copied, first_difference


@dataclass
class Run:
    """A training that can be stopped: `step(n)` does its n-th (micro-)step on these objects."""

    step: Callable[[int], Any]
    model: nn.Module | list[nn.Module]
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler | None = None
    scheduler: Any = None


def check_resume(
    build: Callable[[], Run],
    save: Callable[[Run, Path, int], Any],
    load: Callable[[Run, Path], Any],
    *,
    steps: int = 6,
    stop: int = 3,
) -> Report:
    """Run `steps` steps, and again with a stop after `stop` of them; compare to the last bit.

    build: makes a fresh training, each time with the same weights and data
    save:  `save(run, path, n)` after n steps
    load:  `load(run, path)` into a fresh run; returns n, the number of the next step

    The resumed run is built with another random seed, as in a new process. Raises ValueError for a
    `stop` that is not between 1 and `steps` − 1.
    """
    if not 0 < stop < steps:
        raise ValueError(
            f"stop is {stop}: a run of {steps} steps is stopped after 1 to {steps - 1} of them."
        )
    with sandbox(), tempfile.TemporaryDirectory() as folder:
        found = list(_compare(build, save, load, steps, stop, Path(folder) / "run.pt"))
    checked = "weights buffers optimizer scaler scheduler gradients random run"
    return Report(tuple(found), tuple(checked.split()), subject="the resumed run")


def _compare(
    build: Any, save: Any, load: Any, steps: int, stop: int, path: Path
) -> Iterator[Finding]:
    torch.manual_seed(0)
    unbroken = build()
    for number in range(stop):
        unbroken.step(number)
    try:
        save(unbroken, path, stop)
    except Exception as error:
        yield finding("save-raises", it_says=explain(error))
        return
    if not path.is_file():
        yield finding("nothing-saved")
        return
    at_stop = _state(unbroken)
    for number in range(stop, steps):
        unbroken.step(number)
    torch.manual_seed(secrets.randbits(31))  # a new process would draw other numbers
    resumed = build()
    try:
        position = load(resumed, path)
    except Exception as error:
        yield finding("load-raises", it_says=explain(error))
        return
    differences = _differences(at_stop, resumed)
    for part, where in differences.items():
        yield finding(f"{part}-not-restored", first_difference=where)
    if position != stop:
        yield finding("position-not-restored", first_difference=f"{position!r} instead of {stop}")
    if differences or position != stop:
        return
    for number in range(stop, steps):
        resumed.step(number)
    for part, where in _differences(_state(unbroken), resumed).items():
        yield finding("run-differs", first_difference=f"{part}: {where}")
        return


def _differences(wanted: dict[str, Any], run: Run) -> dict[str, str]:
    """Return the parts of a run that differ from the wanted state → the first difference."""
    state = _state(run)
    found = {part: first_difference(value, state[part]) for part, value in wanted.items()}
    return {part: where for part, where in found.items() if where is not None}


def _state(run: Run) -> dict[str, Any]:
    """Copy everything in a run that can be compared."""
    models, optimizers = as_list(run.model), as_list(run.optimizer)
    parameters = [p for model in models for p in model.parameters()]
    return {
        "weights": {
            f"{n}:{name}": p.detach().clone()
            for n, m in enumerate(models)
            for name, p in m.named_parameters()
        },
        "buffers": {
            f"{n}:{name}": b.clone() for n, m in enumerate(models) for name, b in m.named_buffers()
        },
        "optimizer": [copied(optimizer.state_dict()["state"]) for optimizer in optimizers],
        "scaler": None if run.scaler is None else dict(run.scaler.state_dict()),
        "scheduler": (
            [scheduler.state_dict().get("last_epoch") for scheduler in as_list(run.scheduler)],
            [group["lr"] for optimizer in optimizers for group in optimizer.param_groups],
        ),
        "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
        "random": torch.get_rng_state(),
    }
