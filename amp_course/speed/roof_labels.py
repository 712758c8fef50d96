"""What the figure and the panel's picture of a roofline share: its axis, and its labels."""

from __future__ import annotations

from collections.abc import Sequence

from amp_course.kit.measure import seconds_text, three_figures
from amp_course.speed.one_op import Predicted
from amp_course.speed.roofline import Roofline

# The horizontal axis, FLOPs per byte. Ops whose FLOPs are not counted get a strip at its left end;
# no matmul comes that far.
LEAST, STRIP_END, MOST = 2.0**-6, 2.0**-3, 2.0**15


def in_strip(place: float) -> float:
    """Return where a mark lies in the strip, from 0 (its left end) to 1; it means nothing else."""
    return 1.3 * LEAST * (STRIP_END / LEAST / 1.5) ** place


def rate_text(flops: float) -> str:
    """Write a rate for people, with three figures. Example: 3.12e14 → "312 TFLOP/s" """
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if flops >= 0.9995 * size:
            return f"{three_figures(flops / size)} {unit}FLOP/s"
    return f"{flops:,.0f} FLOP/s"


def same_height(roofline: Roofline) -> list[list[str]]:
    """Group formats whose roofs nearly coincide, the highest first.

    Example: [["bf16", "fp16"], ["fp32"]]
    """
    groups: list[list[str]] = []
    for fmt in sorted(roofline.peak_flops, key=lambda name: -roofline.peak_flops[name]):
        if groups and roofline.peak_flops[groups[-1][0]] < 1.35 * roofline.peak_flops[fmt]:
            groups[-1].append(fmt)
        else:
            groups.append([fmt])
    return groups


def roof_label(roofline: Roofline, names: Sequence[str]) -> str:
    """Name roofs and their height. Example: "bf16, fp16: 312 TFLOP/s" """
    rates = [rate_text(roofline.peak_flops[name]) for name in names]
    if len(set(rates)) == 1:
        return f"{', '.join(names)}: {rates[0]}"
    return ", ".join(f"{name}: {rate}" for name, rate in zip(names, rates, strict=True))


def roofs_in_words(roofline: Roofline) -> str:
    """Describe the roofs for a screen reader, with their ridges in FLOPs per byte."""
    return "; ".join(
        f"{roof_label(roofline, names)}, ridge at {roofline.ridge(names[0]):.3g}"
        for names in same_height(roofline)
    )


def roof_words(roofline: Roofline, sides: Sequence[Predicted]) -> str:
    """Describe for a screen reader where an op lands."""
    parts = [f"Roofline of {roofline.name}: {roofs_in_words(roofline)}"]
    for side in sides:
        if not side.calls:
            parts.append(f"{side.name}: nothing to do")
            continue
        per_byte = f"{side.intensity:.3g} FLOPs per byte" if side.flops else "no FLOPs counted"
        measured = f", measured {seconds_text(side.measured)}" if side.measured else ""
        parts.append(
            f"{side.name}: {per_byte}, {side.bound}-bound, predicted "
            f"{seconds_text(side.seconds)}{measured}"
        )
    return ". ".join(parts)
