"""Compare two machines' pages: what differs, and how many times faster the second machine is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amp_course.kit.errors import CourseError, describe_os_error
from amp_course.kit.measure import seconds_text
from amp_course.kit.table import text_table
from amp_course.speed.bench.advice import recommend, short
from amp_course.speed.bench.page import BENCHMARK, SCHEMA, Page, Result, label_of, ridges
from amp_course.speed.bench.text import machine_facts, wrap

Row = list[str]
_RATIO = "B's speed / A's"  # also where times are given: above 1, B is the faster one


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def read_page(path: Path) -> Page:
    """Read a page from the JSON that `amp-course bench` wrote.

    Raises CourseError, with cause and fix, for a file that cannot be read, is no such JSON, or has
    another schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CourseError(describe_os_error(error, f"{path} could not be read")) from None
    except ValueError:  # also UnicodeDecodeError
        raise CourseError(
            f"{path} is not JSON: give the .json file that `amp-course bench` wrote."
        ) from None
    if not isinstance(data, dict) or data.get("benchmark") != BENCHMARK:
        raise CourseError(
            f"{path} is JSON, but not from `amp-course bench`: give a file that this command wrote."
        )
    schema = data.get("schema")
    if schema != SCHEMA:
        fix = "make it again, with the current course's `amp-course bench`"
        if isinstance(schema, int) and schema > SCHEMA:
            fix = "run `amp-course update`"
        raise CourseError(
            f"{path} has schema {schema!r}, and this version of the course reads schema {SCHEMA}: "
            f"{fix}."
        )
    try:
        return Page.from_dict(data)
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CourseError(
            f"{path} is damaged or was edited ({what}): make it again with `amp-course bench`, or "
            f"get a new copy."
        ) from None


def compare_files(first: Path, second: Path) -> str:
    """Read two pages and return their comparison as text.

    Raises CourseError as `read_page` does, and if both are the same file.
    """
    pages = read_page(first), read_page(second)
    if os.path.samefile(first, second):
        raise CourseError(f"{first} and {second} are the same file: give two.")
    both = "\n".join(
        f"{name}: {path} ({page.date[:10]})"
        for name, path, page in zip("AB", (first, second), pages, strict=True)
    )
    return f"{both}\n\n{compare(*pages)}"


def compare(a: Page, b: Page) -> str:
    """Return the comparison of two pages as text."""
    blocks = [_differences(a, b)]
    rows = list(_machine_rows(a, b))
    if rows:
        blocks.append(text_table([["", "A", "B", _RATIO], *rows], right=["A", "B", _RATIO]))
    blocks.append(_trainings(a, b))
    both = {"A": a, "B": b}
    left_out = "\n".join(
        wrap(f"{name}: {short(one.title)}, {label_of(one.recipe)}: {one.why}")
        for name, page in both.items()
        for one in page.left_out
    )
    if left_out:
        blocks.append(left_out)
    blocks += [wrap(f"{name}: {recommend(page).headline}") for name, page in both.items()]
    return "\n\n".join(blocks)


def _differences(a: Page, b: Page) -> str:
    facts_a, facts_b = machine_facts(a), machine_facts(b)
    lines, same = ["Machine and versions"], []
    for name in facts_a | facts_b:
        fact_a, fact_b = facts_a.get(name, "–"), facts_b.get(name, "–")
        if fact_a == fact_b:
            same.append(f"{name}: {fact_a}")
        else:
            lines += [wrap(f"{name:<8}A: {fact_a}"), wrap(f"        B: {fact_b}")]
    if len(lines) == 1:
        lines.append("no difference")
    if same:
        lines.append(wrap(f"The same in both: {'; '.join(same)}."))
    return "\n".join(lines)


def _machine_rows(a: Page, b: Page) -> Iterator[Row]:
    if a.measured is None or b.measured is None:
        return
    both = a.measured, b.measured
    for fmt in both[0].peaks | both[1].peaks:
        name = f"{fmt} matmul, best rate, GFLOP/s"
        yield _rates_row(name, *(machine.peaks.get(fmt) for machine in both))
    yield _rates_row("memory bandwidth, GB/s", *(machine.bandwidth for machine in both))
    yield _times_row("launching one op, µs", [1e6 * machine.launch_seconds for machine in both])
    ridges_a, ridges_b = map(ridges, both)
    for fmt in [fmt for fmt in ridges_a if fmt in ridges_b]:
        yield [f"{fmt} ridge, FLOPs per byte", f"{ridges_a[fmt]:.1f}", f"{ridges_b[fmt]:.1f}", ""]


def _rates_row(name: str, a: float | None, b: float | None) -> Row:
    cells = ["–" if rate is None else _figures(rate / 1e9) for rate in (a, b)]
    return [name, *cells, _figures(b / a) if a and b else "–"]


def _trainings(a: Page, b: Page) -> str:
    on_a, on_b = ({(one.workload, one.recipe): one for one in page.results} for page in (a, b))
    workloads = [workload for workload, _ in on_a]
    pairs = [(on_a[key], on_b[key]) for key in on_a if key in on_b]
    if not pairs:
        return "No training was timed under the same recipe on both."
    pairs.sort(key=lambda pair: workloads.index(pair[0].workload))
    head = ["", "A", "B", _RATIO]
    table = text_table([head, *(row for pair in pairs for row in _training_rows(*pair))], head[1:])
    if all(a.title == b.title for a, b in pairs):
        return table
    return f"{table}\n" + wrap(
        "Where the sizes of a training differ, only its speed-ups compare: no step times are given."
    )


def _training_rows(a: Result, b: Result) -> Iterator[Row]:
    yield [f"{short(a.title)}, {a.label}", "", "", ""]
    yield ["  speed-up over fp32", f"{a.measured:.2f}", f"{b.measured:.2f}", ""]
    spreads = ("{:.2f} to {:.2f}".format(*result.spread) for result in (a, b))
    yield ["  quartiles allow", *spreads, ""]
    yield ["  ceiling", f"{a.ceiling:.2f}", f"{b.ceiling:.2f}", ""]
    if a.title == b.title:
        for side, name in (("fp32", "  fp32 step"), ("amp", "  its step")):
            yield _times_row(name, [result.seconds[side] for result in (a, b)], seconds_text)


def _times_row(name: str, times: Sequence[float], text: Callable[[float], str] = _figures) -> Row:
    return [name, *map(text, times), _figures(times[0] / times[1])]
