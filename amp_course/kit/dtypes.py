"""Find out which number formats a device is good for, by timing a matmul in each.

What counts is what this build of torch does on this chip, so a measurement decides, not a table of
chips. Its limits: one op, one size, a fraction of a second. A busy machine blurs it, and a chip
that converts to fp32 and back as fast as it computes counts as native.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from amp_course.kit.measure import TOO_BUSY, CpuWait, clock, too_busy

State = Literal["native", "emulated", "unsupported", "unknown"]

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# Above this multiple of fp32's time a format is called emulated, below the next faster; the margins
# are for noise.
SLOWER, FASTER = 1.2, 0.9
SIZE_CPU = 512  # large enough for vector units; fp16 in software takes 0.1 s, and at 1024 1.5 s
SIZE_ACCELERATOR = 4096  # large enough to fill a GPU
LEAST_ROUNDS, ROUNDS_SECONDS, TURN_SECONDS = 3, 0.7, 0.02


@dataclass(frozen=True)
class DtypeSupport:
    """How a device computes in one format.

    native:      at most a fifth slower than fp32
    emulated:    works, but slower: numbers are converted to fp32 and back, or it runs in software
    unsupported: the matmul raised an error, or the device has no such mode
    unknown:     the machine was too busy for its times to mean anything
    """

    name: str
    state: State
    seconds: float | None  # per matmul
    times_fp32: float | None  # its time over fp32's: below 1 is faster
    note: str = ""


def dtype_support(device: torch.device | str) -> tuple[DtypeSupport, ...]:
    """Time fp32, tf32, bf16 and fp16 matmuls on `device`, and judge each; takes about a second.

    The formats take turns, so that a slow moment hits all of them. The fastest call of each counts:
    other programs only make a matmul slower, on two busy cores ten times in the median.

    Example: on a CPU with bf16 instructions → fp32 native, tf32 unsupported, bf16 native, fp16
             emulated
    """
    device = torch.device(device)
    with CpuWait() as wait:
        seconds = _matmul_seconds(device)
    busy = too_busy(wait.share)
    return tuple(judge(name, seconds[name], seconds["fp32"], busy) for name in DTYPES)


def dtype_name(dtype: torch.dtype) -> str:
    """Write a dtype for people: torch.float32 → "float32"."""
    return str(dtype).removeprefix("torch.")


def judge(name: str, measured: float | str, fp32: float | str, busy: bool = False) -> DtypeSupport:
    """Judge a format by its seconds per matmul, or the error that the matmul raised, and fp32's.

    busy: True if other programs had the CPU for so long that the times mean nothing

    Example: judge("fp16", 0.042, 0.001).state → "emulated"
    """
    if isinstance(measured, str):
        return DtypeSupport(name, "unsupported", None, None, measured)
    if busy:
        return DtypeSupport(name, "unknown", measured, None, TOO_BUSY.lower())
    if isinstance(fp32, str):
        return DtypeSupport(name, "native", measured, None, "no fp32 to compare with")
    times = measured / fp32
    if name == "tf32" and times > FASTER:
        return DtypeSupport(name, "unsupported", measured, times, "switching it on changed nothing")
    if times > SLOWER:
        return DtypeSupport(name, "emulated", measured, times, "works, but slower than fp32")
    note = "faster than fp32" if times < FASTER else ""
    return DtypeSupport(name, "native", measured, times, note)


# Intel's and AMD's instruction sets; NVIDIA's whitepapers of Volta (V100) and Ampere (A100)
_ELSEWHERE = {
    "bf16": "bf16 is fast on CPUs that have AVX512-BF16 or AMX instructions, and on NVIDIA GPUs "
    "from Ampere on",
    "fp16": "fp16 is fast on GPUs with tensor cores, NVIDIA's from Volta on, and on hardly any CPU",
}


def explain_emulated(supports: Iterable[DtypeSupport]) -> str:
    """Explain the 16-bit formats that are emulated: why they are slow, where they are not, what is
    true anyway; "" if none is emulated.

    Example: bf16 native, fp16 emulated → "fp16 is emulated here: …"
    """
    emulated = [support.name for support in supports if support.state == "emulated"]
    names = [name for name in emulated if name in _ELSEWHERE]
    if not names:
        return ""
    be, it = ("is", "it") if len(names) == 1 else ("are", "them")
    return (
        f"{' and '.join(names)} {be} emulated here: torch has no fast matmul for {it} on this "
        f"machine and falls back to a slow one, so AMP in "
        f"{' or '.join(names)} costs time here instead of saving it. That is common, and nothing "
        f"is broken. {'; '.join(_ELSEWHERE[name] for name in names)}. Everything but the times is "
        "as real here as there: how numbers round, overflow and vanish, what autocast decides, "
        "what the scaler does, and how many bytes a step needs."
    )


def _matmul_seconds(device: torch.device) -> dict[str, float | str]:
    """Return the least seconds of each format's matmul or, in their place, why it does not run."""
    size = SIZE_CPU if device.type == "cpu" else SIZE_ACCELERATOR
    # A generator of its own, no autocast, no graph: a report changes nothing for its caller.
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(size, size, generator=generator, device="cpu").to(device)
    found: dict[str, float | str] = {}
    samples: dict[str, list[float]] = {}
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _restored_matmul_precision():
        for name in DTYPES:
            if name == "tf32" and device.type != "cuda":
                found[name] = "a mode of NVIDIA GPUs"
                continue
            try:
                _one_matmul(name, source.to(DTYPES[name]), device)  # the warm-up
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError) as error:
                found[name] = str(error).strip().partition("\n")[0] or type(error).__name__
            else:
                samples[name] = []
        matrices = {name: source.to(DTYPES[name]) for name in samples}
        until = time.perf_counter() + ROUNDS_SECONDS * len(matrices) / len(DTYPES)
        rounds = 0
        while rounds < LEAST_ROUNDS or time.perf_counter() < until:
            rounds += 1
            for name, matrix in matrices.items():
                # Several calls a turn: the first one finds cold caches and sleeping threads.
                turn = time.perf_counter() + TURN_SECONDS
                while True:
                    samples[name].append(_one_matmul(name, matrix, device))
                    if time.perf_counter() > turn:
                        break
    return found | {name: min(taken) for name, taken in samples.items()}


def _one_matmul(name: str, matrix: torch.Tensor, device: torch.device) -> float:
    _set_tf32(name == "tf32")
    return clock(lambda: matrix @ matrix, device)


# From torch 2.9 on, each backend has a precision, and using the older, global setting too raises.
_BACKENDS: list[Any] = [
    backend
    for backend in (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    if hasattr(backend, "fp32_precision")
]


def _set_tf32(on: bool) -> None:
    for backend in _BACKENDS:
        backend.fp32_precision = "tf32" if on else "ieee"
    if not _BACKENDS:
        torch.set_float32_matmul_precision("high" if on else "highest")


@contextmanager
def _restored_matmul_precision() -> Iterator[None]:
    """Restore the precision settings at the end."""
    if not _BACKENDS:
        precision = torch.get_float32_matmul_precision()
    before = [backend.fp32_precision for backend in _BACKENDS]
    try:
        yield
    finally:
        for backend, precision_before in zip(_BACKENDS, before, strict=True):
            backend.fp32_precision = precision_before
        if not _BACKENDS:
            torch.set_float32_matmul_precision(precision)
