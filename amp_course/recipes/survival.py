"""Which recipe survives at which batch size, if the learning rate grows with the batch.

`train_to_the_end` trains one of two small nets for one cell of the survival map.
`python -m benchmarks.survival` makes all cells, in some minutes, and records how each run ended.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.kit.data import Batches, Digits, digit_batches, digits
from amp_course.kit.models import DigitsResNet
from amp_course.kit.paths import newest_record
from amp_course.recipes.training import BaseRecipe

SIZES = (16, 32, 64, 128, 256, 512)
# the batch size of a setting's rate; the linear rule multiplies the rate by batch / BASE_SIZE
BASE_SIZE = 16
WARM_UP = 0.1  # of all steps: the rate rises to its full value, and then falls along a cosine
_GIVEN_UP = 50  # steps in a row without an update: nothing will change any more


class RawNet(nn.Module):
    """Classify raw digits (batch, 1, 8, 8) by five linear layers, without any normalisation.

    He's initialisation preserves sizes, so the grey levels 0 … 255 reach the loss: at the first
    step it is several hundred for each picture, where ln 10 = 2.3 is usual.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 128, 128, 128, 128]
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.head = nn.Linear(128, 10)
        for layer in (*self.hidden, self.head):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


@dataclass(frozen=True)
class Setting:
    """One net and how it is trained.

    rate:      the learning rate at batch 16 for a mean loss; it grows linearly with the batch
    reduction: "mean", or "sum": then the loss grows with the batch, and the rate stays constant
    epochs:    passes over the 1,437 training digits, without an incomplete last batch
    white:     the grey level of a white pixel: 1 for normalised pictures, 255 as files store it
    seeds:     each draws its own first weights and order of the pictures
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    rate: float
    epochs: int
    white: float
    seeds: tuple[int, ...] = (0, 1, 2)
    reduction: Literal["mean", "sum"] = "mean"

    def rate_for(self, batch_size: int) -> float:
        """Return the linear rule's rate: 512 → 0.96 for 0.03; 0.03 / 16 with a summed loss."""
        return self.rate / BASE_SIZE * (batch_size if self.reduction == "mean" else 1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction=self.reduction)

    def start(self, batch_size: int, seed: int) -> tuple[nn.Module, Batches, Digits]:
        """Return a model with its first weights, its batches, and the data, scaled by `white`."""
        raw = digits()
        data = Digits(raw.train_x * self.white, raw.train_y, raw.test_x * self.white, raw.test_y)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build()
        return model, digit_batches(data, batch_size, epochs=self.epochs, seed=seed), data


SETTINGS = (
    Setting("resnet", "Digits ResNet, batch norm", lambda: DigitsResNet(8), 0.03, 12, 1.0),
    Setting("raw", "Raw net, mean loss", RawNet, 1.6e-5, 30, 255.0),
    Setting("raw_sum", "Raw net, summed loss", RawNet, 1.6e-5, 30, 255.0, reduction="sum"),
)


@dataclass(frozen=True)
class RunResult:
    """How one run ended.

    accuracy:   share of right answers on the 360 held-out digits, 0 … 1; None if it diverged
    died_at:    the step, counted from 0, that made a weight or a statistic inf or NaN, or from
                which on every step was skipped; None if it survived. No run recovers from either.
    skipped:    how many steps its scaler skipped
    first_loss: the loss of the first step, which may be inf or NaN
    """

    setting: str
    recipe: str
    batch_size: int
    seed: int
    rate: float
    steps: int
    accuracy: float | None
    died_at: int | None
    skipped: int
    first_loss: float


def train_to_the_end(
    setting: Setting | str, recipe: BaseRecipe, batch_size: int, seed: int = 0
) -> RunResult:
    """Train one cell of the map: SGD with momentum, the linear rule, warm-up and cosine.

    Raises ValueError for an unknown setting or a batch larger than the data.
    """
    setting = find_setting(setting)
    model, batches, data = setting.start(batch_size, seed)
    rate = setting.rate_for(batch_size)
    session = recipe.prepare(
        model, lambda weights: torch.optim.SGD(weights, lr=rate, momentum=0.9), setting.loss
    )
    losses: list[float] = []
    idle = 0
    for step, (inputs, targets) in enumerate(batches):
        for group in session.optimizer.param_groups:
            group["lr"] = rate * _share(step, len(batches))
        skipped = session.skipped
        losses.append(session.step(inputs, targets).item())
        idle = idle + 1 if session.skipped > skipped else 0
        if idle == _GIVEN_UP or not _finite(session.model):
            break
    gave_up = step - _GIVEN_UP + 1 if idle == _GIVEN_UP else None
    died_at = gave_up if _finite(session.model) else step
    return RunResult(
        setting.name,
        recipe.name,
        batch_size,
        seed,
        rate,
        step + 1,
        None if died_at is not None else session.accuracy(data.test_x, data.test_y),
        died_at,
        session.skipped,
        losses[0],
    )


def find_setting(setting: Setting | str) -> Setting:
    """Return a setting, given itself or its name, such as "raw"; ValueError for another name."""
    if isinstance(setting, Setting):
        return setting
    known = {one.name: one for one in SETTINGS}
    if setting not in known:
        raise ValueError(f"unknown setting {setting!r}: choose one of {', '.join(known)}")
    return known[setting]


def _share(step: int, steps: int) -> float:
    """Return the share of the full rate at a step: linear warm-up, then half a cosine."""
    return min(1.0, (step + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def _finite(model: nn.Module) -> bool:
    # includes batch norm's statistics: one infinite batch ruins them, and every evaluation
    return all(bool(value.isfinite().all()) for value in model.state_dict().values())


@dataclass(frozen=True)
class FirstStep:
    """Sizes in the first step of a setting, computed in float32.

    loss_sum:         the sum of the batch's losses, which a mean would then divide
    largest_gradient: the largest absolute value in all weights' gradients
    """

    setting: str
    batch_size: int
    loss_sum: float
    largest_gradient: float


def first_step(setting: Setting | str, batch_size: int, seed: int = 0) -> FirstStep:
    """Compute the sizes that a recipe in fp16 would have to represent at the first step."""
    setting = find_setting(setting)
    model, batches, _ = setting.start(batch_size, seed)
    inputs, targets = next(iter(batches))
    logits = model(inputs)
    setting.loss(logits, targets).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    largest = max(gradient.abs().max().item() for gradient in gradients)
    total = F.cross_entropy(logits.detach(), targets, reduction="sum").item()
    return FirstStep(setting.name, batch_size, total, largest)


@dataclass(frozen=True)
class SurvivalMap:
    """All outcomes of one benchmark run, and where and when it was made."""

    outcomes: tuple[RunResult, ...]
    machine: str
    torch: str
    day: str

    def cell(self, setting: str, recipe: str, batch_size: int) -> tuple[RunResult, ...]:
        wanted = (setting, recipe, batch_size)
        return tuple(
            run for run in self.outcomes if (run.setting, run.recipe, run.batch_size) == wanted
        )

    def recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.recipe for run in self.outcomes))

    def sizes(self, setting: str) -> tuple[int, ...]:
        """Return the batch sizes of one setting, in ascending order."""
        return tuple(sorted({run.batch_size for run in self.outcomes if run.setting == setting}))

    def deaths(self, setting: str, recipe: str) -> dict[int, int]:
        """Return how many seeds diverged, by batch size, without zeros: {256: 3, 512: 5}."""
        counts = {
            size: sum(run.died_at is not None for run in self.cell(setting, recipe, size))
            for size in self.sizes(setting)
        }
        return {size: count for size, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings; JSON has no inf for a first loss."""
        rows = [asdict(run) | {"first_loss": str(run.first_loss)} for run in self.outcomes]
        return {"machine": self.machine, "torch": self.torch, "day": self.day, "outcomes": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SurvivalMap:
        rows = tuple(
            RunResult(**row | {"first_loss": float(row["first_loss"])}) for row in data["outcomes"]
        )
        return cls(rows, data["machine"], data["torch"], data["day"])


def load_survival(path: Path | None = None) -> SurvivalMap:
    """Read a recorded map: the newest in benchmarks/results, or the named file.

    Raises CourseError, with the command that makes one, if there is none.
    """
    path = path or newest_record("survival")
    return SurvivalMap.from_dict(json.loads(path.read_text("utf-8")))


# (recipe, batch size) → top-1 accuracy in percent, None where NaN was reported: ResNet-50 on
# ImageNet, 8 × V100, PyTorch 1.7, SGD, rate 0.1 × batch / 256, from an experience report to
# FlyEgle/imageclassification, not measured here. Its torch AMP run, also an O1, had 75.92.
IMAGENET = {
    ("half_bn32", 256): 75.40,
    ("half_bn32", 512): 75.70,
    ("half_bn32", 1024): 75.57,
    ("half_bn32", 2048): None,
    ("half_bn32", 4096): None,
    ("o1", 4096): 75.79,
    ("o2", 4096): 75.59,
    ("o3", 4096): None,
}
