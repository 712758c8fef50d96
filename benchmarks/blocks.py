"""Time `quantize` on a million numbers, in turn with gfloat's block quantisation on a part of them;
equal results required.

gfloat takes one block at a time, so its time grows with the number of blocks: it gets every
hundredth, and the ratio is taken per number. That is to its favour: the course's fixed costs are
spread over a million numbers, but gfloat has none to speak of.

    python -m benchmarks.blocks
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gfloat.block  # type: ignore[import-untyped]
import gfloat.formats  # type: ignore[import-untyped]
import numpy as np
import torch

from amp_course.frontiers import (
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    BlockFormat,
    quantize,
)
from amp_course.kit.hardware import machine_report
from amp_course.kit.measure import seconds_text
from benchmarks.interleaved import Record, Side, arguments, interleaved, spread, warn_if_busy

GFLOAT = {
    MXFP8_E5M2: gfloat.formats.format_info_mxfp8_e5m2,
    MXFP8_E4M3: gfloat.formats.format_info_mxfp8_e4m3,
    MXFP6_E3M2: gfloat.formats.format_info_mxfp6_e3m2,
    MXFP6_E2M3: gfloat.formats.format_info_mxfp6_e2m3,
    MXFP4: gfloat.formats.format_info_mxfp4_e2m1,
}
BLOCKS, PART = 31_250, 100


def compare(block_format: BlockFormat, chosen: Any) -> dict[str, Any]:
    """Time both on one format, after a look that they agree to the last bit."""
    x = torch.randn(800 if chosen.tiny else BLOCKS, 32, generator=torch.Generator().manual_seed(0))
    some = x[::PART].double().numpy()
    results: dict[str, np.ndarray] = {}

    def course(batches: Sequence[Any]) -> list[float]:
        for _ in batches:
            results["course"] = quantize(x, block_format)[::PART].numpy()
        return []

    def block_by_block(batches: Sequence[Any]) -> list[float]:
        for _ in batches:
            results["gfloat"] = np.stack(
                [
                    gfloat.block.quantize_block(
                        GFLOAT[block_format], block, gfloat.block.compute_scale_amax
                    )
                    for block in some
                ]
            ).astype(np.float32)
        return []

    sides = {"course": Side(course), "gfloat": Side(block_by_block)}
    interleaved(
        sides,
        [(x, x)],
        chosen.device,
        steps=chosen.steps,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
    )
    per_number = {
        "course": [seconds / x.numel() for seconds in sides["course"].seconds_per_step],
        "gfloat": [seconds / some.size for seconds in sides["gfloat"].seconds_per_step],
    }
    ratios = [
        slow / fast for fast, slow in zip(per_number["course"], per_number["gfloat"], strict=True)
    ]
    return {
        "same_results": bool(np.array_equal(results["course"], results["gfloat"])),
        "numbers": {"course": x.numel(), "gfloat": some.size},
        "seconds_per_number": {name: spread(values) for name, values in per_number.items()},
        "times_as_fast": spread(ratios),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the comparison; return 1 if results differ or the course is less than 10 times
    as fast.
    """
    chosen = arguments((__doc__ or "").split("\n")[0], rounds=8, steps=1, argv=argv)
    warn_if_busy()
    record = Record("blocks", machine_report(chosen.device), chosen)
    fine = True
    for block_format in GFLOAT:
        found = record.data["workloads"][block_format.name] = compare(block_format, chosen)
        million = {name: 1e6 * one["median"] for name, one in found["seconds_per_number"].items()}
        ratio = found["times_as_fast"]
        print(
            f"{block_format.name:11} a million numbers: course {seconds_text(million['course'])}, "
            f"gfloat {seconds_text(million['gfloat'])} (projected): {ratio['median']:,.0f} times "
            f"as fast ({ratio['q1']:,.0f} to {ratio['q3']:,.0f})"
        )
        fine = fine and found["same_results"] and ratio["median"] >= 10
    print(f"\nwritten: {record.write().name}")
    return 0 if fine or chosen.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
