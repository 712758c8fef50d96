"""Write the measured tables of docs/workshop.md, with their arithmetic, from the record of
benchmarks.workshop.

    python -m benchmarks.workshop_page
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.interleaved import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "workshop.md"
MARK = "<!-- measured: written by python -m benchmarks.workshop_page -->"
SYSTEM_GB = 1.0  # for the operating system
RESERVE = 1.25
CLASSES = (12, 30, 60, 100)
CORES = (2, 4, 8, 16, 32)
Found = dict[str, Any]


def tables(record: Found) -> str:
    """Return the page's measured part, as Markdown."""
    machine, versions = record["machine"], record["versions"]
    learners = record["settings"]["learners"]
    memory = round(record["memory_mb"] / 1024)
    head = (
        f"Measured on {record['date'][:10]} with {learners} learners on {machine['device_name']}, "
        f"{machine['cpu_cores']} cores, {memory} GB; JupyterHub {versions['jupyterhub']}, torch "
        f"{versions['torch']}, {record['settings']['omp_num_threads']} thread a kernel. All of "
        f"them ran every cell at the same moment. Kernels that died: "
        f"{record.get('died', 'none')}; cells that failed: {len(record['failed_cells'])}."
    )
    parts = [_seconds, _memory, _sizes, _cores] if record["chapters"] else []
    if "threads" in record:  # else it ended early
        parts.append(_threads)
    return "\n\n".join([head, *(part(record) for part in parts)])


def _rows(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|" + "---|" * head.count(" | ") + "---|", *rows])


def _range(one: Found | None) -> str:
    if not one:
        return "–"
    return f"{one['median']:.3g} s ({one['q1']:.3g} to {one['q3']:.3g})"


def _seconds(record: Found) -> str:
    start = record["start_up"]
    rows = [
        f"| log-in to the first cell's result | {start['alone_seconds']:.3g} s | "
        f"{_range(start['at_once_seconds'])} |"
    ]
    for stem, one in record["chapters"].items():
        checks, panel = one["checks"], one["panel"]
        leisure = checks["at_leisure"]["times"] or {"median": math.nan}
        rows += [
            f"| `{stem}`: all cells | {one['run_alone_seconds']:.3g} s | "
            f"{_range(one['run_at_once_seconds'])} |",
            f"| `{stem}`: one check | {checks['alone_median_seconds']:.2g} s | "
            f"{checks['at_once_times']:.2g} times that; at moments of their own "
            f"{leisure['median']:.2g} times |",
        ]
        if panel:
            rows += [
                f"| `{stem}`: the panel's new view | {panel['alone_seconds']['median']:.2g} s | "
                f"{_range(panel['at_once_seconds'])} |"
            ]
    return _rows("| what | alone | all at once, median (quartiles) |", rows)


def _memory(record: Found) -> str:
    start = record["start_up"]
    kinds = {
        "JupyterLab's server": start["memory_server"],
        "and an empty kernel": start["memory_server_and_empty_kernel"],
    }
    for stem, one in record["chapters"].items():
        kinds[f"server and `{stem}`, run"] = one["memory_chapter"]
        kinds[f"server and `{stem}`, and its exercises in a second kernel"] = one[
            "memory_chapter_and_exercises"
        ]
    rows = [
        f"| {what} | {one['own_mb_per_learner']['median']:.0f} MB | "
        f"{one['pss_mb_per_learner']['median']:.0f} MB | {one['largest_peak_of_a_process_mb']} MB |"
        for what, one in kinds.items()
    ]
    table = _rows("| a learner's memory | own | PSS | largest peak of a process |", rows)
    return (
        f"{table}\n\n*Own* is what no other process shares; *PSS* adds the learner's part of what "
        f"all have in common, mostly torch's libraries. In common, once for all: "
        f"{_common(record)} MB. Hub and proxy: {_hub(record)} MB.{_reading(record)}"
    )


def _reading(record: Found) -> str:
    if "reading" not in record:
        return ""
    reading = record["reading"]
    return (
        f" Reading, with two notebooks open and nothing running, takes "
        f"{reading['percent_of_a_core_per_learner']['median']:.2g} % of a core a learner, and "
        f"{reading['percent_of_a_core_hub_and_proxy']:.2g} % for hub and proxy."
    )


def _common(record: Found) -> int:
    chapters = record["chapters"].values()
    return max(one["memory_chapter_and_exercises"]["in_common_mb"] for one in chapters)


def _hub(record: Found) -> int:
    chapters = record["chapters"].values()
    return max(one["memory_chapter_and_exercises"]["hub_and_proxy_mb"] for one in chapters)


def _own(record: Found) -> tuple[float, float]:
    """Return a learner's own MB with one chapter and its exercises open, the largest of them, and
    with all of the chapters left open.
    """
    server = record["start_up"]["memory_server"]["own_mb_per_learner"]["median"]
    open_ones = [
        one["memory_chapter_and_exercises"]["own_mb_per_learner"]["median"]
        for one in record["chapters"].values()
    ]
    return max(open_ones), server + sum(one - server for one in open_ones)


def _sizes(record: Found) -> str:
    one, everything = _own(record)
    common, hub = _common(record), _hub(record)
    rows = []
    for learners in CLASSES:
        cells = [
            f"{SYSTEM_GB + (hub + common + RESERVE * learners * own) / 1024:.0f} GB"
            for own in (one, everything)
        ]
        rows += [f"| {learners} | {' | '.join(cells)} |"]
    head = (
        f"| learners | one chapter and its exercises open ({one:.0f} MB) | "
        f"all of these left open ({everything:.0f} MB) |"
    )
    return (
        f"**Memory.** {SYSTEM_GB:g} GB for the system + {hub} MB for hub and proxy + {common} MB "
        f"in common + learners × own memory × {RESERVE:g} for what differs from learner to "
        f"learner:\n\n{_rows(head, rows)}"
    )


def _cores(record: Found) -> str:
    stem, chapter = max(
        record["chapters"].items(), key=lambda item: item[1]["run_alone_cpu_seconds"]
    )
    seconds = chapter["run_alone_cpu_seconds"]
    head = "| learners | " + " | ".join(f"{cores} cores" for cores in CORES) + " |"
    rows = [
        f"| {learners} | "
        + " | ".join(_minutes(math.ceil(learners / cores) * seconds) for cores in CORES)
        + " |"
        for learners in CLASSES
    ]
    return (
        f"**Cores.** All cells of `{stem}` take {seconds:.0f} s of one core, the most of these "
        f"chapters. If all press *Run All Cells* at the same moment, the last one waits "
        f"about learners ÷ cores, rounded up, times that:\n\n{_rows(head, rows)}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _threads(record: Found) -> str:
    rows = [
        f"| {threads} | {one['alone_per_second']:.0f} | {one['all_per_second']:.0f} | "
        f"{one['slowest_learner_per_second']:.3g} |"
        for threads, one in record["threads"]["by_threads"].items()
    ]
    table = _rows("| threads a kernel | one alone | all together | the slowest of all |", rows)
    return (
        f"**Threads.** Matmuls of 512 × 512 a second, on {record['threads']['cores']} cores; the "
        f"last row is what a kernel does by default that sees "
        f"{list(record['threads']['by_threads'])[-1]} cores:\n\n{table}"
    )


def main(arguments: list[str]) -> int:
    """Write the tables of a record (default: results/workshop.json) into the page."""
    record = Path(arguments[0]) if arguments else RESULTS / "workshop.json"
    page = Path(arguments[1]) if len(arguments) > 1 else PAGE
    measured = tables(json.loads(record.read_text("utf-8")))
    text, count = re.subn(
        f"{MARK}\n.*?{MARK}",
        lambda _: f"{MARK}\n{measured}\n{MARK}",
        page.read_text("utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        print(f"{page} has no place for them: two lines {MARK}", file=sys.stderr)
        return 1
    page.write_text(text, "utf-8")
    print(f"written: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
