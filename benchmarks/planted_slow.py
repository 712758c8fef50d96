"""Ten training steps with one planted cause each, and the same steps without it: what `explain` is
tried on.

All are real steps on real tensors, sized for a CPU. Those that need fast 16-bit matmuls use fp32
where the machine has none, and the fp32 island becomes an fp64 one there. Each step is a function
of a batch; the ones with a loader bring it along.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from amp_course.speed.experiments.datasets import AugmentedDigits, SlowSource
from amp_course.speed.experiments.workbench import is_slow

Step = Callable[..., Any]
MANY_THREADS = 16


@dataclass(frozen=True)
class Planted:
    """A step with one fault.

    name:   in words
    causes: what `explain` may call it
    build:  → the slow step and its batches; with True, the same without the fault
    same_work: whether the fixed step does the same; if not, their times do not compare
    many_threads: whether the fault is the number of torch's threads, which the caller sets
    """

    name: str
    causes: tuple[str, ...]
    build: Callable[[bool], tuple[Step, Iterable[Any]]]
    many_threads: bool = False
    same_work: bool = True


def low_is_fast() -> bool:
    """Return True if bf16 matmuls are about as fast as fp32's on this CPU, or faster."""
    return not is_slow(torch.device("cpu"), torch.bfloat16)


def region() -> AbstractContextManager[Any]:
    """Open an autocast region in bf16 where that pays, else one that changes nothing."""
    return torch.autocast("cpu", torch.bfloat16, enabled=low_is_fast())


def _net(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _batches(width: int, outputs: int, size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, width, generator=generator),
            torch.randn(size, outputs, generator=generator),
        )
        for _ in range(4)
    ]


def _training(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[Tensor], Any] = lambda loss: None,
) -> Step:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        with region():
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss)

    return step


def _reads(fixed: bool) -> tuple[Step, Iterable[Any]]:
    model = _net(128, 128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    total = torch.zeros(())

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal total
        with region():
            outputs = model(x)
            loss = F.mse_loss(outputs, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worst = (outputs.detach() - y).square().mean(dim=1)
        if fixed:
            total = torch.maximum(total, worst.max())
        else:
            for example in worst:
                if example > total:
                    total = example

    return step, _batches(128, 128, 512)


def _casts(fixed: bool) -> tuple[Step, Iterable[Any]]:
    width, depth = 1024, 24
    layer = nn.Linear(width, width)
    to = torch.bfloat16
    if (
        not low_is_fast()
    ):  # weights that are kept in 16 bits to save memory, and computed with in fp32
        layer, to = layer.bfloat16(), torch.float32
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        hidden = x.to(to)
        weight = layer.weight.to(to)
        for _ in range(depth):
            if not fixed:
                weight = layer.weight.to(to)
            hidden = torch.tanh(hidden @ weight)
        F.mse_loss(hidden.float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, _batches(width, width, 16)


def _source(fixed: bool) -> tuple[Step, Iterable[Any]]:
    return _classifier(), DataLoader(
        SlowSource(256, 0.0 if fixed else 0.001, size=16), batch_size=16
    )


def _transform(fixed: bool) -> tuple[Step, Iterable[Any]]:
    data: Any = AugmentedDigits(256, size=16)
    if fixed:
        data = list(data)  # transformed once
    return _classifier(), DataLoader(data, batch_size=32)


def _classifier() -> Step:
    model = _net(256, 256, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        with region():
            loss = F.cross_entropy(model(x.flatten(1)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tiny(fixed: bool) -> tuple[Step, Iterable[Any]]:
    width = 512 if fixed else 8
    model = _net(*[width] * 25)
    return _training(model), _batches(width, width, 256 if fixed else 4)


def _odd(fixed: bool) -> tuple[Step, Iterable[Any]]:
    width = 256 if fixed else 255
    model = _net(*[width] * 7)
    return _training(model), _batches(width, width, width)


def _island(fixed: bool) -> tuple[Step, Iterable[Any]]:
    first, middle, last = nn.Linear(768, 768), nn.Linear(768, 768), nn.Linear(768, 768)
    high = torch.float32 if low_is_fast() else torch.float64
    model = nn.ModuleList([first, middle, last])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        with region():
            hidden = F.relu(first(x))
            if fixed:
                hidden = middle(hidden)
            else:
                with torch.autocast("cpu", enabled=False):
                    hidden = F.linear(hidden.to(high), middle.weight.to(high), middle.bias.to(high))
                hidden = hidden.float()
            loss = F.mse_loss(last(F.relu(hidden)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, _batches(768, 768, 512)


def _optimizer(fixed: bool) -> tuple[Step, Iterable[Any]]:
    model = _net(*[64] * 41)
    adam = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True if fixed else None, foreach=None if fixed else False
    )
    return _training(model, adam), _batches(64, 64, 64)


def _logging(fixed: bool) -> tuple[Step, Iterable[Any]]:
    model, page = _net(256, 256, 256), io.StringIO()

    def write(loss: Tensor) -> None:
        if not fixed:
            page.seek(0)
            for name, parameter in model.named_parameters():
                print(name, parameter, file=page)

    return _training(model, after=write), _batches(256, 256, 256)


def _threads(fixed: bool) -> tuple[Step, Iterable[Any]]:
    return _training(_net(*[384] * 6)), _batches(384, 384, 64)


PLANTED = (
    Planted("values read one by one", ("host-waits",), _reads),
    Planted("a cast in a loop", ("repeated-casts",), _casts),
    Planted("a starved loader", ("slow-source",), _source),
    Planted("a tiny net", ("small-ops",), _tiny, same_work=False),
    Planted("odd sizes", ("odd-sizes",), _odd),
    Planted("an island in a wider dtype", ("fp32-island", "fp64-island"), _island),
    Planted("an unfused optimizer", ("unfused-optimizer",), _optimizer),
    Planted("logging", ("logging",), _logging),
    Planted("a transform", ("data-preparation",), _transform),
    Planted("too many threads", ("too-many-threads",), _threads, many_threads=True),
)
