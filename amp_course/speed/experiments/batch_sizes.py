"""What the memory that AMP frees buys: a larger batch, and perhaps more samples a second."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from amp_course.kit.memory import bytes_text, step_memory
from amp_course.kit.report import Block, Table
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, number_text, sentences
from amp_course.speed.experiments.workbench import both_recipes, drawn, pick_size, seeded

RECIPES = ("fp32", "AMP")
SIZES = {"cpu": (16, 64, 256)}  # of batches; other devices take larger ones


@dataclass(frozen=True, repr=False, kw_only=True)
class BatchSizes(Finding):
    """One net, trained in fp32 and under AMP at several batch sizes.

    batches: the sizes, ascending
    peaks:   recipe → the peak bytes of a step at each size
    rates:   recipe → how many samples a second it trains on at each size
    """

    batches: tuple[int, ...]
    peaks: Mapping[str, tuple[int, ...]]
    rates: Mapping[str, list[float]]

    @property
    def largest(self) -> int:
        """The batch that fits under AMP in the memory that fp32 takes for the largest one.

        Activations grow with the batch and all else is constant, so the peaks lie on a line.
        """
        first, last = self.peaks["AMP"][0], self.peaks["AMP"][-1]
        bytes_per_sample = (last - first) / (self.batches[-1] - self.batches[0])
        return self.batches[0] + int((self.peaks["fp32"][-1] - first) / bytes_per_sample)

    def blocks(self) -> Iterator[Block]:
        rows = [["batch", *(f"{one}, {what}" for one in RECIPES for what in ("peak", "samples/s"))]]
        for place, batch in enumerate(self.batches):
            row = [f"{batch:,}"]
            for one in RECIPES:
                rate = "too busy to tell" if self.busy else number_text(self.rates[one][place])
                row += [bytes_text(self.peaks[one][place]), rate]
            rows.append(row)
        yield f"**{self.title}**"
        yield Table(rows, right=rows[0])
        yield self.sentence

    @property
    def sentence(self) -> str:
        """How large a batch fits, also on a busy machine, and what that brings."""
        memory, last = bytes_text(self.peaks["fp32"][-1]), self.batches[-1]
        return sentences(
            f"in the {memory} that fp32 takes for a batch of {last:,}, AMP has room for "
            f"{self.largest:,}",
            self.busy or self.claim,
        )


def batch_sizes(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> BatchSizes:
    """Train a small convolutional net with Adam at three batch sizes, in fp32 and under AMP: count
    the bytes of each step, then time the steps in turn.
    """
    device = torch.device(device)
    channels = pick_size(device, cpu=16, slow=4, gpu=64)
    batches = SIZES.get(device.type, (64, 512, 4096))

    def convolution(channels_in: int) -> list[nn.Module]:
        conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        return [conv, nn.BatchNorm2d(channels), nn.ReLU()]

    def make() -> nn.Module:
        layers = [*convolution(1), *convolution(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(channels, 10))

    net = seeded(make, device)
    sides, peaks = {}, dict[str, tuple[int, ...]]()
    for name, recipe in both_recipes(device).items():
        for batch in batches:
            x = drawn(batch, 1, 16, 16, device=device)
            y = torch.arange(batch, device=device) % 10
            stepper = recipe.prepare(copy.deepcopy(net), torch.optim.Adam, F.cross_entropy)
            step = partial(stepper.step, x, y)
            step()  # Adam makes its state in the first one
            memory = step_memory(stepper.model, stepper.optimizer, step, batch=(x, y))
            peaks[name] = (*peaks.get(name, ()), memory.peak)
            sides[f"{name}, batch {batch}"] = step
    return judge_batch_sizes(compare(sides, device, seconds=seconds), batches, peaks)


def judge_batch_sizes(
    found: Comparison, batches: tuple[int, ...], peaks: Mapping[str, tuple[int, ...]]
) -> BatchSizes:
    """Compare the largest batch with the smallest by samples a second."""
    rates = {
        one: [batch / found.timing(f"{one}, batch {batch}").median for batch in batches]
        for one in RECIPES
    }
    fp32, amp = (number_text(rates[one][-1] / rates[one][0]) for one in RECIPES)
    claim = (
        f"with batches of {batches[-1]:,} instead of {batches[0]:,}, this machine trains on {fp32} "
        f"times as many samples a second in fp32, and on {amp} times as many under AMP"
    )
    title = "What freed memory buys"
    return BatchSizes(title, found, claim, batches=batches, peaks=peaks, rates=rates)
