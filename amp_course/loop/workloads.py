"""Three trainings to measure recipes on: matmuls, convolutions, a small language model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from amp_course.kit import data, models
from amp_course.kit.data import Batch
from amp_course.loop.recipe import AnyRecipe
from amp_course.loop.stepper import LossFn, MakeOptimizer, Stepper
from amp_course.loop.train import RunRecord, run

_PASSES = 20  # over the digits, each in a new order, before the orders repeat
Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Session:
    """A model being trained: each `run(n)` continues where the last one stopped."""

    recipe: AnyRecipe
    stepper: Stepper
    batches: Iterator[Batch]
    started: bool = field(default=False, init=False)

    def run(self, steps: int, max_seconds: float | None = None) -> RunRecord:
        """Train `steps` more steps; only the first call counts memory and warms up."""
        first, self.started = not self.started, True
        return run(
            self.stepper,
            itertools.islice(self.batches, steps),
            self.recipe,
            warmup=3 if first else 0,
            memory=first,
            max_seconds=max_seconds,
            progress=False,
        )


@dataclass(frozen=True)
class Workload:
    """One training, the same for every recipe: same first weights, same batches.

    steps:    how many it takes by default
    start:    recipe → a new Session
    accuracy: session → share of right answers on held-out data; None if it has no classes
    """

    name: str
    title: str
    steps: int
    start: Callable[[AnyRecipe], Session]
    accuracy: Callable[[Session], float] | None


def simple_net(
    device: torch.device, width: int | None = None, batch_size: int | None = None
) -> Workload:
    """The three-layer net of the Paddle text: width 4096, batch 512 on a GPU, smaller on a CPU."""
    width = width or models.SimpleNet.width_for(device)
    batch_size = batch_size or models.SimpleNet.batch_size_for(device)

    def start(recipe: AnyRecipe) -> Session:
        model = _seeded(lambda: models.SimpleNet(width)).to(device)
        batches = list(data.random_batches(width, batch_size, steps=8, seed=1, device=device))
        sgd = partial(torch.optim.SGD, lr=1e-4)
        return _session(recipe, model, sgd, nn.functional.mse_loss, batches)

    return Workload("simple_net", f"SimpleNet, width {width}, batch {batch_size}", 32, start, None)


def digits_resnet(device: torch.device, batch_size: int | None = None) -> Workload:
    """The ResNet with batch norm on scikit-learn's digits."""
    digits = data.digits()
    batch_size = batch_size or models.DigitsResNet.batch_size_for(device)

    def start(recipe: AnyRecipe) -> Session:
        model = _seeded(lambda: models.DigitsResNet.for_device(device))
        batches = data.digit_batches(digits, batch_size, epochs=_PASSES, seed=1, device=device)
        sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        return _session(recipe, model, sgd, nn.functional.cross_entropy, batches)

    def accuracy(session: Session) -> float:
        return session.stepper.accuracy(digits.test_x.to(device), digits.test_y.to(device))

    return Workload("digits_resnet", f"ResNet on digits, batch {batch_size}", 64, start, accuracy)


def char_gpt(device: torch.device, batch_size: int | None = None) -> Workload:
    """The character GPT on the text of Python's own documentation."""
    text = data.CharText(data.documentation_text())
    batch_size = batch_size or models.CharGPT.batch_size_for(device)
    steps = 40

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def start(recipe: AnyRecipe) -> Session:
        model = _seeded(lambda: models.CharGPT.for_device(device, vocab_size=len(text.vocabulary)))
        batches = data.text_batches(
            text, batch_size, model.context, steps=steps, seed=1, device=device
        )
        return _session(recipe, model, partial(torch.optim.AdamW, lr=1e-3), loss_fn, batches)

    return Workload("char_gpt", f"Character GPT, batch {batch_size}", steps, start, None)


def _session(
    recipe: AnyRecipe,
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    loss_fn: LossFn,
    batches: Iterable[Batch],
) -> Session:
    # each pass draws the same batches
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    return Session(recipe, recipe.prepare(model, make_optimizer, loss_fn), endless)


def _seeded(build: Callable[[], Model]) -> Model:
    # layers draw their first weights from the global generator, which stays as it was
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()
