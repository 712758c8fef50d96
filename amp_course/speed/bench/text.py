"""Write a machine's page as plain text, at most 96 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from amp_course.kit.measure import seconds_text
from amp_course.kit.table import text_table
from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.page import Page, Result, label_of, ridges
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
    """Return the page, its recommendation last, where a terminal shows it."""
    blocks = [_head(page), *filter(None, [wrap(page.busy)])]
    if page.measured:
        blocks += [_rates(page.measured), _other_numbers(page.measured)]
    if page.titles() and not page.busy:
        blocks.append("\n".join(wrap(line) for line in _trainings(page)))
        blocks.append(LEGEND)
    if not page.complete:
        blocks.append(
            "INCOMPLETE: this run was interrupted. Only what had been measured by then is shown."
        )
    advice = recommend(page)
    lines = [wrap(advice.headline), *(wrap(f"- {reason}") for reason in advice.reasons)]
    return "\n\n".join([*blocks, "Recommendation\n" + "\n".join(lines)])


def machine_facts(page: Page) -> dict[str, str]:
    """Return what a machine is, by name, for people: "device" → "cpu: AMD EPYC"."""
    machine, threads = page.machine, page.machine.get("threads")
    capability, simd = machine.get("compute_capability"), page.settings.get("cpu_capability")
    environment = page.settings.get("environment") or {}
    facts = {
        "device": f"{machine.get('device')}: {machine['device_name']}",
        "CPU": f"{machine.get('cpu_cores')} cores, torch uses {threads} "
        f"thread{'s' * (threads != 1)}",
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
    said = f"What this machine makes of mixed precision, {when} UTC ({minutes} min {seconds} s)"
    return "\n".join(
        [said, "", *(wrap(f"{name:<8}{value}") for name, value in machine_facts(page).items())]
    )


def _rates(machine: Machine) -> str:
    sizes = sorted({rate.size for rate in machine.rates})
    rates = {(rate.fmt, rate.size): rate for rate in machine.rates}
    unit, name = (
        (1e12, "TFLOP/s") if max(machine.peaks.values(), default=0.0) >= 1e13 else (1e9, "GFLOP/s")
    )
    head = ["n", *(f"{size:,}" for size in sizes), "ridge"]
    rows, why = [head], []
    found = ridges(machine)
    for fmt in dict.fromkeys(rate.fmt for rate in machine.rates):
        flops = [rates[fmt, size].flops if (fmt, size) in rates else None for size in sizes]
        ridge = f"{found[fmt]:.1f}" if fmt in found else "–"
        rows.append([fmt, *(_rate(one / unit) if one else "–" for one in flops), ridge])
        why += [f"{fmt}: {rate.why}" for rate in machine.rates if rate.fmt == fmt and rate.why][:1]
    table = text_table(rows, right=head[1:])
    under = "ridge: the FLOPs per byte from which on a matmul is bound by compute, not by memory"
    return "\n".join([f"Matmul rate, n × n matrices, {name}", "", table, *map(wrap, why), under])


def _other_numbers(machine: Machine) -> str:
    return (
        f"Memory bandwidth {machine.bandwidth / 1e9:.1f} GB/s (a large copy, read and written); "
        f"launching one small op takes {seconds_text(machine.launch_seconds)}"
    )


def _trainings(page: Page) -> Iterator[str]:
    yield "Speed-up over fp32"
    head = ["  recipe", "fp32 step", "its step", "ceiling", "predicted", "measured", "medians"]
    for title in page.titles():
        results = [one for one in page.results if one.title == title]
        yield f"\n{title}"
        table = (
            text_table([head, *map(_cells, results)], right=head[1:-1]).split("\n")
            if results
            else []
        )
        yield from table[:1]
        for row, one in zip(table[1:], results, strict=True):
            yield row
            yield f"            gap: {_gap(one)}"
        yield from (
            f"  {label_of(one.recipe)}  {one.why}" for one in page.left_out if one.title == title
        )


def _cells(one: Result) -> list[str]:
    low, high = one.spread
    predicted = "–" if one.predicted is None else f"{one.predicted:.2f}"
    times = [seconds_text(one.seconds[side]) for side in ("fp32", "amp")]
    medians = f"{one.median_speedup:.2f} ({low:.2f} to {high:.2f})"
    return [
        f"  {one.label}",
        *times,
        f"{one.ceiling:.2f}",
        predicted,
        f"{one.measured:.2f}",
        medians,
    ]


def _gap(one: Result) -> str:
    return ", ".join(f"{name} {_signed(seconds)}" for name, seconds in one.gap_seconds.items())


def _signed(seconds: float) -> str:
    return (
        f"{'−' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"
        if abs(seconds) >= 1e-8
        else "0"
    )


def _rate(number: float) -> str:
    return (
        f"{number:,.0f}"
        if number >= 99.5
        else f"{number:.1f}"
        if number >= 9.95
        else f"{number:.2f}"
    )


def wrap(line: str) -> str:
    """Break a line that is wider than a page; a list item and a table row are indented on."""
    if line.startswith("\n"):
        return line
    indent = " " * (12 if line.startswith("  ") else 2 if line.startswith("- ") else 0)
    return (
        textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False)
        if len(line) > WIDTH
        else line
    )
