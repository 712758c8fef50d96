"""Draw the newest records of results/ as docs/images/benchmark.png, and write them as tables into
benchmarks/README.md.

python -m benchmarks.figure
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, HATCHES, INK
from amp_course.kit.style import new_figure, title
from amp_course.loop.recipe import RECIPES
from benchmarks.interleaved import RESULTS
from benchmarks.peers import LABELS
from benchmarks.tables import heading, steps_text, tables

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results: written by benchmarks/figure.py -->", "<!-- end of results -->"
WORKLOADS = ("simple_net", "char_gpt")


def newest(folder: Path, benchmark: str) -> list[dict[str, Any]]:
    """Return the newest record of each machine and device, CPUs first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{benchmark}-*.json")):
        record = json.loads(path.read_text())
        key = (record["settings"]["device"].partition(":")[0], record["machine"]["device_name"])
        if key not in found or record["date"] > found[key]["date"]:
            found[key] = record
    return [found[key] for key in sorted(found, key=lambda key: (key[0] != "cpu", key))]


def peers_figure(records: Sequence[dict[str, Any]]) -> Figure:
    """Draw the speed of each loop under each recipe, over the course's in fp32:
    a row a machine, a column a workload.
    """
    heights = [
        1.15 + 0.72 * max(len(found["recipes"]) for found in r["workloads"].values())
        for r in records
    ]
    figure, axes = new_figure(
        8.6,
        sum(heights),
        columns=len(WORKLOADS),
        rows=len(records),
        alt="Speed of each training loop, over that of the course's in fp32, by workload and "
        "recipe.",
        squeeze=False,
        height_ratios=heights,
    )
    for record, row in zip(records, axes, strict=True):
        for workload, axis in zip(WORKLOADS, row, strict=True):
            _draw(axis, record["workloads"][workload])
        if len(records) > 1:
            row[0].set_ylabel(record["machine"]["device_name"], fontsize=8, color=INK, labelpad=8)
    figure.supxlabel(
        "Bars: speed over that of the course's loop in fp32 on the same machine. Lines: quartiles "
        "over the rounds.\n" + "\n".join(f"Measured on {heading(record)}." for record in records),
        fontsize=7.5,
        color=INK,
    )
    return figure


def _draw(axis: Any, found: dict[str, Any]) -> None:
    places, names, longest = [], [], 0.0
    for group, (recipe, values) in enumerate(found["recipes"].items()):
        for bar, name in enumerate(name for name in LABELS if name in values["sides"]):
            place = group * (len(LABELS) + 1.3) + bar
            speed, times = (
                values["sides"][name]["steps_per_second"]["median"],
                values["over_fp32_course"][name],
            )
            own = name == "course"
            axis.barh(
                place,
                times["median"],
                height=0.86,
                color=COLOURS[recipe],
                alpha=1.0 if own else 0.55,
                hatch=HATCHES[recipe],
                edgecolor="white",
                lw=0,
            )
            axis.plot(
                [times["q1"], times["q3"]], [place, place], color=INK, lw=1.2, solid_capstyle="butt"
            )
            axis.annotate(
                f"{times['median']:.2f}×  {steps_text(speed)} steps/s",
                (max(times["q3"], times["median"]), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=INK,
                fontweight="bold" if own else "normal",
            )
            places.append(place)
            names.append(LABELS[name])
            longest = max(longest, times["q3"], times["median"])
        axis.annotate(
            RECIPES[recipe].label,
            (0, group * (len(LABELS) + 1.3) - 0.62),
            xytext=(4, 0),
            textcoords="offset points",
            va="bottom",
            fontsize=8,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # over the line at 1
        )
    axis.axvline(1, color=INK, lw=0.8, ls=":", zorder=0)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_ylim(max(places) + 0.7, -1.4)
    axis.set_xlim(0, longest * 1.68)  # room for the values
    axis.xaxis.set_major_locator(_ticks(longest))
    axis.tick_params(axis="y", length=0)
    title(axis, found["title"])


def _ticks(longest: float) -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(0.5 if longest < 3 else 1 if longest < 8 else 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure and write the tables; return 1 if there is no record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--image", type=Path, default=ROOT / "docs" / "images" / "benchmark.png")
    parser.add_argument("--readme", type=Path, default=ROOT / "benchmarks" / "README.md")
    chosen = parser.parse_args(argv)
    records = {
        name: newest(chosen.results, name)
        for name in (
            "peers",
            "timer",
            "rounding",
            "scaler",
            "recipes",
            "panels",
            "auditor",
            "explain",
            "predictions",
            "launchers",
        )
    }
    peers = records["peers"]
    if not peers:
        print(
            f"no record of peers in {chosen.results}: run python -m benchmarks.peers first",
            file=sys.stderr,
        )
        return 1
    chosen.image.parent.mkdir(parents=True, exist_ok=True)
    peers_figure(peers).savefig(chosen.image)
    text = chosen.readme.read_text()
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        print(
            f"{chosen.readme} has no place for the tables: it needs the lines\n{BEGIN}\n{END}",
            file=sys.stderr,
        )
        return 1
    chosen.readme.write_text(f"{before}{BEGIN}\n\n{tables(records)}\n\n{END}{after}")
    print(f"written: {chosen.image}, {chosen.readme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
