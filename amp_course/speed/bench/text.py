"""Write a machine's page as plain text, at most 96 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from amp_course.kit.markup import counted
from amp_course.kit.measure import seconds_text
from amp_course.kit.table import text_table
from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.page import SIDES, Page, Result, label_of, ridges
from amp_course.speed.experiments.interleaved import number_text
from amp_course.speed.machine import Machine

WIDTH = 96
LEGEND = """\
ceiling    if AMP changed nothing but the matmuls (Amdahl's law)
predicted  from the price of each op, timed alone: matmuls, casts and all others
measured   the fastest step in fp32 over the fastest AMP step, which took turns; other programs can
           only make a step slower
medians    the same of median steps; in brackets, the least and the most that the quartiles allow
gap        from the ceiling to the AMP step: what takes longer than in fp32 (+) or less long (−).
           “memory” is fetching memory that malloc gave back to the system. This is malloc's
           default, so your own scripts pay for it too."""


def page_text(page: Page) -> str:
    """Return the page, with its recommendation last, where a terminal shows it."""
    blocks = [_head(page), *filter(None, [wrap(page.busy)])]
    if page.measured:
        blocks += [_rates(page.measured), _other_numbers(page.measured)]
    if page.titles() and not page.busy:
        blocks += ["\n".join(map(wrap, _trainings(page))), LEGEND]
    if not page.complete:
        blocks.append(
            "INCOMPLETE: this run was interrupted. Only what had been measured by then is shown."
        )
    advice = recommend(page)
    reasons = (f"- {reason}" for reason in advice.reasons)
    blocks.append("\n".join(["Recommendation", *map(wrap, [advice.headline, *reasons])]))
    return "\n\n".join(blocks)


def machine_facts(page: Page) -> dict[str, str]:
    """Describe the machine and the run in named facts: "device" → "cpu: AMD EPYC"."""
    machine, threads = page.machine, counted(page.machine["threads"], "thread")
    capability, simd = machine.get("compute_capability"), page.settings.get("cpu_capability")
    environment = page.settings.get("environment") or {}
    facts = {
        "device": f"{machine.get('device')}: {machine['device_name']}",
        "CPU": f"{machine.get('cpu_cores')} cores, torch uses {threads}",
        "torch": str(machine.get("torch_version")),
        "Python": f"{machine.get('python_version')} on {machine.get('platform')}",
        "course": str(page.versions.get("course")),
        "run": f"{page.settings.get('plan')}{'' if page.complete else ', INCOMPLETE'}",
    }
    if simd:
        facts["CPU"] += f", {simd}"
    if capability:
        facts["device"] += f", compute capability {capability}"
    if environment:
        facts["set"] = " ".join(f"{name}={value}" for name, value in environment.items())
    return facts


def _head(page: Page) -> str:
    minutes, seconds = divmod(round(page.took_seconds), 60)
    when = page.date[:16].replace("T", " ")
    head = f"What this machine makes of mixed precision, {when} UTC ({minutes} min {seconds} s)"
    facts = (wrap(f"{name:<8}{value}") for name, value in machine_facts(page).items())
    return "\n".join([head, "", *facts])


def _rates(machine: Machine) -> str:
    unit, name = 1e9, "GFLOP/s"
    if max(machine.peaks.values(), default=0.0) >= 1e13:
        unit, name = 1e12, "TFLOP/s"
    head = ["n", *(f"{size:,}" for size in machine.sizes), "ridge"]
    rows = [head]
    for fmt, rates in machine.by_format.items():
        cells = (
            number_text(rates[size] / unit) if size in rates else "–" for size in machine.sizes
        )
        rows.append([fmt, *cells, f"{ridges(machine)[fmt]:.1f}" if rates else "–"])
    whys = [f"{fmt}: {why}" for fmt, why in machine.whys.items()]
    table = text_table(rows, right=head[1:])
    under = "ridge: the FLOPs per byte from which on a matmul is bound by compute, not by memory"
    return "\n".join([f"Matmul rate, n × n matrices, {name}", "", table, *map(wrap, whys), under])


def _other_numbers(machine: Machine) -> str:
    return (
        f"Memory bandwidth {machine.bandwidth / 1e9:.1f} GB/s (a large copy, read and written); "
        f"launching one small op takes {seconds_text(machine.launch_seconds)}"
    )


def _trainings(page: Page) -> Iterator[str]:
    yield "Speed-up over fp32"
    head = ["  recipe", "fp32 step", "its step", "ceiling", "predicted", "measured", "medians"]
    for title in page.titles():
        results = [result for result in page.results if result.title == title]
        yield f"\n{title}"
        if results:
            table = text_table([head, *map(_cells, results)], right=head[1:-1])
            first, *rows = table.split("\n")
            yield first
            for row, result in zip(rows, results, strict=True):
                yield row
                yield f"            gap: {_gap(result)}"
        for left_out in page.left_out:
            if left_out.title == title:
                yield f"  {label_of(left_out.recipe)}  {left_out.why}"


def _cells(result: Result) -> list[str]:
    low, high = result.spread
    times = (seconds_text(result.seconds[side]) for side in SIDES)
    speedups = (result.ceiling, result.predicted, result.measured)
    texts = ("–" if speedup is None else f"{speedup:.2f}" for speedup in speedups)
    medians = f"{result.median_speedup:.2f} ({low:.2f} to {high:.2f})"
    return [f"  {result.label}", *times, *texts, medians]


def _gap(result: Result) -> str:
    return ", ".join(f"{name} {_signed(seconds)}" for name, seconds in result.gap_seconds.items())


def _signed(seconds: float) -> str:
    if abs(seconds) < 1e-8:
        return "0"
    return f"{'−' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def wrap(line: str) -> str:
    """Break a line that is wider than a page, and indent the rest of a list item or table row."""
    if line.startswith("\n") or len(line) <= WIDTH:
        return line
    indent = " " * (12 if line.startswith("  ") else 2 if line.startswith("- ") else 0)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False)
