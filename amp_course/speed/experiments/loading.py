"""Is it the data? Find out if a loop waits for its loader or computes, and what that means for AMP.

`open_loader` ends every worker that it started, even if you interrupt the kernel.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from amp_course.kit.measure import CpuWait, Timing, seconds_text, synchronize
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import FP32, Recipe
from amp_course.speed.experiments.datasets import AugmentedDigits
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentences
from amp_course.speed.experiments.workbench import SGD, both_recipes, pick_size, seeded

Batch = tuple[Tensor, Tensor]
FROM_LOADER, PRELOADED = "from the loader", "preloaded"
_SIZE, _BATCH = 32, 64
WAITS = 0.1  # the share of waiting above which the loader is the bottleneck


@contextmanager
def open_loader(dataset: Dataset[Any], batch_size: int, workers: int) -> Iterator[DataLoader[Any]]:
    """Yield a DataLoader whose workers stay from epoch to epoch and end with the block.

    The global random state is left alone.
    """
    before = set(multiprocessing.active_children())
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork of a process with threads, and torch of more workers than
        # cores: both are intended here.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader = DataLoader(
            dataset,
            batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
            # by default it draws the workers' seeds from the global state
            generator=torch.Generator().manual_seed(0),
        )
        try:
            yield loader
        finally:
            # By default they end when the iterator is collected, which a traceback can delay.
            batches: Any = loader._iterator
            if batches is not None:
                batches._shutdown_workers()
            # those of a start that was interrupted
            for worker in set(multiprocessing.active_children()) - before:
                worker.terminate()
                worker.join(5)


def read(batches: Iterable[Any], use: Callable[[Any], object] = lambda batch: None) -> None:
    """Pass every batch of one epoch to `use`."""
    for batch in batches:
        use(batch)


@dataclass(frozen=True)
class Pace:
    """How long a loop with a worker waited for each batch, and how long it computed."""

    waiting: Timing
    computing: Timing

    @property
    def sentence(self) -> str:
        """The bottleneck, and what a faster step could buy."""
        waited, computed = sum(self.waiting.samples), sum(self.computing.samples)
        share = waited / (waited + computed)
        bottleneck = "the loader is the bottleneck. A faster step only waits longer"
        if share < WAITS:
            bottleneck = "the step is the bottleneck, and a faster step makes a faster loop"
        return self.waiting.busy or sentences(
            f"after the first batch, the loop waits {share:.0%} of the time "
            f"({seconds_text(self.waiting.median)} of waiting and "
            f"{seconds_text(self.computing.median)} of computing a step): {bottleneck}"
        )


def measure_pace(
    loader: DataLoader[Any], step: Callable[[Any], object], device: torch.device
) -> Pace:
    """Run a loop, and time its waiting and its computing; the first batch is not timed.

    It waits for the device after each step, or queued work would count as waiting for the next
    batch.
    """
    waited, computed, wait = list[float](), list[float](), CpuWait()
    with wait:
        started = time.perf_counter()
        for batch in loader:
            got = time.perf_counter()
            step(batch)
            synchronize(device)
            done = time.perf_counter()
            waited.append(got - started)
            computed.append(done - got)
            started = done
    return Pace(Timing(tuple(waited[1:]), wait.share), Timing(tuple(computed[1:]), wait.share))


def loader_bound(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Train on augmented digits in fp32 and under AMP, from a loader, then preloaded."""
    device = torch.device(device)
    width = pick_size(device, cpu=1024, slow=128, gpu=4096)
    dataset = AugmentedDigits(3 * _BATCH, _SIZE)
    recipes = both_recipes(device)
    with ExitStack() as stack:
        loaders = {name: stack.enter_context(open_loader(dataset, _BATCH, 1)) for name in recipes}
        preloaded = [(x.to(device), y.to(device)) for x, y in loaders["fp32"]]
        sides: dict[str, Callable[[], object]] = {}
        for name, recipe in recipes.items():
            for feed, batches in ((FROM_LOADER, loaders[name]), (PRELOADED, preloaded)):
                step = classifier(width, recipe, device)
                sides[f"{name}, {feed}"] = partial(read, batches, step)
        base = {side: side.replace("AMP", "fp32") for side in sides}
        base[f"fp32, {PRELOADED}"] = f"fp32, {FROM_LOADER}"
        comparison = compare(sides, device, steps=1, seconds=seconds, base=base)
        with one_thread():
            pace = measure_pace(loaders["fp32"], classifier(width, FP32, device), device)
    claim = describe_loader_bound(comparison, pace)
    return Finding("A loader that cannot keep up", comparison, claim, ("waiting",))


def describe_loader_bound(found: Comparison, pace: Pace) -> str:
    """Say what AMP changes in either loop; pace: of the fp32 loop with the loader."""
    if pace.waiting.busy:
        return pace.waiting.busy
    clauses = [
        f"with {what}, {found.describe(f'AMP, {feed}', f'fp32, {feed}', who='AMP', than='fp32')}"
        for feed, what in ((FROM_LOADER, "the loader"), (PRELOADED, "preloaded batches"))
    ]
    fix = found.describe(
        f"fp32, {PRELOADED}",
        f"fp32, {FROM_LOADER}",
        who="the fp32 loop with preloaded batches",
        than="that with the loader",
    )
    return sentences(pace.sentence, *clauses, fix)


def classifier(width: int, recipe: Recipe, device: torch.device) -> Callable[[Batch], Tensor]:
    """Return a function that trains three linear layers on a batch of digits of 32 × 32."""
    sizes = (_SIZE * _SIZE, width, width, 10)

    def make() -> nn.Module:
        first, second, last = (nn.Linear(*pair) for pair in pairwise(sizes))
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)

    stepper = recipe.prepare(seeded(make, device), SGD, nn.functional.cross_entropy)
    return lambda batch: stepper.step(batch[0].to(device), batch[1].to(device))
