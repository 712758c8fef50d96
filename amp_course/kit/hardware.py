"""Report what this machine computes with, and what its number formats are good for."""

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from amp_course.kit.dtypes import FASTER, DtypeSupport, dtype_support, explain_emulated
from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.report import Block, Page, Table

# "200000 100000": the time of two cores; "max 100000": no limit
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
MARKS = {"native": "●", "emulated": "◐", "unsupported": "○", "unknown": "?"}


def pick_device() -> torch.device:
    """Return the device to train on: CUDA, XPU or MPS, the first that works here, else the CPU."""
    with warnings.catch_warnings():
        # torch warns if the driver is too old, and then says "not available"
        warnings.simplefilter("ignore")
        for name in ("cuda", "xpu", "mps"):
            if _works(name):
                return torch.device(name)
    return torch.device("cpu")


def _works(name: str) -> bool:
    backend = torch.backends.mps if name == "mps" else getattr(torch, name, None)
    if backend is None or not backend.is_available():
        return False
    try:
        return (torch.ones(1, device=name) + 1).item() == 2
    except (RuntimeError, AssertionError):  # no kernels in this build, or another process has it
        return False


@dataclass(frozen=True, repr=False)
class MachineReport(Page):
    """What to know of a machine before believing its timings; prints as a table."""

    device: str
    device_name: str
    compute_capability: str | None  # of an NVIDIA GPU, as "9.0"
    memory_bytes: int | None  # the device's; None if unknown
    cpu_cores: int  # that this process may use
    threads: int  # that torch uses within an op
    torch_version: str
    python_version: str
    platform: str
    cuda_version: str | None  # that torch was built for
    dtypes: tuple[DtypeSupport, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "dtypes": [asdict(support) for support in self.dtypes]}

    @property
    def reading(self) -> str:
        """What the numbers mean for mixed precision here, one sentence a format."""
        if any(support.state == "unknown" for support in self.dtypes):
            return (
                f"{TOO_BUSY} how fast its formats are: this process waited for a CPU for more "
                "than a fifth of the time. Close other programs, and run this again."
            )
        return " ".join(filter(None, map(_sentence, self.dtypes)))

    @property
    def explanation(self) -> str:
        """Why formats are slow here, as `explain_emulated` puts it; "" if none is emulated."""
        return explain_emulated(self.dtypes)

    columns = 100

    def blocks(self) -> Iterator[Block]:
        yield Table([("this machine", ""), *self._facts()])
        head = ("dtype", "state", "per matmul", "time/fp32", "note")
        yield Table([head, *self._rows()])
        if self.reading:
            yield self.reading
        if self.explanation:
            yield self.explanation

    def _facts(self) -> list[tuple[str, str]]:
        device = f"{self.device}: {self.device_name}"
        if self.compute_capability:
            device += f", compute capability {self.compute_capability}"
        cuda = f"for CUDA {self.cuda_version}" if self.cuda_version else "without CUDA"
        return [
            ("device", device),
            ("memory", bytes_text(self.memory_bytes) if self.memory_bytes else "unknown"),
            ("CPU", f"cores for this process: {self.cpu_cores}; threads of torch: {self.threads}"),
            ("torch", f"{self.torch_version} (built {cuda})"),
            ("Python", f"{self.python_version} on {self.platform}"),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                support.name,
                f"{MARKS[support.state]} {support.state}",
                "–" if support.seconds is None else seconds_text(support.seconds),
                "–" if support.times_fp32 is None else _times(support.times_fp32),
                support.note,
            )
            for support in self.dtypes
        ]


def _times(times: float) -> str:
    return f"{times:.{2 if times < 1.995 else 1 if times < 9.95 else 0}f}×"


def _sentence(support: DtypeSupport) -> str:
    """Say what a format's row means; "" for fp32, and for tf32 where there is none."""
    name, times = support.name, support.times_fp32
    if name == "fp32" or (name == "tf32" and support.state != "native"):
        return ""
    if support.state == "unsupported":
        return f"{name} matmuls do not run here."
    if times is None:
        return f"{name} matmuls run here, but there is no fp32 to compare them with."
    measured = f"{name} matmuls take {_times(times)} the time of fp32"
    if support.state == "emulated":
        return f"{measured}: {name} here is for learning, not for speed."
    if times >= FASTER:
        return f"{measured}: AMP in {name} saves memory here, and little time."
    if name == "tf32":
        return f'{measured}: torch.set_float32_matmul_precision("high") turns them on.'
    return f"{measured}: AMP in {name} can pay here."


def machine_report(device: torch.device | str | None = None) -> MachineReport:
    """Describe a device, by default the one to train on, and time its formats; takes a second or
    two.

    Example: machine_report("cpu").dtypes[0].name → "fp32"
    """
    device = pick_device() if device is None else torch.device(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MachineReport(
            device=str(device),
            device_name=device_name(device),
            compute_capability=_compute_capability(device),
            memory_bytes=_memory_bytes(device),
            cpu_cores=usable_cores(),
            threads=torch.get_num_threads(),
            torch_version=torch.__version__,
            python_version=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            cuda_version=torch.version.cuda,
            dtypes=dtype_support(device),
        )


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and a container's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = _CPU_MAX.read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def device_name(device: torch.device) -> str:
    """Return what a device calls itself. Example: → "NVIDIA H100 80GB HBM3" """
    if device.type in ("cuda", "xpu"):
        return str(getattr(torch, device.type).get_device_name(device))
    return _cpu_name()


def _compute_capability(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    return "{}.{}".format(*torch.cuda.get_device_capability(device))


def _memory_bytes(device: torch.device) -> int | None:
    if device.type in ("cuda", "xpu"):
        return int(getattr(torch, device.type).get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def _cpu_name() -> str:
    """Return the model name of the CPU if it can be found out, else the architecture's name."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.check_output(command, stderr=subprocess.PIPE, text=True).strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()
