"""Measure the machine: matmul rate by dtype and size, memory bandwidth, and the cost of launching
one small op.

Of several calls the fastest counts, and the formats take turns: other programs can only make an op
slower. What would take too long or need too much memory is left out, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from amp_course.kit.dtypes import DTYPES, _restored_matmul_precision, _set_tf32
from amp_course.kit.measure import CpuWait, best_seconds, busy_text, clock, seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.speed.roofline import Roofline

SIZES_CPU, SIZES_ACCELERATOR = (64, 128, 256, 512, 1024, 2048), (256, 512, 1024, 2048, 4096, 8192)
COPY_BYTES_CPU, COPY_BYTES_ACCELERATOR = 2**27, 2**30  # far more than a cache holds
LAUNCHES = 1000
# of each format at each size; one only if a turn holds fewer than three matmuls
_TURNS = 3
_MOST_SECONDS = 0.5  # a matmul that would take longer is not tried
HEADROOM = 0.8  # the share of the free memory that may be used


@dataclass(frozen=True)
class Rate:
    """The rate of the matmul x @ w.T, as in a linear layer, of size × size matrices.

    flops: per second; None where it was not timed
    why:   the reason for that, else ""
    """

    format: str
    size: int
    flops: float | None
    why: str = ""


@dataclass(frozen=True)
class Machine:
    """What was measured. `roofline()` is the part that predicts.

    device:         "cpu", "cuda"
    rates:          by format and size
    bandwidth:      bytes per second of a large copy, read and written
    launch_seconds: of one small op among many: on a GPU, the time from one launch to the next
    waited:         the share of the time in which the process waited for a CPU; None if not known
    """

    device: str
    rates: tuple[Rate, ...]
    bandwidth: float
    launch_seconds: float
    notes: tuple[str, ...] = ()
    waited: float | None = None

    @property
    def busy(self) -> str:
        """Why these numbers show nothing; "" on a quiet machine."""
        return busy_text(self.waited)

    @property
    def sizes(self) -> list[int]:
        return sorted({rate.size for rate in self.rates})

    @property
    def by_format(self) -> dict[str, dict[int, float]]:
        """Format → size → FLOPs per second, where it was timed."""
        found: dict[str, dict[int, float]] = {rate.format: {} for rate in self.rates}
        for rate in self.rates:
            if rate.flops:
                found[rate.format][rate.size] = rate.flops
        return found

    @property
    def peaks(self) -> dict[str, float]:
        """Format → the best rate at any size, in FLOPs per second."""
        return {fmt: max(rates.values()) for fmt, rates in self.by_format.items() if rates}

    @property
    def whys(self) -> dict[str, str]:
        """Format → why its smallest size that was not timed was left out."""
        reasons = {rate.format: rate.why for rate in reversed(self.rates) if rate.why}
        return {fmt: reasons[fmt] for fmt in self.by_format if fmt in reasons}

    def factor(self, fmt: str) -> float | None:
        """Return a format's rate over fp32's at the largest size that both were timed at."""
        rates, fp32 = (self.by_format.get(name, {}) for name in (fmt, "fp32"))
        sizes = rates.keys() & fp32.keys()
        return rates[max(sizes)] / fp32[max(sizes)] if sizes else None

    def roofline(self) -> Roofline:
        return Roofline(
            f"this machine ({self.device})", self.peaks, self.bandwidth, self.launch_seconds
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "peaks": self.peaks}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        read = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        read["rates"] = tuple(Rate(**rate) for rate in data["rates"])
        return cls(**{**read, "notes": tuple(data["notes"])})

    def __str__(self) -> str:
        lines = [
            f"memory     {self.bandwidth / 1e9:,.0f} GB/s",
            f"launch     {seconds_text(self.launch_seconds)} for one small op",
        ]
        for fmt, peak in self.peaks.items():
            line = f"{fmt:10} {peak / 1e9:,.{0 if peak >= 1e10 else 2}f} GFLOP/s"
            if fmt != "fp32" and not self.busy:
                line += f", {self.factor(fmt):.2g} times fp32's rate at the largest size"
            lines.append(line)
        return "\n".join([*lines, self.busy]).rstrip()


def measure_machine(
    device: torch.device | str,
    *,
    sizes: Sequence[int] | None = None,
    seconds: float = 10.0,
    tick: Callable[[str], None] = lambda what: None,
) -> Machine:
    """Measure `device` in about `seconds`, or longer where a single matmul takes longer.

    sizes: of the square matrices
    tick:  called with what was just measured, for a progress bar

    Example: measure_machine("cpu").peaks["fp32"] → 1.5e11
    """
    device = torch.device(device)
    sizes = sizes or (SIZES_CPU if device.type == "cpu" else SIZES_ACCELERATOR)
    formats = [name for name in DTYPES if name != "tf32" or device.type == "cuda"]
    with torch.no_grad(), torch.autocast(device.type, enabled=False), CpuWait() as wait:
        launch = measure_launch(device)
        tick("launch")
        bandwidth = measure_bandwidth(device)
        tick("bandwidth")
        rates = measure_rates(device, sizes, formats, seconds, tick)
    return Machine(device.type, rates, bandwidth, launch, waited=wait.share)


def measure_launch(device: torch.device) -> float:
    """Return the seconds of one op on one number, launched from Python: the best of seven runs."""
    one = torch.ones(1, device=device)
    return min(clock(lambda: one.add_(0.0), device, LAUNCHES) for _ in range(7))


def measure_bandwidth(device: torch.device) -> float:
    """Return the bytes per second, read and written, of copying a tensor larger than any cache."""
    copy_bytes = COPY_BYTES_CPU if device.type == "cpu" else COPY_BYTES_ACCELERATOR
    free = free_memory(device)
    if free is not None:
        copy_bytes = min(copy_bytes, int(free * HEADROOM) // 2)
    source = torch.ones(max(copy_bytes // 4, 1), device=device)
    target = torch.empty_like(source)
    seconds = fastest_seconds(lambda: target.copy_(source), device, least=5, budget=0.4)
    return 2 * source.nbytes / seconds


def measure_rates(
    device: torch.device,
    sizes: Iterable[int],
    formats: Iterable[str],
    seconds: float,
    tick: Callable[[str], None] = lambda what: None,
) -> tuple[Rate, ...]:
    """Time square matmuls from the smallest size up; a format that would take too long at a size is
    left out from there on.
    """
    sizes, formats = sorted(set(sizes)), tuple(formats)
    budget = seconds / max(len(sizes) * len(formats), 1)
    rates: list[Rate] = []
    with _restored_matmul_precision():
        for size in sizes:
            found: dict[str, Rate] = {}
            # so that a busy second of the machine changes one turn, not a rate
            for fmt in formats * _TURNS:
                before = found.get(fmt)
                if before and (
                    not before.flops or 3 * 2 * size**3 / before.flops > budget / _TURNS
                ):
                    continue  # one turn is enough
                known = [rate for rate in rates if rate.format == fmt]
                why = "" if before else _why_not(device, fmt, size, known[-1] if known else None)
                if why:
                    found[fmt] = Rate(fmt, size, None, why)
                    continue
                _set_tf32(fmt == "tf32")
                rate = _rate(device, fmt, size, budget / _TURNS)
                found[fmt] = max(before or rate, rate, key=lambda one: one.flops or 0.0)
            for fmt in formats:
                rates.append(found[fmt])
                tick(f"{fmt} {size}")
    return tuple(rates)


def _why_not(device: torch.device, fmt: str, size: int, smaller: Rate | None) -> str:
    if smaller and smaller.flops is None:
        return smaller.why
    needed, free = 3 * size * size * DTYPES[fmt].itemsize, free_memory(device)
    if free is not None and needed > HEADROOM * free:
        return (
            f"left out: size {size:,} needs {bytes_text(needed)}, and {bytes_text(free)} are free"
        )
    seconds = 2 * size**3 / smaller.flops if smaller and smaller.flops else 0.0
    if seconds > _MOST_SECONDS:
        return f"left out: one of size {size:,} would take {seconds:.1f} s"
    return ""


def _rate(device: torch.device, fmt: str, size: int, budget: float) -> Rate:
    try:
        own = torch.Generator(device).manual_seed(0)  # leaves the user's random stream alone
        matrix = torch.randn(size, size, generator=own, device=device).to(DTYPES[fmt])
        # Transposed as in a linear layer: on a CPU with AVX2 alone, x @ w takes ten times as long
        # in bf16.
        seconds = fastest_seconds(lambda: matrix @ matrix.T, device, least=2, budget=budget)
    except (RuntimeError, TypeError) as error:
        return Rate(fmt, size, None, str(error).strip().partition("\n")[0] or type(error).__name__)
    return Rate(fmt, size, 2 * size**3 / seconds)


def fastest_seconds(
    op: Callable[[], object], device: torch.device, *, least: int, budget: float
) -> float:
    """Return the seconds of the fastest call after the first: of at least `least` calls, and as
    many as `budget` seconds allow.
    """
    op()
    return best_seconds(op, device, least=least, budget=budget)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
