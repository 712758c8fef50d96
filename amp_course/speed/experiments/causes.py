"""Why AMP is not faster: too little work in an op, no fast units for the format, reads that wait,
sizes that fit badly.

Each function produces one cause, fixes it, and times both in turn. All take `seconds`, about what a
run may last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from amp_course.kit.models import SimpleNet
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32
from amp_course.speed.counting import count_ops, fake_tensors, totals
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import compare, figures, sentence
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

NARROW, WIDE = "narrow net", "wide net"


@dataclass(frozen=True, repr=False)
class TooLittleWork(Finding):
    """A narrow and a wide net, each in fp32 and under AMP. kernels:
    of forward and backward, by recipe.
    """

    widths: tuple[int, int]
    kernels: dict[str, int]
    fmt: str
    slow_format: bool

    title = "Too little work in each op"

    @property
    def claim(self) -> str:
        """Compare AMP with fp32 on both nets."""
        assert self.comparison is not None
        narrow, wide = (
            self.comparison.ratio(f"{net}, AMP", f"{net}, fp32") for net in (NARROW, WIDE)
        )
        each = self.comparison.timing(f"{NARROW}, fp32").median / self.kernels["fp32"]
        fixed = {
            "faster": "enough work in each matmul is the fix",
            "same": "the matmuls are still too small to win, or the rest of the step takes most "
            "of the time",
            "slower": f"more work fixes nothing here, since {self.fmt} has no fast units on this "
            f"machine"
            if self.slow_format
            else "the fix would be more work still",
        }[wide.verdict]
        return sentence(
            f"at width {self.widths[0]:,}, {narrow.tell('AMP', 'fp32')}",
            f"it launches {self.kernels['AMP']} kernels instead of {self.kernels['fp32']}: in "
            f"fp32 the step comes to {figures(each * 1e6)} µs for each of them, hardly any of it "
            f"arithmetic",
            f"at width {self.widths[1]:,}, {wide.tell('AMP', 'fp32')}: {fixed}",
        )


def too_little_work(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> TooLittleWork:
    """Train three linear layers, narrow and wide, in fp32 and under AMP."""
    device = torch.device(device)
    recipe = low_recipe(device)
    widths = (32, pick_size(device, cpu=1024, slow=128, gpu=4096))
    batches = (16, pick_size(device, cpu=128, slow=64, gpu=512))
    sides = {}
    for net, width, batch in zip((NARROW, WIDE), widths, batches, strict=True):
        model, x, y = seeded(partial(SimpleNet, width), device), *_batch(batch, width, device)
        sides[f"{net}, fp32"] = training(model, x, y, FP32)
        sides[f"{net}, AMP"] = training(model, x, y, recipe)
    kernels = {
        name: count_kernels(dtype) for name, dtype in (("fp32", None), ("AMP", recipe.dtype))
    }
    return TooLittleWork(
        compare(
            sides,
            device,
            seconds=seconds,
            base={side: side.replace("AMP", "fp32") for side in sides},
        ),
        (PUBLISHED["too_small"],),
        widths,
        kernels,
        format_name(recipe.dtype),
        is_slow(device, low_dtype(device)),
    )


def count_kernels(dtype: torch.dtype | None) -> int:
    """Count the kernels of forward and backward of three linear layers, under autocast in `dtype`
    (None: without).
    """
    with fake_tensors(), count_ops() as counter:
        model, x, y = SimpleNet(64), torch.zeros(8, 64), torch.zeros(8, 64)
        counter.calls.clear()  # what built the model is no part of a step
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
    return totals(counter.calls).kernels


@dataclass(frozen=True, repr=False)
class NoFastUnits(Finding):
    """One net in fp32 and under AMP in both 16-bit formats. slow_formats:
    those whose matmuls are slower than fp32's.
    """

    width: int
    slow_formats: tuple[str, ...]

    title = "No fast units for the format"

    @property
    def claim(self) -> str:
        """Say how each format fares, and which one to take."""
        assert self.comparison is not None
        ratios = {name: self.comparison.ratio(name, "fp32") for name in ("AMP bf16", "AMP fp16")}
        best = max(ratios, key=lambda name: ratios[name].median)
        slower = [name for name, ratio in ratios.items() if ratio.verdict == "slower"]
        if ratios[best].verdict == "faster":
            advice = f"the fix is to use {best}" if slower else "both formats have fast units here"
        elif len(self.slow_formats) == 2:
            advice = (
                "this machine has fast units for neither format: train in fp32, or use AMP "
                "for the memory alone"
            )
        elif self.slow_formats:
            (slow,) = self.slow_formats
            advice = (
                f"this machine has no fast units for {slow}, and at width {self.width:,} the "
                f"other format does not pay"
            )
        else:
            advice = f"at width {self.width:,} neither format pays: try larger matmuls"
        return sentence(*(ratio.tell(name, "fp32") for name, ratio in ratios.items()), advice)


def no_fast_units(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> NoFastUnits:
    """Train three linear layers in fp32, under AMP bf16 and under AMP fp16."""
    device = torch.device(device)
    formats = (torch.bfloat16, torch.float16)
    slow = tuple(format_name(dtype) for dtype in formats if is_slow(device, dtype))
    width, batch = (
        pick_size(device, cpu=512, slow=128, gpu=4096),
        pick_size(device, cpu=128, slow=64, gpu=512),
    )
    model, (x, y) = seeded(partial(SimpleNet, width), device), _batch(batch, width, device)
    sides = {recipe.label: training(model, x, y, recipe) for recipe in (FP32, AMP_BF16, AMP_FP16)}
    elsewhere = (PUBLISHED["no_units_cpu"],) if device.type == "cpu" else ()
    return NoFastUnits(
        compare(sides, device, seconds=seconds),
        (*elsewhere, PUBLISHED["no_units_gpu"]),
        width,
        slow,
    )


@dataclass(frozen=True, repr=False)
class ReadsEachStep(Finding):
    """The same steps, with their losses read one by one and all at once. reads:
    how often a pass asks for a value.
    """

    steps: int
    reads: dict[str, int]
    device: str

    title = "Reads that wait for the device"

    @property
    def claim(self) -> str:
        """Say what reading costs here."""
        assert self.comparison is not None
        each, once = self.reads["read each step"], self.reads["read at the end"]
        if self.device == "cpu":
            why = "a CPU has nothing queued to wait for: only a GPU shows what this cause costs"
        elif self.comparison.ratio("read at the end", "read each step").verdict == "faster":
            why = (
                "each read waited for the device to finish, and only then could the next step be "
                "queued"
            )
        else:
            why = "the device was never out of work, so the waiting does not show"
        return sentence(
            f"{self.steps} steps with `.item()` and an `if` on the loss read {each} values, and "
            f"with one read at the end {once}",
            self.comparison.tell(
                "read at the end",
                "read each step",
                who="one read at the end",
                than="reading each step",
            ),
            why,
        )


def host_reads(
    device: torch.device | str = "cpu", *, seconds: float = 1.0, steps: int = 10
) -> ReadsEachStep:
    """Train with `loss.item()` and `if loss > …` in each step, then with one read at the end;
    both log the same mean.
    """
    device = torch.device(device)
    width = 128 if device.type == "cpu" else 1024
    model, (x, y) = seeded(partial(SimpleNet, width), device), _batch(32, width, device)
    sides = {
        "read each step": _logged(training(model, x, y), steps, at_once=False),
        "read at the end": _logged(training(model, x, y), steps, at_once=True),
    }
    comparison = compare(sides, device, seconds=seconds)
    return ReadsEachStep(
        comparison,
        (PUBLISHED["host_reads"],),
        steps,
        {name: _count_reads(side) for name, side in sides.items()},
        device.type,
    )


def _logged(step: Callable[[], Tensor], steps: int, *, at_once: bool) -> Callable[[], float]:
    def read_each() -> float:
        total = 0.0
        for _ in range(steps):
            loss = step()
            if loss > 1e6:  # a read that does not look like one
                raise RuntimeError(f"the loss is {loss.item()}: the training diverged")
            total += loss.item()
        return total / steps

    def read_once() -> float:
        return torch.stack([step() for _ in range(steps)]).double().mean().item()

    return read_once if at_once else read_each


def _count_reads(side: Callable[[], object]) -> int:
    with count_ops() as counter:
        side()
    return sum(call.op == "aten._local_scalar_dense" for call in counter.calls)


@dataclass(frozen=True, repr=False)
class OddSizes(Finding):
    """Matmuls of an odd size and of the next multiple of 8, in fp32 and in 16 bits."""

    size: int
    fmt: str

    title = "Sizes that fit badly"

    @property
    def claim(self) -> str:
        """Say what one more row and column changes, for each format."""
        assert self.comparison is not None
        odd, even = f"{self.size - 1:,}", f"{self.size:,}"
        told = [
            f"in {fmt}, "
            + self.comparison.tell(
                f"{fmt} {even}", f"{fmt} {odd}", who=f"size {even}", than=f"size {odd}"
            )
            for fmt in ("fp32", self.fmt)
        ]
        faster = (
            self.comparison.ratio(f"{self.fmt} {even}", f"{self.fmt} {odd}").verdict == "faster"
        )
        advice = f"pad to {even}: rows and columns of zeros leave the product as it is"
        return sentence(
            *told,
            advice if faster else f"padding to a multiple of 8 gains nothing in {self.fmt} here",
        )


def odd_sizes(
    device: torch.device | str = "cpu", *, seconds: float = 1.5, size: int | None = None
) -> OddSizes:
    """Multiply square matrices of `size` and of `size` − 1,
    in fp32 and in the device's 16-bit format.
    """
    device = torch.device(device)
    size = size or pick_size(device, cpu=1024, slow=128, gpu=4096)
    sides, base = {}, {}
    for dtype in (torch.float32, low_dtype(device)):
        for one in (size - 1, size):
            matrix, name = drawn(one, one, device=device).to(dtype), f"{format_name(dtype)} {one:,}"
            sides[name] = partial(torch.matmul, matrix, matrix)
            base[name] = f"{format_name(dtype)} {size - 1:,}"
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        comparison = compare(sides, device, seconds=seconds, base=base)
    return OddSizes(
        comparison,
        (PUBLISHED["odd_sizes_gpu"], PUBLISHED["odd_sizes_bf16"]),
        size,
        format_name(low_dtype(device)),
    )


def _batch(size: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return drawn(size, width, device=device), drawn(size, width, device=device, seed=2)
