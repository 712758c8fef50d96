"""What casts cost: an fp32 island among layers in 16 bits, and the width from which a matmul saves
more than its casts take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from amp_course.kit.measure import seconds_text
from amp_course.kit.tensors import short
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentences
from amp_course.speed.experiments.workbench import (
    both_recipes,
    drawn,
    is_slow,
    low_dtype,
    low_recipe,
    pick_size,
    seeded,
    training,
)

ISLAND = "AMP with an island"


class Blocks(nn.Module):
    """Map (batch, width) to the same shape by three blocks of linear and GELU.

    island: the middle block runs in fp32
    """

    def __init__(self, width: int, island: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.island = island

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if self.island and number == 1:
                with torch.autocast(x.device.type, enabled=False):
                    x = nn.functional.gelu(layer(x.float()))
            else:
                x = nn.functional.gelu(layer(x))
        return x


def fp32_island(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Finding:
    """Train blocks in fp32, under AMP, and under AMP with the middle one in fp32."""
    device = torch.device(device)
    width = pick_size(device, cpu=512, slow=128, gpu=4096)
    batch = pick_size(device, cpu=256, slow=64, gpu=4096)
    plain, broken = (seeded(partial(Blocks, width, island), device) for island in (False, True))
    x, y = (drawn(batch, width, device=device, seed=seed) for seed in (1, 2))
    sides = {name: training(plain, x, y, recipe) for name, recipe in both_recipes(device).items()}
    sides[ISLAND] = training(broken, x, y, low_recipe(device))
    found = compare(sides, device, seconds=seconds)
    claim = sentences(
        "the middle one of three blocks runs with autocast off, so a third of the matmuls is in "
        "fp32",
        found.describe("AMP", ISLAND, who="AMP without the island", than="with it"),
        found.describe(ISLAND, "fp32"),
        "keep only those islands that your numbers need"
        if found.ratio("AMP", ISLAND).verdict == "faster"
        else "",
    )
    return Finding("An fp32 island", found, claim)


@dataclass(frozen=True, repr=False, kw_only=True)
class BreakEven(Finding):
    """A linear layer's matmul in fp32 and in 16 bits, and the casts that autocast adds, by width.

    saved: width → seconds that the matmul alone saves in 16 bits; negative where it is slower
    cost:  width → seconds of the casts: input and weight to 16 bits, output back to fp32
    """

    batch: int
    fmt: str
    saved: dict[int, float]
    cost: dict[int, float]


def break_even(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> BreakEven:
    """Time a linear layer's matmul in both formats and the casts around it, by width."""
    device, low = torch.device(device), low_dtype(torch.device(device))
    largest = pick_size(device, cpu=1024, slow=128, gpu=8192)
    batch = pick_size(device, cpu=128, slow=64, gpu=2048)
    widths = (largest // 16, largest // 4, largest)
    sides: dict[str, Callable[[], object]] = {}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for width in widths:
            x, w = drawn(batch, width, device=device), drawn(width, width, device=device, seed=2)
            low_x, low_w = x.to(low), w.to(low)
            sides[f"{width:,}: fp32"] = partial(torch.matmul, x, w)
            sides[f"{width:,}: {short(low)}"] = partial(torch.matmul, low_x, low_w)
            sides[f"{width:,}: casts"] = partial(_cast, x, w, low_x @ low_w, low)
        base = {side: f"{side.partition(':')[0]}: fp32" for side in sides}
        found = compare(sides, device, seconds=seconds, base=base)
    return judge_break_even(found, batch, widths, short(low), is_slow(device, low))


def judge_break_even(
    found: Comparison, batch: int, widths: tuple[int, ...], fmt: str, slow_format: bool
) -> BreakEven:
    """Find the width from which the matmul saves more than the casts cost, and describe it."""
    saved, cost = {}, {}
    for width in widths:
        fp32, low, casts = (
            found.timing(f"{width:,}: {what}").median for what in ("fp32", fmt, "casts")
        )
        saved[width], cost[width] = fp32 - low, casts
    clauses = [
        f"at width {width:,}, the matmul {_saves(saved[width])} and the casts take "
        f"{seconds_text(cost[width])}"
        for width in (widths[0], widths[-1])
    ]
    too_narrow = [width for width in widths if saved[width] <= cost[width]]
    pays = [width for width in widths if width > max(too_narrow, default=0)]
    if pays:
        clauses.append(f"with {batch:,} rows, casting pays from width {pays[0]:,} on")
    elif slow_format:
        clauses.append(
            f"casting pays at no width here, since {fmt} has no fast units on this machine"
        )
    else:
        clauses.append(f"casting does not pay up to width {widths[-1]:,} here")
    title, claim = "From which width a matmul pays for its casts", sentences(*clauses)
    return BreakEven(
        title, found, claim, ("cast_cost",), batch=batch, fmt=fmt, saved=saved, cost=cost
    )


def _cast(x: Tensor, w: Tensor, low_y: Tensor, low: torch.dtype) -> None:
    x.to(low), w.to(low), low_y.float()


def _saves(seconds: float) -> str:
    return f"saves {seconds_text(seconds)}" if seconds > 0 else f"loses {seconds_text(-seconds)}"
