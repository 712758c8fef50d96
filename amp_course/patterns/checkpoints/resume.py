"""Check any save/load pair: does a run that was stopped and resumed equal one that never stopped, bit for bit?"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_course.audit import Audit, Finding
from amp_course.checking.explain import explain
from amp_course.checking.sandbox import sandbox
from amp_course.kit.nested import copied, first_difference
from amp_course.patterns.checkpoints.saving import several

RESUME_FAULTS: dict[str, tuple[str, str]] = {
    "save-raises": ("saving raised an exception", "Fix what it names"),
    "load-raises": ("loading raised an exception", "Fix what it names"),
    "nothing-saved": ("`save` wrote no file at the path it was given", "End with `torch.save(state, path)`"),
    "weights-not-restored": (
        "the weights are not those that were saved",
        "Save `model.state_dict()` and pass it to `model.load_state_dict`",
    ),
    "buffers-not-restored": (
        "buffers of the model, such as batch norm's statistics, are not those that were saved",
        "Save the whole `model.state_dict()`, not the parameters alone",
    ),
    "optimizer-not-restored": (
        "the optimizer's state is not the one that was saved: its averages start again from zero",
        "Save and load `optimizer.state_dict()`",
    ),
    "scaler-not-restored": (
        "the scaler's scale or growth counter is not the one that was saved: it starts at its initial scale and skips again",
        "Save and load `scaler.state_dict()`",
    ),
    "scheduler-not-restored": (
        "the scheduler is not where it was: the learning rate starts its schedule again",
        "Save and load `scheduler.state_dict()`",
    ),
    "gradients-not-restored": (
        "gradients that were accumulated before the stop are gone",
        "Save `p.grad` of every parameter in the middle of an accumulation, or stop only after an update",
    ),
    "random-not-restored": (
        "the random state is not the one that was saved: dropout draws different masks",
        "Save `torch.get_rng_state()` and pass it to `torch.set_rng_state` (as a CPU tensor)",
    ),
    "position-not-restored": (
        "`load` does not return the number of the step that comes next: batches are repeated or left out",
        "Save the step's number and return it from `load`",
    ),
    "run-differs": (
        "everything that can be compared was restored, but the resumed run still goes a different way",
        "Look for state of your own: a counter in a closure, a moving average, the order of the data",
    ),
}


@dataclass
class Run:
    """A training that can be stopped: `step(n)` does its n-th (micro-)step on the objects next to it."""

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
) -> Audit:
    """Run `steps` steps without a break, and again with a stop after `stop` of them; compare to the last bit.

    build: makes a fresh training, the same one every time as far as its weights and data go
    save:  `save(run, path, n)` after n steps
    load:  `load(run, path)` into a fresh run; returns n, the number of the next step

    The resumed run is built under another random seed, as a new process would be. The process's own state is put back.

    Raises ValueError for a `stop` that is not between 1 and `steps` − 1.
    """
    if not 0 < stop < steps:
        raise ValueError(f"stop is {stop}: a run of {steps} steps is stopped after 1 to {steps - 1} of them.")
    with sandbox(), tempfile.TemporaryDirectory() as folder:
        found = list(_compare(build, save, load, steps, stop, Path(folder) / "run.pt"))
    return Audit(tuple(found), ("weights", "buffers", "optimizer", "scaler", "scheduler", "gradients", "random", "run"))


def _compare(build: Any, save: Any, load: Any, steps: int, stop: int, path: Path) -> Iterator[Finding]:
    torch.manual_seed(0)
    unbroken = build()
    for number in range(stop):
        unbroken.step(number)
    try:
        save(unbroken, path, stop)
    except Exception as error:
        yield _finding("save-raises", explain(error))
        return
    if not path.is_file():
        yield _finding("nothing-saved")
        return
    at_stop = _state(unbroken)
    for number in range(stop, steps):
        unbroken.step(number)
    torch.manual_seed(secrets.randbits(31))  # a new process would draw other numbers
    resumed = build()
    try:
        goes_on = load(resumed, path)
    except Exception as error:
        yield _finding("load-raises", explain(error))
        return
    after_load = _state(resumed)
    found = False
    for part, was in at_stop.items():
        where = first_difference(was, after_load[part])
        if where is not None:
            found = True
            yield _finding(f"{part}-not-restored", where)
    if goes_on != stop:
        yield _finding("position-not-restored", f"{goes_on!r} instead of {stop}")
        return
    for number in range(stop, steps):
        resumed.step(number)
    if not found:
        end, other = _state(unbroken), _state(resumed)
        for part, was in end.items():
            where = first_difference(was, other[part])
            if where is not None:
                yield _finding("run-differs", f"{part}: {where}")
                return


def _finding(name: str, where: str = "") -> Finding:
    cause, cure = RESUME_FAULTS[name]
    return Finding(
        name, cause, cure, {"first difference" if "raises" not in name else "it says": where} if where else {}
    )


def _state(run: Run) -> dict[str, Any]:
    """Copy everything of a run that can be compared."""
    models, optimizers = several(run.model), several(run.optimizer)
    parameters = [p for model in models for p in model.parameters()]
    return {
        "weights": {
            f"{n}:{name}": p.detach().clone() for n, m in enumerate(models) for name, p in m.named_parameters()
        },
        "buffers": {f"{n}:{name}": b.clone() for n, m in enumerate(models) for name, b in m.named_buffers()},
        "optimizer": [copied(one.state_dict()["state"]) for one in optimizers],
        "scaler": None if run.scaler is None else dict(run.scaler.state_dict()),
        "scheduler": (
            [one.state_dict().get("last_epoch") for one in several(run.scheduler)],
            [group["lr"] for one in optimizers for group in one.param_groups],
        ),
        "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
        "random": torch.get_rng_state(),
    }
