"""What `RankExplorer` shows, as HTML: the verdict, and the ranks' scales, skips and replicated
weights above one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from amp_course.distributed.simulation import RankRun
from amp_course.kit.markup import inline_html, plain_text
from amp_course.kit.panel_parts import status, view
from amp_course.kit.svg import FAINT, GRID, box, line, picture, polyline, swatch, text

# a rank's colour and, as a second cue, its dash (SVG's stroke-dasharray)
RANKS = (
    ("#0072B2", ""),
    ("#D55E00", "7 3"),
    ("#009E73", "2 2"),
    ("#CC79A7", "9 3 2 3"),
    ("#E69F00", "5 2"),
    ("#56B4E9", "12 3"),
    ("#8C6D31", "4 4"),
    ("#7570B3", "9 2 2 2 2 2"),
)
# hatches of a skipped step: the inf was on this rank, or on another only
OVERFLOWED, SKIPPED = ("xx", "//")
NEUTRAL = "#777777"  # in a legend, for any rank's colour
_STEPPED = "var(--jp-layout-color2, #eee)"
_WIDTH, _LEFT, _RIGHT = 720, 88, 576
_SCALE_HEIGHT, _ROW, _DISTANCE_HEIGHT = 130, 18, 96


def run_view(run: RankRun) -> str:
    """Return the panel's HTML."""
    legend = {
        "overflowed on this rank: skipped": swatch(NEUTRAL, OVERFLOWED),
        "overflowed on another rank only: skipped": swatch(NEUTRAL, SKIPPED),
        "stepped": swatch(_STEPPED),
    }
    kinds = " ".join(
        f'<span style="white-space:nowrap;margin-right:16px">{mark} {kind}</span>'
        for kind, mark in legend.items()
    )
    said = status(inline_html(verdict(run)), "margin-bottom:8px")
    return view(said, _picture(run), f"<div>{kinds}</div>")


def verdict(run: RankRun) -> str:
    """Say in a sentence or two whether the ranks stayed together, in `kit.markup`'s Markdown."""
    everyone = "both ranks" if run.ranks == 2 else f"all {run.ranks} ranks"
    keep = f"keep one scale and equal {replicated(run)}"
    skips = [step for step, ranks in enumerate(zip(*run.skipped, strict=True), 1) if any(ranks)]
    if not skips:
        return f"No rank overflows, so there is nothing to agree on: {everyone} {keep}."
    split = run.first_split()
    if split is not None:
        return _drift(run, split)
    steps = f"step {skips[0]}" if len(skips) == 1 else f"{len(skips)} steps"
    together = f"{everyone} skip {steps} together, and {keep}"
    if run.agreement == "gradients all-reduced":
        return f"**The all-reduce of the gradients spreads the inf or NaN:** {together}."
    if run.agreement == "found_inf agreed":
        return f"**One all-reduce of found_inf keeps the ranks together:** {together}."
    return (
        f"Every rank overflows in the same steps, so {together}. **That is luck:** nothing "
        f"makes them agree."
    )


def _drift(run: RankRun, split: int) -> str:
    """Say how the ranks came apart, and with which scales and weights they ended."""
    skipping = [rank for rank in range(run.ranks) if run.skipped[rank][split]]
    stepping = [rank for rank in range(run.ranks) if rank not in skipping]
    skip = "skips" if len(skipping) == 1 else "skip"
    others = "the others step" if len(stepping) > 1 else f"rank {stepping[0]} steps"
    start = f"In step {split + 1} {name_ranks(skipping)} {skip} and {others}"
    largest = _number(max(distances[-1] for distances in run.distances))
    differ = f"differ from rank 0's by up to {largest}"
    if split == run.steps - 1:
        return (
            f"{start}: **their {replicated(run)} now {differ}**, and their scales will differ in "
            f"the next step."
        )
    start += (
        f": **from step {split + 2} on their scales differ**, and with them the units of the "
        f"gradients that they add up."
    )
    ends: dict[float, list[int]] = {}  # the last scale → its ranks
    for rank, scales in enumerate(run.scales):
        ends.setdefault(scales[-1], []).append(rank)
    low, high = min(ends), max(ends)
    if low == high:
        return (
            f"{start} At the end the scales happen to be equal again, but the {replicated(run)} "
            f"{differ}."
        )
    between = f"ranges from {scale_text(low)} to {scale_text(high)}"
    if len(ends) == 2:
        between = (
            f"is {scale_text(low)} on {name_ranks(ends[low])} and {scale_text(high)} on "
            f"{name_ranks(ends[high])}"
        )
    return f"{start} At the end the scale {between}, and the {replicated(run)} {differ}."


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks, in ascending order. Example: [0, 2, 3, 4] → "ranks 0 and 2–4" """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = list[str]()
    for run in runs:
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run)
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


def scale_text(scale: float) -> str:
    """Write a loss scale, a power of two, in full. Example: 0.25 → "1/4" """
    return f"{scale:,.0f}" if scale >= 1 else f"1/{1 / scale:,.0f}"


def describe(run: RankRun) -> str:
    """Describe the picture for screen readers: the ranks' scales, skips and distances."""
    parts = []
    for ranks in run.groups():
        first = ranks[0]
        scales, distance = run.scales[first], run.distances[first][-1]
        parts.append(
            f"{name_ranks(ranks)}: scale from {scale_text(scales[0])} to {scale_text(scales[-1])}, "
            f"{sum(run.skipped[first])} skipped, distance from rank 0 {_number(distance)}"
        )
    return f"{run.steps} steps. {'; '.join(parts)}. {plain_text(verdict(run))}"


def replicated(run: RankRun) -> str:
    """Name the weights that should be equal on all ranks."""
    return "weights" if run.agreement == "gradients all-reduced" else "layer norms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.2g}"


def _picture(run: RankRun) -> str:
    """Draw the three plots above one axis of steps."""
    rows = 194  # the top of the rows of skipped steps
    distances = rows + run.ranks * _ROW + 34
    floor = distances + _DISTANCE_HEIGHT
    parts = []
    for step in [1, *range(5, run.steps + 1, 5)]:
        x = _across(run, step - 0.5)
        for top, bottom in ((28, 28 + _SCALE_HEIGHT), (distances, floor)):
            parts.append(line(x, top, x, bottom, stroke=GRID, width=0.5))
        parts.append(text(x, floor + 18, str(step), anchor="middle"))
    parts.append(text((_LEFT + _RIGHT) / 2, floor + 38, "step", anchor="middle", fill=FAINT))
    parts += [text(8, 14, "loss scale", bold=True), *_scales(run, 28, 28 + _SCALE_HEIGHT)]
    parts += [text(8, rows - 10, "skipped steps", bold=True), *_rows(run, rows)]
    title = f"{replicated(run)}: largest difference from rank 0's"
    parts += [text(8, distances - 12, title, bold=True), *_distances(run, distances, floor)]
    return picture(_WIDTH, floor + 48, *parts, label=describe(run))


def _across(run: RankRun, step: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * step / run.steps


def _scales(run: RankRun, top: float, floor: float) -> list[str]:
    exponents = [[round(math.log2(scale)) for scale in scales] for scales in run.scales]
    low, high = min(map(min, exponents)) - 1, max(map(max, exponents)) + 1

    def down(exponent: float) -> float:
        return floor - (floor - top) * (exponent - low) / (high - low)

    ticks = range(low, high + 1, max(1, math.ceil((high - low) / 6)))
    parts = _ticks((down(tick), scale_text(2.0**tick)) for tick in ticks)
    return parts + _lines(run, [[*map(down, of_rank)] for of_rank in exponents], gap=2.5)


def _distances(run: RankRun, top: float, floor: float) -> list[str]:
    decades = [math.log10(x) for of_rank in run.distances for x in of_rank if x]
    low = math.floor(min(decades, default=-2))
    high = max(math.ceil(max(decades, default=0)), low + 1)
    least = floor - 24  # the lowest power of ten; below it, exactly 0

    def down(distance: float) -> float:
        if not distance:
            return floor - 6
        return least - (least - top) * (math.log10(distance) - low) / (high - low)

    ticks = range(low, high + 1, max(1, math.ceil((high - low) / 3))) if decades else []
    labels = {0.0: "equal"} | {10.0**tick: f"{10.0**tick:,.4g}" for tick in ticks}
    parts = _ticks((down(distance), label) for distance, label in labels.items())
    return parts + _lines(run, [[*map(down, of_rank)] for of_rank in run.distances])


def _ticks(ticks: Iterable[tuple[float, str]]) -> list[str]:
    parts = []
    for y, label in ticks:
        parts.append(line(_LEFT, y, _RIGHT, y, stroke=GRID, width=0.5))
        parts.append(text(_LEFT - 8, y + 4, label, anchor="end", fill=FAINT))
    return parts


def _lines(run: RankRun, heights: Sequence[Sequence[float]], gap: float = 0) -> list[str]:
    """Draw a line for each group of equal ranks, named at its end, each `gap` pixels lower, so that
    equal values do not hide each other.
    """
    groups = run.groups()
    parts, ends = [], []
    for n, ranks in enumerate(groups):
        below = gap * (n - (len(groups) - 1) / 2)
        colour, dash = RANKS[ranks[0]]
        points = []
        for step, y in enumerate(heights[ranks[0]]):
            points += [(_across(run, step), y + below), (_across(run, step + 1), y + below)]
        parts.append(polyline(points, stroke=colour, width=2.2, dash=dash))
        ends.append((points[-1][1], name_ranks(ranks) if len(groups) > 1 else "all ranks"))
    last = -math.inf
    for y, label in sorted(ends):
        last = max(y + 4, last + 13)  # names of lines that end close together must not overlap
        parts.append(text(_RIGHT + 8, last, label, size=11))
    return parts


def _rows(run: RankRun, top: float) -> list[str]:
    parts = []
    for rank in range(run.ranks):
        y, (colour, dash) = top + rank * _ROW, RANKS[rank]
        parts.append(line(8, y + _ROW / 2, 36, y + _ROW / 2, stroke=colour, width=2.2, dash=dash))
        parts.append(text(_LEFT - 8, y + _ROW / 2 + 4, f"rank {rank}", anchor="end"))
        parts.append(box(_LEFT, y + 2, _RIGHT - _LEFT, _ROW - 4, _STEPPED))
        for step in range(run.steps):
            if run.skipped[rank][step]:
                own = run.overflowed[rank][step]
                who = "it" if own else "another rank"
                tip = f"rank {rank}, step {step + 1}: skipped, as {who} overflowed"
                x, width = _across(run, step) + 1, _across(run, 1) - _LEFT - 2
                hatch = OVERFLOWED if own else SKIPPED
                parts.append(box(x, y + 2, width, _ROW - 4, colour, hatch=hatch, tip=tip))
    return parts
