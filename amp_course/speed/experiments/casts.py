"""What casts cost: an fp32 island in the middle of a block,
and the width from which a matmul pays for its casts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from amp_course.kit.measure import seconds_text
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import compare, sentence
from amp_course.speed.experiments.workbench import (
    drawn,
    format_name,
    is_slow,
    low_dtype,
    low_recipe,
    pick_size,
    seeded,
    training,
)

ISLAND = "AMP with an island"


class Blocks(nn.Module):
    """Map (batch, width) to the same shape by three blocks of linear and GELU;
    with an island, the middle one is in fp32.
    """

    def __init__(self, width: int, island: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.island = island

    def forward(self, x: Tensor) -> Tensor:
        """Return the shape of x."""
        for number, layer in enumerate(self.layers):
            if self.island and number == 1:
                with torch.autocast(x.device.type, enabled=False):
                    x = nn.functional.gelu(layer(x.float()))
            else:
                x = nn.functional.gelu(layer(x))
        return x


@dataclass(frozen=True, repr=False)
class Island(Finding):
    """Blocks under AMP, with and without an fp32 island."""

    width: int

    title = "An fp32 island"

    @property
    def claim(self) -> str:
        """Say what the island costs."""
        assert self.comparison is not None
        verdict = self.comparison.ratio("AMP", ISLAND).verdict
        return sentence(
            "the middle one of three blocks runs with autocast off, so a third of the matmuls is "
            "in fp32",
            self.comparison.tell("AMP", ISLAND, who="AMP without the island", than="with it"),
            self.comparison.tell(ISLAND, "fp32"),
            "keep only those islands that your numbers need" if verdict == "faster" else "",
        )


def fp32_island(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Island:
    """Train blocks in fp32, under AMP, and under AMP with the middle one in fp32."""
    device = torch.device(device)
    width = pick_size(device, cpu=512, slow=128, gpu=4096)
    batch = pick_size(device, cpu=256, slow=64, gpu=4096)
    plain = seeded(partial(Blocks, width, island=False), device)
    broken = seeded(partial(Blocks, width, island=True), device)
    x, y = drawn(batch, width, device=device), drawn(batch, width, device=device, seed=2)
    sides = {
        "fp32": training(plain, x, y),
        "AMP": training(plain, x, y, low_recipe(device)),
        ISLAND: training(broken, x, y, low_recipe(device)),
    }
    return Island(compare(sides, device, seconds=seconds), (), width)


@dataclass(frozen=True, repr=False)
class BreakEven(Finding):
    """A linear layer's matmul in fp32 and in 16 bits, and the casts that autocast adds,
    by width.
    """

    batch: int
    widths: tuple[int, ...]
    fmt: str
    slow_format: bool

    title = "From which width a matmul pays for its casts"

    def saved(self, width: int) -> float:
        """Return the seconds that the matmul alone saves in 16 bits;
        negative where it is slower.
        """
        assert self.comparison is not None
        fp32, low = (
            self.comparison.timing(f"{width:,}: {what}").median for what in ("fp32", self.fmt)
        )
        return fp32 - low

    def cost(self, width: int) -> float:
        """Return the seconds of the casts: input and weight to 16 bits, the output back."""
        assert self.comparison is not None
        return self.comparison.timing(f"{width:,}: casts").median

    @property
    def width(self) -> int | None:
        """The smallest width from which on the matmul saves more than the casts cost;
        None if there is none here.
        """
        pays = None
        for width in reversed(self.widths):
            if self.saved(width) <= self.cost(width):
                break
            pays = width
        return pays

    @property
    def claim(self) -> str:
        """Say where the casts begin to pay."""
        first, last = self.widths[0], self.widths[-1]
        told = [
            f"at width {width:,}, the matmul {_saves(self.saved(width))} and the casts take "
            f"{seconds_text(self.cost(width))}"
            for width in (first, last)
        ]
        if self.width is not None:
            told.append(f"with {self.batch:,} rows, casting pays from width {self.width:,} on")
        elif self.slow_format:
            told.append(
                f"casting pays at no width here, since {self.fmt} has no fast units on this machine"
            )
        else:
            told.append(f"casting does not pay up to width {last:,} here")
        return sentence(*told)


def break_even(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> BreakEven:
    """Time the matmul of a linear layer in both formats and the casts around it,
    for several widths.
    """
    device, low = torch.device(device), low_dtype(torch.device(device))
    largest = pick_size(device, cpu=1024, slow=128, gpu=8192)
    widths, batch = (
        (largest // 16, largest // 4, largest),
        pick_size(device, cpu=128, slow=64, gpu=2048),
    )
    sides: dict[str, Callable[[], object]] = {}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for width in widths:
            x, w = drawn(batch, width, device=device), drawn(width, width, device=device, seed=2)
            low_x, low_w = x.to(low), w.to(low)
            sides[f"{width:,}: fp32"] = partial(torch.matmul, x, w)
            sides[f"{width:,}: {format_name(low)}"] = partial(torch.matmul, low_x, low_w)
            sides[f"{width:,}: casts"] = partial(_cast, x, w, low_x @ low_w, low)
        base = {side: f"{side.partition(':')[0]}: fp32" for side in sides}
        comparison = compare(sides, device, seconds=seconds, base=base)
    slow = is_slow(device, low)
    return BreakEven(comparison, (PUBLISHED["cast_cost"],), batch, widths, format_name(low), slow)


def _cast(x: Tensor, w: Tensor, low_y: Tensor, low: torch.dtype) -> None:
    x.to(low), w.to(low), low_y.float()


def _saves(seconds: float) -> str:
    return f"saves {seconds_text(seconds)}" if seconds > 0 else f"loses {seconds_text(-seconds)}"
