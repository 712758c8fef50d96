"""What the doctor says about the machine, and the speed of 16-bit formats there."""

from __future__ import annotations

import functools
from collections.abc import Collection

import torch

from amp_course.diagnosis.report import count
from amp_course.kit.dtypes import DTYPES, DtypeSupport, dtype_support
from amp_course.kit.hardware import device_name

_support = functools.cache(dtype_support)


def machine_facts(device: str, dtypes: Collection[str]) -> list[tuple[str, str]]:
    """Describe the machine, and how fast matmuls are in the 16-bit formats among `dtypes`.

    The formats are timed once per process, for about a second.
    """
    where = torch.device(device)
    threads = count(torch.get_num_threads(), "thread")
    facts = [("machine", f"{device_name(where)}, {threads}, torch {torch.__version__}")]
    low = tuple(name for name in ("bf16", "fp16") if str(DTYPES[name])[6:] in dtypes)
    try:
        supports = [one for one in _support(where) if one.name in low] if low else []
    except torch.OutOfMemoryError:  # the training has it all
        return [*facts, *((f"{name} here", "no memory was left to time a matmul") for name in low)]
    return [*facts, *((f"{one.name} here", _speed(one)) for one in supports)]


def _speed(one: DtypeSupport) -> str:
    if one.state == "unknown":
        return one.note
    if one.times_fp32 is None:
        return "matmuls do not run"
    emulated = "emulated, which is for learning and not for speed"
    meaning = "native" if one.state == "native" else emulated
    return f"a matmul takes {_number(one.times_fp32)} times as long as in fp32: {meaning}"


def _number(times: float) -> str:
    """Round a ratio so that the next run gives the same: 37 → "over 20", 0.43 → "about 0.4"."""
    for bound in (100, 50, 20, 10, 5):
        if times > bound:
            return f"over {bound}"
    return f"about {times:.1g}"
