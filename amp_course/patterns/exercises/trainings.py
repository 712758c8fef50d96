"""A small training that the exercises on checkpoints stop, save and resume."""

import copy
import random
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Failed, Wrong, alike, call_answer

KEYS = ("model", "optimizer", "scaler", "scheduler", "rng", "step")


class Run:
    """A training with all that a checkpoint holds; `draw` draws its batches.

    amp:   fp16 autocast and a scaler, which grows every second step; without it fp32, and `scaler`
           is None
    every: micro-batches per update
    parts: model, optimizer, scaler, scheduler
    """

    def __init__(
        self, draw: random.Random, *, amp: bool = True, every: int = 1, init_scale: float = 2.0**7
    ) -> None:
        self.draw, self.amp, self.every = draw, amp, every
        self.model = nn.Sequential(
            nn.Linear(10, 10),
            nn.BatchNorm1d(10),
            nn.Tanh(),
            nn.Dropout(0.4),
            nn.Linear(10, 10, bias=False),
        )
        # In no forward pass, so it gets no gradient.
        self.model[3].spare = nn.Parameter(torch.ones(10, 10))
        parameters = [*self.model.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() > 1]},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)
        self.scheduler: Any = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=2) if amp else None
        )
        self.parts: tuple[Any, ...] = self.model, self.optimizer, self.scaler, self.scheduler

    def train(self, count: int, overflow_at: int = -1) -> None:
        """Run `count` micro-batches, of which one may overflow;
        after every `every`-th the weights are updated.
        """
        generator = torch.Generator().manual_seed(self.draw.getrandbits(31))
        scaler = self.scaler or torch.amp.GradScaler("cpu", enabled=False)
        for number in range(count):
            size = 1e6 if number == overflow_at else 1.0
            inputs = torch.randn(6, 10, generator=generator) * size
            targets = torch.randint(0, 10, (6,), generator=generator)
            with torch.autocast("cpu", dtype=torch.float16, enabled=self.amp):
                loss = cross_entropy(self.model(inputs), targets) / self.every
            scaler.scale(loss).backward()
            if (number + 1) % self.every == 0:
                scaler.step(self.optimizer)
                scaler.update()
                self.optimizer.zero_grad()
                self.scheduler.step()

    def states(self) -> dict[str, Any]:
        """Return copies of the states, by their keys in a checkpoint;
        the scaler's is None without one.
        """
        states = {
            key: part and part.state_dict() for key, part in zip(KEYS, self.parts, strict=False)
        }
        return copy.deepcopy({**states, "rng": torch.get_rng_state()})

    def snapshot(self) -> dict[str, Any]:
        """Return copies of all that a save or a resume may change, by what messages call it."""
        states = {
            "the random state" if key == "rng" else f"the {key}": state
            for key, state in self.states().items()
        }
        states["the gradients"] = {
            name: "None" if p.grad is None else p.grad.clone()
            for name, p in self.model.named_parameters()
        }
        states["which parameters are trained"] = [p.requires_grad for p in self.model.parameters()]
        states["the modes of the layers"] = [layer.training for layer in self.model.modules()]
        return states

    def stepped(self) -> str:
        """Say whose parameters the optimizer steps."""
        own = {id(p) for p in self.model.parameters()}
        steps = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        return "the model's parameters" if steps <= own else "others"


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Name what differs between two snapshots of a run."""
    *names, last = ["nothing", *(name for name in before if not alike(before[name], after[name]))]
    return f"{', '.join(names[1:])} and {last}" if names[1:] else last


def call_load(load: Any, case: str, *arguments: Any) -> Any:
    """Call a reader's function that restores a run, and explain a scaler without a scale."""
    try:
        return call_answer(load, case, *arguments)
    except Failed as failed:
        if "_scale is None" not in str(failed.__cause__):
            raise
        raise Wrong(
            f"{case}, `update` or `step` of the new scaler raises an error, since it has not "
            "scaled a loss yet. Restore it with its `load_state_dict`, and call no other method"
        ) from failed.__cause__


def read_file(path: Path) -> Any:
    """Return what a file holds. Raises Wrong if there is none,
    or one that `weights_only=True` refuses.
    """
    if not path.is_file():
        raise Wrong("after the save there is no file at the path")
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        cause = f"({type(error).__name__}). Is it written by `torch.save`?"
        if found:
            cause = (
                f"because of `{found[1]}`. It accepts `state_dict()`s, tensors, and plain Python "
                "numbers, texts, lists and dicts"
            )
        raise Wrong(f"`torch.load(path, weights_only=True)` refuses the file {cause}") from error
