"""Draw where casts begin to pay, and what larger batches bring, from an experiment's numbers."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from amp_course.kit.colours import COLOURS, INK
from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import new_figure, title
from amp_course.speed.experiments.batch_sizes import RECIPES, BatchSizes
from amp_course.speed.experiments.casts import BreakEven
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import number_text


def break_even_figure(found: BreakEven) -> Figure:
    """Draw the seconds that a 16-bit matmul saves or loses and those of its casts, by width."""
    parts = [
        f"width {width:,}: saves {1e6 * saved:,.0f} µs, casts take {1e6 * cost:,.0f} µs"
        for (width, saved), cost in zip(found.saved.items(), found.cost.values(), strict=True)
    ]
    figure, axis = new_figure(7.0, 3.0, alt=_alt(found, parts))
    places = range(len(found.saved))
    saved, cost = [*found.saved.values()], [*found.cost.values()]
    for shift, heights, label, recipe, hatch in (
        (-0.2, saved, f"saved by the {found.fmt} matmul", "amp_bf16", ""),
        (0.2, cost, "taken by the casts", "amp_fp16", "//"),
    ):
        style = {"color": COLOURS[recipe], "hatch": hatch, "edgecolor": "white"}
        bars = axis.bar([place + shift for place in places], heights, 0.38, label=label, **style)
        axis.bar_label(bars, map(_signed, heights), fontsize=7, padding=2, color=INK)
    smallest = min(abs(one) for one in (*saved, *cost) if one)
    axis.set_yscale("symlog", linthresh=smallest)
    axis.axhline(0, color=INK, linewidth=1)
    axis.set_xticks(places, [f"{width:,}" for width in found.saved])
    axis.set_xlabel("width of the layer", fontsize=8, color=INK)
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: "0" if not y else "" if abs(y) < smallest else _signed(y))
    )
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize=8, frameon=False)
    under = f"a linear layer with {found.batch:,} rows; below 0 the 16-bit matmul is slower"
    _title(axis, found, under)
    return figure


def _alt(found: Finding, parts: list[str]) -> str:
    return f"{found.busy} {found.title}. {'; '.join(parts)}.".lstrip()


def _title(axis: Axes, found: Finding, under: str) -> None:
    title(axis, *((TOO_BUSY, found.title) if found.busy else (found.title, under)))


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else ''}{seconds_text(abs(seconds))}"


def batch_sizes_figure(found: BatchSizes) -> Figure:
    """Draw the samples a second by batch size, each point with the memory of its step."""
    points = {
        recipe: [*zip(found.batches, found.rates[recipe], found.peaks[recipe], strict=True)]
        for recipe in RECIPES
    }
    parts = [
        f"{recipe}, batch {batch:,}: {number_text(rate)} samples/s, {bytes_text(peak)}"
        for recipe in RECIPES
        for batch, rate, peak in points[recipe]
    ]
    figure, axis = new_figure(7.0, 3.2, alt=_alt(found, parts))
    styles = {"fp32": (COLOURS["fp32"], "-", "o"), "AMP": (COLOURS["amp_bf16"], "--", "s")}
    highest = [max(rates) for rates in zip(*found.rates.values(), strict=True)]
    for recipe, (colour, line, marker) in styles.items():
        rates = found.rates[recipe]
        axis.plot(found.batches, rates, color=colour, ls=line, marker=marker, label=recipe)
        words = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5, "color": colour}
        for (batch, rate, peak), most in zip(points[recipe], highest, strict=True):
            shift = (0, 8 if rate == most else -14)
            axis.annotate(bytes_text(peak), (batch, rate), shift, **words)
    axis.set_xscale("log", base=2)
    axis.set_xticks(found.batches, [f"{batch:,}" for batch in found.batches])
    axis.set_ylim(0, 1.25 * axis.get_ylim()[1])
    axis.margins(x=0.12)
    axis.set_xlabel("batch", fontsize=8, color=INK)
    axis.set_ylabel("samples a second", fontsize=8, color=INK)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    _title(axis, found, "samples a second by batch size; at each point the peak memory of a step")
    return figure
