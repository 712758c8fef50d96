"""Draw where casts begin to pay, and what larger batches bring.

They take an experiment's numbers, and compute nothing.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from amp_course.kit.colours import COLOURS, INK
from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import new_figure, title
from amp_course.speed.experiments.batch_sizes import RECIPES, BatchSizes
from amp_course.speed.experiments.casts import BreakEven
from amp_course.speed.experiments.interleaved import figures


def break_even_figure(found: BreakEven) -> Figure:
    """Draw the seconds that a 16-bit matmul saves or loses and those of its casts, by width."""
    told = "; ".join(
        f"width {width:,}: saves {saved * 1e6:,.0f} µs, casts take {found.cost[width] * 1e6:,.0f} "
        "µs"
        for width, saved in found.saved.items()
    )
    figure, axis = new_figure(
        7.0, 3.0, alt=" ".join(filter(None, [found.busy, f"{found.title}. {told}."]))
    )
    places = range(len(found.saved))
    saved, cost = [*found.saved.values()], [*found.cost.values()]
    for shift, heights, label, colour, hatch in (
        (-0.2, saved, f"saved by the {found.fmt} matmul", COLOURS["amp_bf16"], ""),
        (0.2, cost, "taken by the casts", COLOURS["amp_fp16"], "//"),
    ):
        drawn = axis.bar(
            [place + shift for place in places],
            heights,
            0.38,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
        )
        labels = [_signed(height) for height in heights]
        axis.bar_label(drawn, labels, fontsize=7, padding=2, color=INK)
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
    title(axis, *((TOO_BUSY, found.title) if found.busy else (found.title, under)))
    return figure


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else ''}{seconds_text(abs(seconds))}"


def batch_sizes_figure(found: BatchSizes) -> Figure:
    """Draw the samples a second by batch size, each point with the memory of its step."""
    told = "; ".join(
        f"{recipe}, batch {batch:,}: {figures(rate)} samples/s, {bytes_text(peak)}"
        for recipe in RECIPES
        for batch, rate, peak in zip(
            found.batches, found.rates[recipe], found.peaks[recipe], strict=True
        )
    )
    alt = " ".join(filter(None, [found.busy, f"{found.title}. {told}."]))
    figure, axis = new_figure(7.0, 3.2, alt=alt)
    looks = {"fp32": (COLOURS["fp32"], "-", "o"), "AMP": (COLOURS["amp_bf16"], "--", "s")}
    for recipe, (colour, line, marker) in looks.items():
        rates = found.rates[recipe]
        axis.plot(found.batches, rates, color=colour, ls=line, marker=marker, label=recipe)
        for place, (batch, rate) in enumerate(zip(found.batches, rates, strict=True)):
            above = rate == max(found.rates[one][place] for one in RECIPES)
            axis.annotate(
                bytes_text(found.peaks[recipe][place]), (batch, rate), (0, 8 if above else -14),
                textcoords="offset points", ha="center", fontsize=7.5, color=colour,
            )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_xticks(found.batches, [f"{batch:,}" for batch in found.batches])
    axis.set_ylim(0, 1.25 * axis.get_ylim()[1])
    axis.margins(x=0.12)
    axis.set_xlabel("batch", fontsize=8, color=INK)
    axis.set_ylabel("samples a second", fontsize=8, color=INK)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    under = "samples a second by batch size; at each point the peak memory of a step"
    title(axis, *((TOO_BUSY, found.title) if found.busy else (found.title, under)))
    return figure
