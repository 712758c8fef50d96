"""Why AMP is not faster: too little work in an op, no fast units for the format, reads that wait,
sizes that fit badly.

Each experiment produces one cause, fixes it, and times both in turn, in about `seconds`;
`describe_…` puts its numbers into words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import torch
from torch import Tensor

from amp_course.kit.tensors import short
from amp_course.loop.recipe import AMP_BF16, AMP_FP16, FP32
from amp_course.speed.counting import count_ops
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, number_text, sentences
from amp_course.speed.experiments.workbench import (
    both_recipes,
    drawn,
    is_slow,
    low_dtype,
    pick_size,
    three_layers,
)
from amp_course.speed.opening import step_calls

NARROW, WIDE = "narrow net", "wide net"


def too_little_work(device: torch.device | str = "cpu", *, seconds: float = 2.0) -> Finding:
    """Train three linear layers, narrow and wide, in fp32 and under AMP."""
    device = torch.device(device)
    low, wide = low_dtype(device), pick_size(device, cpu=1024, slow=128, gpu=4096)
    nets = {NARROW: (32, 16), WIDE: (wide, pick_size(device, cpu=128, slow=64, gpu=512))}
    sides = {
        f"{net}, {name}": three_layers(*sizes, device, recipe)
        for net, sizes in nets.items()
        for name, recipe in both_recipes(device).items()
    }
    base = {side: side.replace("AMP", "fp32") for side in sides}
    found = compare(sides, device, seconds=seconds, base=base)
    kernels = {"fp32": len(step_calls(64, None, 8)), "AMP": len(step_calls(64, low, 8))}
    claim = describe_too_little_work(found, (32, wide), kernels, short(low), is_slow(device, low))
    return Finding("Too little work in each op", found, claim, ("too_small",))


def describe_too_little_work(
    found: Comparison,
    widths: tuple[int, int],
    kernels: Mapping[str, int],
    fmt: str,
    slow_format: bool,
) -> str:
    """Compare AMP with fp32 on both nets; kernels: of forward and backward, by recipe."""
    narrow, wide = (found.ratio(f"{net}, AMP", f"{net}, fp32") for net in (NARROW, WIDE))
    microseconds = 1e6 * found.timing(f"{NARROW}, fp32").median / kernels["fp32"]
    fix = {
        "faster": "enough work in each matmul is the fix",
        "same": "the matmuls are still too small to win, or the rest of the step takes most of the "
        "time",
        "slower": "the fix would be more work still",
    }[wide.verdict]
    if slow_format and wide.verdict == "slower":
        fix = f"more work fixes nothing here, since {fmt} has no fast units on this machine"
    return sentences(
        f"at width {widths[0]:,}, {narrow.describe('AMP', 'fp32')}",
        f"it launches {kernels['AMP']} kernels instead of {kernels['fp32']}: in fp32 the step "
        f"comes to {number_text(microseconds)} µs for each of them, hardly any of it arithmetic",
        f"at width {widths[1]:,}, {wide.describe('AMP', 'fp32')}: {fix}",
    )


def no_fast_units(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Finding:
    """Train three linear layers in fp32, under AMP bf16 and under AMP fp16."""
    device = torch.device(device)
    slow = [short(low) for low in (torch.bfloat16, torch.float16) if is_slow(device, low)]
    width = pick_size(device, cpu=512, slow=128, gpu=4096)
    batch = pick_size(device, cpu=128, slow=64, gpu=512)
    recipes = (FP32, AMP_BF16, AMP_FP16)
    sides = {recipe.label: three_layers(width, batch, device, recipe) for recipe in recipes}
    found = compare(sides, device, seconds=seconds)
    published = (*["no_units_cpu"] * (device.type == "cpu"), "no_units_gpu")
    claim = describe_no_fast_units(found, width, slow)
    return Finding("No fast units for the format", found, claim, published)


def describe_no_fast_units(found: Comparison, width: int, slow_formats: Collection[str]) -> str:
    """Say how each format does, and which to use; slow_formats: those slower than fp32."""
    ratios = {name: found.ratio(name, "fp32") for name in ("AMP bf16", "AMP fp16")}
    best = max(ratios, key=lambda name: ratios[name].median)
    slower = [name for name, ratio in ratios.items() if ratio.verdict == "slower"]
    if ratios[best].verdict == "faster":
        advice = f"the fix is to use {best}" if slower else "both formats have fast units here"
    elif len(slow_formats) == 2:
        advice = (
            "this machine has fast units for neither format: train in fp32, or use AMP for the "
            "memory alone"
        )
    elif slow_formats:
        (slow,) = slow_formats
        advice = (
            f"this machine has no fast units for {slow}, and at width {width:,} the other format "
            f"does not pay"
        )
    else:
        advice = f"at width {width:,} neither format pays: try larger matmuls"
    return sentences(*(ratio.describe(name, "fp32") for name, ratio in ratios.items()), advice)


EACH, AT_END = "read each step", "read at the end"
_STEPS = 10


def host_reads(device: torch.device | str = "cpu", *, seconds: float = 1.0) -> Finding:
    """Train with `loss.item()` and `if loss > …` in each step, then with one read at the end."""
    device = torch.device(device)
    width = 128 if device.type == "cpu" else 1024
    sides = {
        EACH: partial(_read_each, three_layers(width, 32, device)),
        AT_END: partial(_read_once, three_layers(width, 32, device)),
    }
    found = compare(sides, device, seconds=seconds)
    reads = {name: _count_reads(side) for name, side in sides.items()}
    claim = describe_host_reads(found, reads, device.type)
    return Finding("Reads that wait for the device", found, claim, ("host_reads",))


def describe_host_reads(found: Comparison, reads: Mapping[str, int], device: str) -> str:
    """Say what reading costs here; reads: how often each side reads a value."""
    if device == "cpu":
        why = "a CPU has nothing queued to wait for: only a GPU shows what this cause costs"
    elif found.ratio(AT_END, EACH).verdict == "faster":
        why = (
            "each read waited for the device to finish, and only then could the next step be queued"
        )
    else:
        why = "the device was never out of work, so the waiting does not show"
    return sentences(
        f"{_STEPS} steps with `.item()` and an `if` on the loss read {reads[EACH]} values, and "
        f"with one read at the end {reads[AT_END]}",
        found.describe(AT_END, EACH, who="one read at the end", than="reading each step"),
        why,
    )


def _read_each(step: Callable[[], Tensor]) -> float:
    total = 0.0
    for _ in range(_STEPS):
        loss = step()
        if loss > 1e6:  # a hidden read
            raise RuntimeError(f"the loss is {loss.item()}: the training diverged")
        total += loss.item()
    return total / _STEPS


def _read_once(step: Callable[[], Tensor]) -> float:
    return torch.stack([step() for _ in range(_STEPS)]).double().mean().item()


def _count_reads(side: Callable[[], object]) -> int:
    with count_ops() as counter:
        side()
    return sum(call.op == "aten._local_scalar_dense" for call in counter.calls)


def odd_sizes(device: torch.device | str = "cpu", *, seconds: float = 1.5) -> Finding:
    """Multiply square matrices of a multiple of 8 and of one less, in fp32 and in 16 bits."""
    device = torch.device(device)
    size, low = pick_size(device, cpu=1024, slow=128, gpu=4096), low_dtype(device)
    sides, base = {}, {}
    for dtype in (torch.float32, low):
        for one in (size - 1, size):
            matrix, name = drawn(one, one, device=device).to(dtype), f"{short(dtype)} {one:,}"
            sides[name] = partial(torch.matmul, matrix, matrix)
            base[name] = f"{short(dtype)} {size - 1:,}"
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        found = compare(sides, device, seconds=seconds, base=base)
    claim = describe_odd_sizes(found, size, short(low))
    return Finding("Sizes that fit badly", found, claim, ("odd_sizes_gpu", "odd_sizes_bf16"))


def describe_odd_sizes(found: Comparison, size: int, fmt: str) -> str:
    """Say what one more row and column changes, for each format."""
    odd, even = f"{size - 1:,}", f"{size:,}"
    ratios = {name: found.ratio(f"{name} {even}", f"{name} {odd}") for name in ("fp32", fmt)}
    clauses = [
        f"in {name}, {ratio.describe(f'size {even}', f'size {odd}')}"
        for name, ratio in ratios.items()
    ]
    if ratios[fmt].verdict == "faster":
        advice = f"pad to {even}: rows and columns of zeros leave the product as it is"
    else:
        advice = f"padding to a multiple of 8 gains nothing in {fmt} here"
    return sentences(*clauses, advice)
