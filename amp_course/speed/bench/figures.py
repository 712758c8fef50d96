"""The picture of a machine's page: matmul rates, the roofline, speed-ups.
It takes a page and computes nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, FAINT, FORMAT_COLOURS, FORMAT_LINES, HATCHES, INK
from amp_course.kit.style import merged_row, new_figure, title
from amp_course.speed.bench.advice import Recommendation, short
from amp_course.speed.bench.page import Page, Result, label_of, ridges
from amp_course.speed.machine import Machine

_DOTS = 110  # per inch, as many as the page shows: it is full of text
_MARKS = {"fp32": "o", "tf32": "D", "bf16": "s", "fp16": "^"}
# keeps words readable on a line
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}


def bench_figure(page: Page, advice: Recommendation) -> Figure:
    """Draw a page: the recommendation, rates by size and the roofline, then speed-ups."""
    rows = max(1, len(page.results) + len(page.left_out))
    speedups = [f"{short(one.title)} under {one.label} {one.measured:.2f}" for one in page.results]
    said = page.busy or "; ".join(speedups) or "none"
    tall = 0.5 + 0.3 * rows + 0.25 * len(page.titles())
    alt = (
        f"Matmul rates by format and size, the roofline, and speed-ups over fp32: {said}. "
        f"{advice.headline}"
    )
    figure, axes = new_figure(
        9, 4.4 + tall, columns=2, rows=2, height_ratios=[2.8, tall], alt=alt, dots=_DOTS
    )
    if page.measured:
        _draw_rates(axes[0][0], page.measured)
        _draw_roofline(axes[0][1], page.measured)
    lower = merged_row(axes[1])
    if page.busy:
        lower.set_axis_off()
    else:
        _draw_speedups(lower, page)
    when = f"{page.date[:10]}{'' if page.complete else ', INCOMPLETE'}"
    about = (
        f"{page.machine['device_name']}, torch {page.versions.get('torch')}, "
        f"{page.settings.get('plan')} run, {when}"
    )
    words = textwrap.fill(advice.headline, 100)
    figure.suptitle(f"{words}\n{about}", fontsize=9.5, x=0.01, ha="left", color=INK)
    return figure


def _draw_rates(axis: Any, machine: Machine) -> None:
    formats = dict.fromkeys(rate.fmt for rate in machine.rates)
    for fmt in formats:
        timed = {
            rate.size: rate.flops / 1e9 for rate in machine.rates if rate.fmt == fmt and rate.flops
        }
        axis.plot([*timed], [*timed.values()], label=fmt, **_style(fmt))
    sizes = sorted({rate.size for rate in machine.rates})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.set_xlabel("n, of two n × n matrices", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    slow = {rate.fmt for rate in machine.rates if not rate.flops}
    out = [fmt for fmt in formats if fmt in slow]
    under = f"GFLOP/s; {' and '.join(out)} left out where too slow" if out else "GFLOP/s"
    title(axis, "Matmul rate", under)


def _draw_roofline(axis: Any, machine: Machine) -> None:
    roofline, found = machine.roofline(), ridges(machine)
    right = 8 * max([*found.values(), 1.0])
    left = min([*found.values(), 1.0]) / 16
    for fmt, ridge in found.items():
        rates = [roofline.attainable(intensity, fmt) / 1e9 for intensity in (left, ridge, right)]
        label = f"{fmt}, ridge at {ridge:.{0 if ridge >= 10 else 1}f}"
        axis.plot(
            [left, ridge, right], rates, markevery=[1], label=label, **{**_style(fmt), "ms": 6}
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("FLOPs per byte", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    title(axis, "Roofline", f"GFLOP/s; the slope is {machine.bandwidth / 1e9:.0f} GB/s of memory")


def _draw_speedups(axis: Any, page: Page) -> None:
    most = max(
        [1.5, *(max(min(one.spread[1], 2 * one.measured), one.ceiling) for one in page.results)]
    )
    axis.set_xlim(0, most * 1.2)
    ticks, labels, y = [], [], 0.0
    for name in page.titles():
        axis.text(0.0, y, name, fontsize=8, fontweight="bold", va="center", bbox=_ON_WHITE)
        y -= 1
        for one in [each for each in page.results if each.title == name]:
            _draw_one(axis, y, one)
            ticks.append(y)
            labels.append(one.label)
            y -= 1
        for left_out in [each for each in page.left_out if each.title == name]:
            axis.annotate(
                left_out.why,
                (0, y),
                (5, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                color=FAINT,
                bbox=_ON_WHITE,
            )
            ticks.append(y)
            labels.append(label_of(left_out.recipe))
            y -= 1
    axis.axvline(1, color=INK, lw=0.8, ls=":", zorder=0)
    axis.set_yticks(ticks, labels, fontsize=8)
    axis.set_ylim(y + 0.3, 0.7)
    axis.set_xlabel("times as fast as fp32", fontsize=8)
    title(
        axis,
        "Speed-up over fp32",
        "bar: of the fastest steps, whisker: what the quartiles allow; ▽ ceiling, ◆ predicted",
    )


def _draw_one(axis: Any, y: float, one: Result) -> None:
    low, high = one.spread
    look = {"color": COLOURS[one.recipe], "hatch": HATCHES[one.recipe]}
    axis.barh(y, one.measured, edgecolor="white", height=0.75, **look)
    axis.plot([low, high], [y, y], color=INK, lw=1.2, marker="|", ms=6)
    axis.plot([one.ceiling], [y], "v", mfc="white", mec=INK, ms=6, zorder=3)
    if one.predicted:
        axis.plot([one.predicted], [y], "D", color=INK, ms=4, zorder=3)
    # a wild whisker may end outside
    right = max(min(high, 2 * one.measured), one.ceiling, one.predicted or 0.0)
    place = right + 0.03 * axis.get_xlim()[1]
    words = f"{one.measured:.2f} ×"
    axis.text(place, y, words, va="center", fontsize=8, bbox=_ON_WHITE, zorder=4)


def _style(fmt: str) -> Mapping[str, Any]:
    return {"color": FORMAT_COLOURS[fmt], "ls": FORMAT_LINES[fmt], "marker": _MARKS[fmt], "ms": 4}
