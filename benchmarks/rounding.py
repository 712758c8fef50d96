"""Time `round_to` next to torch's cast, ml_dtypes and gfloat on the same million numbers, equal
results required.

Each side takes a float32 array and gives the values it is rounded to back as float32: torch and
ml_dtypes (numpy, for fp16) cast there and back, gfloat and the course compute. gfloat runs on a
torch tensor and on a numpy array; the faster of the two is the one to beat. On a GPU the numbers
stay there, so what computes on numpy arrays has no part in it; a peer that is not installed is left
out.

    python -m benchmarks.rounding
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from benchmarks.interleaved import (
    Record,
    Side,
    arguments,
    interleaved,
    speed_ratio,
    spread,
    warn_if_busy,
)

COUNT = 1_000_000
FORMATS: dict[
    FloatFormat, tuple[str, str]
] = {  # the names of ml_dtypes' types, and of gfloat's formats
    FP16: ("", "format_info_binary16"),
    BF16: ("bfloat16", "format_info_bfloat16"),
    FP8_E5M2: ("float8_e5m2", "format_info_ocp_e5m2"),
    FP8_E4M3: ("float8_e4m3fn", "format_info_ocp_e4m3"),
}


def numbers(fmt: FloatFormat, count: int) -> Tensor:
    """Draw float32 numbers of all of the format's magnitudes,
    from its subnormals to its largest binade.
    """
    generator = torch.Generator().manual_seed(0)
    low, high = fmt.min_exponent - fmt.significand_bits, fmt.max_exponent - 1
    exponents = torch.rand(count, generator=generator) * (high - low) + low
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return torch.exp2(exponents.double()).float() * signs


def ways(fmt: FloatFormat, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the sides that run here: name → a function from a float32 tensor to the rounded
    one.
    """
    dtype, (numpy_name, gfloat_name) = fmt.dtype, FORMATS[fmt]
    assert dtype is not None
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "course": lambda x: round_to(x, fmt),
        "torch cast": lambda x: x.to(dtype).to(torch.float32),
    }
    on_cpu = device.type == "cpu"
    if on_cpu and (fmt is FP16 or find_spec("ml_dtypes")):
        numpy_type = (
            np.float16 if fmt is FP16 else getattr(importlib.import_module("ml_dtypes"), numpy_name)
        )
        name = "numpy cast" if fmt is FP16 else "ml_dtypes"
        found[name] = lambda x: torch.from_numpy(x.numpy().astype(numpy_type).astype(np.float32))
    if find_spec("gfloat"):
        gfloat = importlib.import_module("gfloat")
        info = getattr(importlib.import_module("gfloat.formats"), gfloat_name)
        found["gfloat on torch"] = lambda x: gfloat.round_ndarray(info, x)
        if on_cpu:
            found["gfloat on numpy"] = lambda x: torch.from_numpy(
                gfloat.round_ndarray(info, x.numpy())
            )
    return found


def compare(fmt: FloatFormat, chosen: Any) -> dict[str, Any]:
    """Time all sides on one format, after a look that they agree to the last bit."""
    x = numbers(fmt, 1000 if chosen.tiny else COUNT).to(chosen.device)
    functions = ways(fmt, chosen.device)
    results = {name: function(x).float().view(torch.int32) for name, function in functions.items()}
    same = all(torch.equal(result, results["course"]) for result in results.values())

    def side(function: Callable[[Tensor], Tensor]) -> Side:
        def run(batches: Sequence[Any]) -> Sequence[float]:
            for batch in batches:
                function(batch)
            return []

        return Side(run)

    sides = {name: side(function) for name, function in functions.items()}
    interleaved(
        sides, [x], chosen.device, steps=chosen.steps, rounds=chosen.rounds, seconds=chosen.seconds
    )
    gfloats = [name for name in sides if name.startswith("gfloat")]
    best = min(
        gfloats, key=lambda name: spread(sides[name].seconds_per_step)["median"], default=None
    )
    return {
        "same_results": same,
        "numbers": x.numel(),
        "seconds": {name: spread(each.seconds_per_step) for name, each in sides.items()},
        "course_over": {
            name: spread(speed_ratio(sides["course"], each)) for name, each in sides.items()
        },
        "best_gfloat": best,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if results differ."""
    chosen = arguments(__doc__.split("\n")[0], rounds=30, steps=5, argv=argv)
    warn_if_busy()
    record = Record("rounding", machine_report(chosen.device), chosen)
    print(
        f"{'':10}{'side':18}{'a million numbers' if not chosen.tiny else 'a thousand'}   course's "
        f"speed over it"
    )
    for fmt in FORMATS:
        found = record.data["workloads"][fmt.name] = compare(fmt, chosen)
        for name, seconds in found["seconds"].items():
            ratio = found["course_over"][name]
            print(
                f"{fmt.name:10}{name:18}{seconds_text(seconds['median']):>14}      "
                f"{ratio['median']:7.2f}  ({ratio['q1']:.2f} to {ratio['q3']:.2f})"
            )
        if not found["same_results"]:
            print(f"{fmt.name}: the results differ, so the times mean nothing")
    print(f"\nwritten: {record.write().name}")
    return 0 if all(found["same_results"] for found in record.data["workloads"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
