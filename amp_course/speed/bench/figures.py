"""The picture of a machine's page: matmul rates, the roofline, speed-ups. It computes nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, FAINT, FORMAT_COLOURS, FORMAT_LINES, HATCHES, INK
from amp_course.kit.style import merged_row, new_figure, title
from amp_course.speed.bench.advice import Recommendation, short
from amp_course.speed.bench.page import LeftOut, Page, Result, label_of, ridges
from amp_course.speed.machine import Machine

_DOTS = 110  # per inch, as a notebook shows them: it is full of text
_MARKS = {"fp32": "o", "tf32": "D", "bf16": "s", "fp16": "^"}
# keeps words readable that cross a line
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}


def bench_figure(page: Page, advice: Recommendation) -> Figure:
    """Draw a page: the recommendation, rates by size and the roofline, then speed-ups."""
    rows = max(1, len(page.results) + len(page.left_out))
    speedups = [f"{short(one.title)} under {one.label} {one.measured:.2f}" for one in page.results]
    alt = (
        "Matmul rates by format and size, the roofline, and speed-ups over fp32: "
        f"{page.busy or '; '.join(speedups) or 'none'}. {advice.headline}"
    )
    tall = 0.5 + 0.3 * rows + 0.25 * len(page.titles())
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
    for fmt, rates in machine.by_format.items():
        axis.plot([*rates], [rate / 1e9 for rate in rates.values()], label=fmt, **_style(fmt))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(machine.sizes, [f"{size:,}" for size in machine.sizes])
    axis.set_xlabel("n, of two n × n matrices", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    slow = " and ".join(machine.whys)
    under = f"GFLOP/s; {slow} left out where too slow" if slow else "GFLOP/s"
    title(axis, "Matmul rate", under)


def _draw_roofline(axis: Any, machine: Machine) -> None:
    roofline, by_format = machine.roofline(), ridges(machine)
    right = 8 * max([*by_format.values(), 1.0])
    left = min([*by_format.values(), 1.0]) / 16
    for fmt, ridge in by_format.items():
        ends = (left, ridge, right)
        rates = [roofline.attainable(intensity, fmt) / 1e9 for intensity in ends]
        label = f"{fmt}, ridge at {ridge:.{0 if ridge >= 10 else 1}f}"
        axis.plot(ends, rates, markevery=[1], label=label, **_style(fmt, size=6))
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
    words = {"fontsize": 8, "va": "center", "bbox": _ON_WHITE}
    rows: list[Result | LeftOut] = [*page.results, *page.left_out]
    labels, y = dict[float, str](), 0.0
    for name in page.titles():
        axis.text(0.0, y, name, fontweight="bold", **words)
        y -= 1
        for row in [row for row in rows if row.title == name]:
            if isinstance(row, Result):
                _draw_bar(axis, y, row)
            else:
                axis.annotate(
                    row.why, (0, y), (5, 0), textcoords="offset points", color=FAINT, **words
                )
            labels[y] = label_of(row.recipe)
            y -= 1
    axis.axvline(1, color=INK, lw=0.8, ls=":", zorder=0)
    axis.set_yticks([*labels], [*labels.values()], fontsize=8)
    axis.set_ylim(y + 0.3, 0.7)
    axis.set_xlabel("times as fast as fp32", fontsize=8)
    under = "bar: of the fastest steps, whisker: what the quartiles allow; ▽ ceiling, ◆ predicted"
    title(axis, "Speed-up over fp32", under)


def _draw_bar(axis: Any, y: float, result: Result) -> None:
    low, high = result.spread
    style = {"color": COLOURS[result.recipe], "hatch": HATCHES[result.recipe], "edgecolor": "white"}
    axis.barh(y, result.measured, height=0.75, **style)
    axis.plot([low, high], [y, y], color=INK, lw=1.2, marker="|", ms=6)
    axis.plot([result.ceiling], [y], "v", mfc="white", mec=INK, ms=6, zorder=3)
    if result.predicted:
        axis.plot([result.predicted], [y], "D", color=INK, ms=4, zorder=3)
    # a very long whisker may end outside
    right = max(min(high, 2 * result.measured), result.ceiling, result.predicted or 0.0)
    place = right + 0.03 * axis.get_xlim()[1]
    words = f"{result.measured:.2f} ×"
    axis.text(place, y, words, va="center", fontsize=8, bbox=_ON_WHITE, zorder=4)


def _style(fmt: str, size: int = 4) -> dict[str, Any]:
    colour, line = FORMAT_COLOURS[fmt], FORMAT_LINES[fmt]
    return {"color": colour, "ls": line, "marker": _MARKS[fmt], "ms": size}
