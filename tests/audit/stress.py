"""Steps that change more than weights. `audit` has to leave everything as it was.

    step, arguments, probes = stress.make()

`probes` are functions without arguments; each returns a fingerprint of something that
`audit(step, **arguments)` may not change. The recipe for a test is in `fingerprints`. `make()`
makes new objects each time, and may change the process's switches: call it within
`globals_kept()`. Most are written in stress_*.toml; here are those whose holder matters.

What no auditor can put back is not here: a generator moved on, a file written, a line printed.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.audit.fingerprints import Place, Probes, Same, look
from tests.audit.parts import classes, half, mlp, plain
from tests.audit.probes import standard
from tests.audit.written import SOUND, live, make, read

Stressed = tuple[
    Callable[..., Any], dict[str, Any], Probes
]  # the step, what `audit` is given, what has to stay


@dataclass(frozen=True)
class Stress:
    """One step, made afresh by `make()`.

    sound: a finding would be a false alarm. Where False, `audit` may accuse it or even refuse it
           by an error, if only everything stays as it was
    """

    name: str
    make: Callable[[], Stressed]
    sound: bool = True


def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


BASE = SOUND | {
    "scaling": "growth_interval=3",
    "names": {"look": look, "Same": Same, "Place": Place},
}


def written(name: str, case: dict[str, Any]) -> Stressed:
    seed()
    step, arguments, names = make(name, case, BASE)
    for number in range(case.get("first", 0)):
        batches = arguments["batches"]
        step(*batches[number % len(batches)])
    exec(case.get("after", ""), names)
    probes = {
        what: functools.partial(
            lambda code: eval(code, names | live(step)), compile(code, what, "eval")
        )
        for what, code in case.get("probes", {}).items()
    }
    return step, arguments, standard(arguments) | probes


STRESSES = [
    Stress(name, functools.partial(written, name, case), case.get("sound", True))
    for name, case in read("stress_*.toml").items()
]


def stress(name: str) -> Callable[[Callable[[], Stressed]], Callable[[], Stressed]]:
    def put(make: Callable[[], Stressed]) -> Callable[[], Stressed]:
        STRESSES.append(Stress(name, make))
        return make

    return put


def train(parts: Any, x: Tensor, y: Tensor) -> Tensor:
    parts.optimizer.zero_grad()
    with half():
        loss = F.cross_entropy(parts.model(x), y)
    parts.scaler.scale(loss).backward()
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    return loss.detach()


def fill(parts: Any, lr: float) -> None:
    parts.model = mlp()
    parts.optimizer = torch.optim.AdamW(parts.model.parameters(), lr=lr)
    parts.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)


def given(parts: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "scaler": parts.scaler,
        "batches": classes(),
    } | more


class Meter:
    """An average, with slots."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0

    def update(self, value: float) -> None:
        self.count, self.sum = self.count + 1, self.sum + value


class Trainer:
    """A class as in most projects: everything is an attribute, some of it deeper down."""

    instances = 0
    losses_of_all: list[float] = []  # noqa: RUF012 the class's own

    def __init__(self) -> None:
        type(self).instances += 1
        fill(self, 2e-2)
        self.scheduler = lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.9)
        self.meters = {"loss": Meter(), "examples": Meter()}
        self.state = SimpleNamespace(global_step=0, epoch=0.0, best=math.inf, log_history=[])
        self.running: float | None = None

    def training_step(self, x: Tensor, y: Tensor) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        with half():
            self.loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(self.loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        self.log(self.loss.item(), len(x))
        return self.loss.item()

    def log(self, loss: float, examples: int) -> None:
        self.state.global_step += 1
        self.state.epoch = self.state.global_step / 6
        self.state.best = min(self.state.best, loss)
        self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss
        self.meters["loss"].update(loss)
        self.meters["examples"].update(examples)
        Trainer.losses_of_all.append(loss)
        type(self).latest = self.state.global_step
        if self.state.global_step % 2 == 0:
            self.state.log_history.append({"loss": self.running, "step": self.state.global_step})


@stress("a method: attributes of the trainer, of its parts and of its class")
def trainer() -> Stressed:
    seed()
    Trainer.instances = 0
    Trainer.losses_of_all = []
    if "latest" in vars(Trainer):
        del Trainer.latest
    it = Trainer()
    it.training_step(*classes(1)[0])
    arguments = given(it, scheduler=it.scheduler, max_norm=1.0)
    mine = {
        "attributes": lambda: look(vars(it)),
        "meters": lambda: {
            name: (Same(meter), meter.count, meter.sum) for name, meter in it.meters.items()
        },
        "class": lambda: (Trainer.instances, look(Trainer.losses_of_all), Trainer.latest),
    }
    return it.training_step, arguments, standard(arguments) | mine


_UPDATES = 0
_HISTORY: list[float] = []
_CONFIG = SimpleNamespace()
_AVERAGE: Tensor | None = None
_PARTS = SimpleNamespace()


def step_of_a_script(
    x: Tensor,
    y: Tensor,
    history: Any = [],  # noqa: B006
    settings: Any = {"calls": 0},  # noqa: B006
) -> float:
    """A notebook's step: of globals, default arguments and attributes of this function."""
    global _UPDATES, _AVERAGE
    _PARTS.optimizer.param_groups[0]["lr"] = _CONFIG.lr * _CONFIG.decay**_UPDATES
    loss = train(_PARTS, x, y)
    _UPDATES += 1
    _HISTORY.append(loss.item())
    _CONFIG.seen["examples"] += len(x)
    _CONFIG.latest = loss.item()
    _AVERAGE = loss if _AVERAGE is None else 0.9 * _AVERAGE + 0.1 * loss
    history.append(loss.item())
    settings["calls"] += 1
    step_of_a_script.calls = getattr(step_of_a_script, "calls", 0) + 1
    return loss.item()


@stress("globals of the module, default arguments, attributes of the function")
def module_globals() -> Stressed:
    global _UPDATES, _CONFIG, _AVERAGE
    seed()
    _UPDATES, _AVERAGE = 0, None
    _HISTORY.clear()
    _CONFIG = SimpleNamespace(lr=2e-2, decay=0.97, seen={"examples": 0})
    fill(_PARTS, 2e-2)
    history, settings = step_of_a_script.__defaults__
    history.clear()
    settings["calls"] = 0
    vars(step_of_a_script).clear()
    arguments = given(_PARTS, loss=plain)
    mine = {
        "integer": lambda: _UPDATES,
        "globals": lambda: look((_HISTORY, _CONFIG, _AVERAGE)),
        "default arguments": lambda: look(step_of_a_script.__defaults__),
        "the function's attributes": lambda: look(vars(step_of_a_script)),
    }
    return step_of_a_script, arguments, standard(arguments) | mine


@stress("a callable object in a partial, a decorated call, counters that are iterators")
def callable_object() -> Stressed:
    """`itertools.count` and a list's iterator can both be put back (`copy.copy`)."""
    seed()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            wrapper.calls += 1
            return function(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    class Step:
        def __init__(self) -> None:
            fill(self, 2e-2)
            self.number = itertools.count()
            self.unlabelled = iter([x + 0.1 for x, _ in classes() * 30])
            self.latest: int | None = None

        def __call__(self, options: dict[str, Any], x: Tensor, y: Tensor) -> float:
            self.latest = next(self.number)
            options["used"] += 1
            self.optimizer.param_groups[0]["lr"] = 2e-2 * options["decay"] ** self.latest
            return self.train(x + 0.1 * next(self.unlabelled), y)

        @counted
        def train(self, x: Tensor, y: Tensor) -> float:
            return train(self, x, y).item()

    it = Step()
    options = {"decay": 0.98, "used": 0}
    arguments = given(it)
    mine = {
        "step number": lambda: (repr(it.number), it.latest),
        "unlabelled": lambda: it.unlabelled.__length_hint__(),
        "options": lambda: look(options),
        "calls": lambda: Step.train.calls,
        "attributes": lambda: [Same(thing) for thing in (it.model, it.optimizer, it.scaler)],
    }
    return functools.partial(it, options), arguments, standard(arguments) | mine
