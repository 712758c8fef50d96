"""What a drawn roofline has in common, be it a figure or a panel's picture:
its axis, and the words at its roofs.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp_course.kit.measure import seconds_text
from amp_course.speed.one_op import Predicted
from amp_course.speed.roofline import Roofline

# The horizontal axis, FLOPs per byte. Ops whose FLOPs are not counted get a strip at its left end;
# no matmul comes that far.
LEAST, STRIP_END, MOST = 2.0**-6, 2.0**-3, 2.0**15


def in_strip(place: float) -> float:
    """Return the horizontal place of a mark in the strip, from its left end, 0, to its right end,
    1; it has no other meaning.
    """
    return 1.3 * LEAST * (STRIP_END / LEAST / 1.5) ** place


def rate_text(flops: float) -> str:
    """Write a rate for people, with three figures. Example: 3.12e14 → "312 TFLOP/s" """
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if flops >= 0.9995 * size:
            number = flops / size
            return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}FLOP/s"
    return f"{flops:,.0f} FLOP/s"


def same_height(roofline: Roofline) -> list[list[str]]:
    """Group formats whose roofs are too close to be told apart, the highest first. Example:
    [["bf16", "fp16"], ["fp32"]]
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
    """Write the roofs for a reader who cannot see them, with their ridges in FLOPs per byte."""
    groups = same_height(roofline)
    return "; ".join(
        f"{roof_label(roofline, names)}, ridge at {roofline.ridge(names[0]):.3g}"
        for names in groups
    )


def roof_words(roofline: Roofline, sides: Sequence[Predicted]) -> str:
    """Write where an op lands, for a reader who cannot see it."""
    said = [f"Roofline of {roofline.name}: {roofs_in_words(roofline)}"]
    for side in sides:
        where = (
            f"{side.flops / side.bytes:.3g} FLOPs per byte" if side.flops else "no FLOPs counted"
        )
        measured = f", measured {seconds_text(side.measured)}" if side.measured else ""
        said.append(
            f"{side.name}: {where}, {side.bound}-bound, predicted "
            f"{seconds_text(side.seconds)}{measured}"
            if side.calls
            else f"{side.name}: nothing to do"
        )
    return ". ".join(said)
