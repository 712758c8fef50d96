"""Is it the data? Tell a loop that waits for its loader from one that computes, and see what that
does to AMP.

`open_loader` and `read` end every worker that they started, also when you interrupt the kernel.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from amp_course.kit.measure import CpuWait, Timing, busy_text, seconds_text, synchronize
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import FP32, Recipe
from amp_course.speed.experiments.datasets import AugmentedDigits
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import compare, figures, sentence
from amp_course.speed.experiments.workbench import SGD, low_recipe, pick_size, seeded

Batch = tuple[Tensor, Tensor]
FROM_LOADER, PRELOADED = "from the loader", "preloaded"
_SIZE, _BATCH = 32, 64
WAITS = 0.1  # of a loop's time: above it, the loader sets the pace


@contextmanager
def open_loader(
    dataset: Dataset[Any],
    batch_size: int | None,
    workers: int,
    *,
    persistent: bool = True,
    **options: Any,
) -> Iterator[DataLoader[Any]]:
    """Yield a DataLoader, and end its workers with the block;
    the global random state is left alone.
    """
    before = set(multiprocessing.active_children())
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork of a process with threads, and torch of more workers than
        # cores: both are meant here.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader = DataLoader(
            dataset,
            batch_size,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
            generator=torch.Generator().manual_seed(
                0
            ),  # else it draws the workers' seeds from the global state
            **options,
        )
        try:
            yield loader
        finally:
            _shut_down(loader._iterator)
            # of a start that was interrupted half-way
            for left in set(multiprocessing.active_children()) - before:
                left.terminate()
                left.join(5)


def read(loader: DataLoader[Any], use: Callable[[Any], object] = lambda batch: None) -> None:
    """Pass every batch of one epoch to `use`; workers that are not persistent end here,
    whatever happens.
    """
    batches = iter(loader)
    try:
        for batch in batches:
            use(batch)
    finally:
        if not loader.persistent_workers:
            _shut_down(batches)


def _shut_down(batches: object) -> None:
    """End an iterator's workers now: left to itself it does so when it is collected,
    which a traceback can put off.
    """
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


@dataclass(frozen=True)
class Pace:
    """How long a loop waited for each batch, and how long it computed.

    ahead: whether the loader prepares batches while the step computes, as one with workers does
    """

    waiting: Timing
    computing: Timing
    ahead: bool

    @property
    def share(self) -> float:
        """The share of the loop's time that is spent waiting."""
        waited, computed = sum(self.waiting.samples), sum(self.computing.samples)
        return waited / (waited + computed)

    @property
    def sentence(self) -> str:
        """Name the bottleneck, and say what a faster step could buy."""
        if busy := busy_text(self.waiting.waited):
            return busy
        share = f"the loop waits for its batches {self.share:.0%} of the time"
        times = (
            f"({seconds_text(self.waiting.median)} of waiting and "
            f"{seconds_text(self.computing.median)} of computing a step)"
        )
        if self.share < WAITS:
            return sentence(
                f"{share} {times}: the step is the bottleneck, and a faster step makes a faster "
                f"loop"
            )
        if self.ahead:
            return sentence(
                f"{share} {times}: the loader is the bottleneck. A faster step only waits longer"
            )
        most = figures(1 / self.share)
        return sentence(
            f"{share} {times}: loading and computing take turns. If the step took no time at all, "
            f"the loop would be {most} "
            "times as fast. Let workers load while the step computes"
        )


def measure_pace(
    batches: Iterable[Any],
    step: Callable[[Any], object],
    device: torch.device | str = "cpu",
    *,
    steps: int = 20,
    warmup: int = 3,
) -> Pace:
    """Run a loop, at most `warmup` + `steps` batches of it, and time the waiting and the computing
    apart.

    It waits for the device after each step, or the queued work of one step would be taken for the
    waiting of the next. Raises ValueError if the batches run out before one was timed.
    Example: measure_pace(loader, lambda batch: train(*batch)).share → 0.63
    """
    device, waited, computed = torch.device(device), list[float](), list[float]()
    iterator, wait = iter(batches), CpuWait()
    try:
        with wait:
            for number in range(warmup + steps):
                started = time.perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                got = time.perf_counter()
                step(batch)
                synchronize(device)
                if number >= warmup:
                    waited.append(got - started)
                    computed.append(time.perf_counter() - got)
    finally:
        if not getattr(batches, "persistent_workers", False):
            _shut_down(iterator)
    if not waited:
        raise ValueError(
            f"the batches ran out before one was timed: give more than {warmup}, or a smaller "
            f"`warmup` (it is {warmup})"
        )
    return Pace(
        Timing(tuple(waited), wait.share),
        Timing(tuple(computed), wait.share),
        getattr(batches, "num_workers", 0) > 0,
    )


@dataclass(frozen=True, repr=False)
class LoaderBound(Finding):
    """One net, in fp32 and under AMP, fed by a loader and with its batches preloaded. pace:
    of the fp32 loop with the loader.
    """

    pace: Pace
    workers: int

    title = "A loader that cannot keep up"

    @property
    def busy(self) -> str:
        """As for any comparison; the pace counts, too."""
        return super().busy or busy_text(self.pace.waiting.waited)

    @property
    def claim(self) -> str:
        """Say what AMP does to either loop."""
        assert self.comparison is not None
        told = [
            f"with {what}, "
            f"{self.comparison.tell(f'AMP, {feed}', f'fp32, {feed}', who='AMP', than='fp32')}"
            for feed, what in ((FROM_LOADER, "the loader"), (PRELOADED, "preloaded batches"))
        ]
        fix = self.comparison.tell(
            f"fp32, {PRELOADED}",
            f"fp32, {FROM_LOADER}",
            who="the fp32 loop with preloaded batches",
            than="that with the loader",
        )
        return sentence(self.pace.sentence, *told, fix)


def loader_bound(
    device: torch.device | str = "cpu", *, seconds: float = 2.0, workers: int = 1
) -> LoaderBound:
    """Train on augmented digits in fp32 and under AMP, first from a loader,
    then on batches that are there already.
    """
    device = torch.device(device)
    width = pick_size(device, cpu=1024, slow=128, gpu=4096)
    dataset = AugmentedDigits(3 * _BATCH, _SIZE)
    with ExitStack() as stack:
        open_one = partial(open_loader, dataset, _BATCH, workers)
        loaders = {recipe: stack.enter_context(open_one()) for recipe in ("fp32", "AMP")}
        kept: list[Batch] = []
        read(loaders["fp32"], lambda batch: kept.append((batch[0].to(device), batch[1].to(device))))
        sides: dict[str, Callable[[], object]] = {}
        for name, recipe in (("fp32", FP32), ("AMP", low_recipe(device))):
            sides[f"{name}, {FROM_LOADER}"] = partial(
                read, loaders[name], classifier(width, recipe, device)
            )
            sides[f"{name}, {PRELOADED}"] = partial(_each, kept, classifier(width, recipe, device))
        base = {side: side.replace("AMP", "fp32") for side in sides} | {
            f"fp32, {PRELOADED}": f"fp32, {FROM_LOADER}"
        }
        comparison = compare(sides, device, steps=1, seconds=seconds, base=base)
        with one_thread():
            pace = measure_pace(loaders["fp32"], classifier(width, FP32, device), device, warmup=1)
    return LoaderBound(comparison, (PUBLISHED["waiting"],), pace, workers)


def classifier(width: int, recipe: Recipe, device: torch.device) -> Callable[[Batch], Tensor]:
    """Return a function that trains a net of three linear layers on a batch of augmented digits of
    32 × 32.
    """

    def make() -> nn.Module:
        layers = (
            nn.Linear(_SIZE * _SIZE, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )
        return nn.Sequential(nn.Flatten(), *layers)

    stepper = recipe.prepare(seeded(make, device), SGD, nn.functional.cross_entropy)
    return lambda batch: stepper.step(batch[0].to(device), batch[1].to(device))


def _each(batches: Iterable[Batch], use: Callable[[Batch], object]) -> None:
    for batch in batches:
        use(batch)


@dataclass(frozen=True, repr=False)
class PinnedMemory(Finding):
    """The copy of one batch to the device, from ordinary memory and from pinned memory;
    None without a GPU.
    """

    title = "pin_memory"

    @property
    def claim(self) -> str:
        """Compare the copies."""
        if self.comparison is None:
            return sentence(
                "pinned memory makes the copy to a GPU faster, and lets it overlap with computing "
                "(`non_blocking=True`). Without a GPU there is no such copy: `pin_memory=True` "
                "does nothing but warn"
            )
        return sentence(
            self.comparison.tell(
                "pinned", "ordinary", who="the copy from pinned memory", than="from ordinary memory"
            )
        )


def pinned_memory(device: torch.device | str = "cpu", *, seconds: float = 1.0) -> PinnedMemory:
    """Copy 64 MB to a GPU from ordinary and from pinned memory; says so where there is no GPU."""
    device = torch.device(device)
    if device.type != "cuda":
        return PinnedMemory(None, ())
    batch = torch.ones(2**24)
    pinned = batch.pin_memory()
    sides: dict[str, Callable[[], object]] = {
        "ordinary": lambda: batch.to(device),
        "pinned": lambda: pinned.to(device, non_blocking=True),
    }
    return PinnedMemory(compare(sides, device, seconds=seconds), ())
