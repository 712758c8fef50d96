"""Steps that change more than weights. `audit` has to leave everything as it was.

    step, arguments, probes = stress.make()

`probes` are functions without arguments; each returns a fingerprint of something that
`audit(step, **arguments)` may not change. How a test uses them is in `fingerprints`. `make()`
makes new objects each time, and may change the process's switches: call it in a `sandbox()`. Most
are written in stress_*.toml; one with a whole trainer is here.

What no audit can put back is left out: a generator moved on, a file written, a line printed.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.audit.fingerprints import Place, Probes, Same, look, standard
from tests.audit.parts import classes, half, mlp
from tests.audit.written import SOUND, live, make, read

# The step, the arguments of `audit`, what has to stay the same
Stressed = tuple[Callable[..., Any], dict[str, Any], Probes]


@dataclass(frozen=True)
class Stress:
    """One step; each `make()` makes a new one.

    sound: a finding would be a false alarm. If False, `audit` may accuse it, or even raise, as long
           as everything stays as it was
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
    for batch in islice(cycle(arguments["batches"]), case.get("first", 0)):
        step(*batch)
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


class Meter:
    """An average, with slots."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0

    def update(self, value: float) -> None:
        self.count, self.sum = self.count + 1, self.sum + value


class Trainer:
    """A class as in most projects: everything is an attribute, or an attribute of one."""

    losses_of_all: list[float] = []  # noqa: RUF012 the class's own

    def __init__(self) -> None:
        self.model = mlp()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.9)
        self.meters = {"loss": Meter(), "examples": Meter()}
        self.state = SimpleNamespace(global_step=0, best=math.inf, log_history=[])
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
        self.state.best = min(self.state.best, loss)
        self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss
        self.meters["loss"].update(loss)
        self.meters["examples"].update(examples)
        Trainer.losses_of_all.append(loss)
        type(self).latest = self.state.global_step
        self.state.log_history.append({"loss": self.running, "step": self.state.global_step})


def trainer() -> Stressed:
    seed()
    Trainer.losses_of_all = []
    it = Trainer()
    it.training_step(*classes(1)[0])
    own = {name: getattr(it, name) for name in ("model", "optimizer", "scaler", "scheduler")}
    arguments = own | {"batches": classes(), "max_norm": 1.0}
    probes = {
        "attributes": lambda: look(vars(it)),
        "meters": lambda: [(Same(one), one.count, one.sum) for one in it.meters.values()],
        "class": lambda: (look(Trainer.losses_of_all), Trainer.latest),
    }
    return it.training_step, arguments, standard(arguments) | probes


STRESSES.append(
    Stress("a method: attributes of the trainer, of its parts and of its class", trainer)
)
