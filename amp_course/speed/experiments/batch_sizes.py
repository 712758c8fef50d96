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
from amp_course.loop.recipe import FP32
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import compare, figures, sentence
from amp_course.speed.experiments.workbench import drawn, low_recipe, pick_size, seeded

RECIPES = ("fp32", "AMP")
SIZES = {"cpu": (16, 64, 256)}  # of batches; a GPU takes larger ones


@dataclass(frozen=True, repr=False)
class BatchSizes(Finding):
    """One net, trained in fp32 and under AMP at several batch sizes.

    batches: the sizes, ascending
    peaks:   recipe → the peak bytes of a step at each size
    """

    batches: tuple[int, ...]
    peaks: Mapping[str, tuple[int, ...]]

    title = "What freed memory buys"

    def rate(self, recipe: str, batch: int) -> float:
        """Return how many samples a second a recipe trains on in batches of a size."""
        assert self.comparison is not None
        return batch / self.comparison.timing(f"{recipe}, batch {batch}").median

    @property
    def largest(self) -> int:
        """The batch that fits under AMP in the memory that fp32 takes for the largest one.

        Activations grow with the batch and all else is constant, so the peaks lie on a line.
        """
        first, last = self.peaks["AMP"][0], self.peaks["AMP"][-1]
        a_sample = (last - first) / (self.batches[-1] - self.batches[0])
        return self.batches[0] + int((self.peaks["fp32"][-1] - first) / a_sample)

    def blocks(self) -> Iterator[Block]:
        """Show a row for each batch size, and what the numbers say."""
        rows = [["batch", *(f"{one}, {what}" for one in RECIPES for what in ("peak", "samples/s"))]]
        for place, batch in enumerate(self.batches):
            row = [f"{batch:,}"]
            for one in RECIPES:
                rate = "too busy to tell" if self.busy else figures(self.rate(one, batch))
                row += [bytes_text(self.peaks[one][place]), rate]
            rows.append(row)
        yield f"**{self.title}**"
        yield Table(rows, right=rows[0])
        yield self.sentence

    @property
    def sentence(self) -> str:
        """Say how large a batch fits, which holds on a busy machine too, and what that brings."""
        memory, last = bytes_text(self.peaks["fp32"][-1]), self.batches[-1]
        room = (
            f"in the {memory} that fp32 takes for a batch of {last:,}, AMP has room for "
            f"{self.largest:,}"
        )
        return sentence(room, self.busy or self.claim)

    @property
    def claim(self) -> str:
        """Compare the smallest and the largest batch, by samples a second."""
        first, last = self.batches[0], self.batches[-1]
        fp32, amp = (self.rate(one, last) / self.rate(one, first) for one in RECIPES)
        return (
            f"with batches of {last:,} instead of {first:,}, this machine trains on "
            f"{figures(fp32)} times as many samples a second in fp32, and on {figures(amp)} times "
            f"as many under AMP"
        )


def batch_sizes(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> BatchSizes:
    """Train a small convolutional net with Adam at three batch sizes, in fp32 and under AMP;
    count the bytes of a step of each, then time the steps in turn.
    """
    device = torch.device(device)
    channels = pick_size(device, cpu=16, slow=4, gpu=64)
    batches = SIZES.get(device.type, (64, 512, 4096))
    net = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10),
        ),
        device,
    )  # fmt: skip
    sides, peaks = {}, dict[str, tuple[int, ...]]()
    for name, recipe in zip(RECIPES, (FP32, low_recipe(device)), strict=True):
        for batch in batches:
            x = drawn(batch, 1, 16, 16, device=device)
            y = torch.arange(batch, device=device) % 10
            stepper = recipe.prepare(copy.deepcopy(net), torch.optim.Adam, F.cross_entropy)
            step = partial(stepper.step, x, y)
            step()  # Adam makes its state in the first one
            memory = step_memory(stepper.model, stepper.optimizer, step, batch=(x, y))
            peaks[name] = (*peaks.get(name, ()), memory.peak)
            sides[f"{name}, batch {batch}"] = step
    return BatchSizes(compare(sides, device, seconds=seconds), (), batches, peaks)
