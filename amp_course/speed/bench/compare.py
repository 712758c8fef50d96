"""Put two machines' pages next to each other: what differs between them,
and how many times faster the second is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from amp_course.kit.errors import CourseError, describe_os_error
from amp_course.kit.measure import seconds_text
from amp_course.kit.table import text_table
from amp_course.speed.bench.advice import recommend, short
from amp_course.speed.bench.page import BENCHMARK, SCHEMA, Page, Result, label_of, ridges
from amp_course.speed.bench.text import machine_facts, wrap

Row = list[str]
_RATIO = "B's speed / A's"  # also where times are given: above 1, B is the faster one


def read_page(path: Path) -> Page:
    """Read a page from the JSON that `amp-course bench` wrote.

    Raises CourseError, with cause and fix, for a file that cannot be read, is no such JSON, or is
    of another schema.
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
        newer = isinstance(schema, int) and schema > SCHEMA
        fix = (
            "run `amp-course update`"
            if newer
            else "make it again, with the current course's `amp-course bench`"
        )
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
    Raises CourseError as `read_page`, and for one file given twice.
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
    left_out = [
        wrap(f"{name}: {short(one.title)}, {label_of(one.recipe)}: {one.why}")
        for name, page in both.items()
        for one in page.left_out
    ]
    if left_out:
        blocks.append("\n".join(left_out))
    blocks += [wrap(f"{name}: {recommend(page).headline}") for name, page in both.items()]
    return "\n\n".join(blocks)


def _differences(a: Page, b: Page) -> str:
    left, right = machine_facts(a), machine_facts(b)
    lines, same = [], []
    for name in left | right:
        one, two = left.get(name, "–"), right.get(name, "–")
        if one == two:
            same.append(f"{name}: {one}")
        else:
            lines += [wrap(f"{name:<8}A: {one}"), wrap(f"        B: {two}")]
    said = ["Machine and versions", *(lines or ["no difference"])]
    return "\n".join([*said, wrap(f"The same in both: {'; '.join(same)}.")] if same else said)


def _machine_rows(a: Page, b: Page) -> Iterator[Row]:
    if a.measured is None or b.measured is None:
        return
    one, two = a.measured, b.measured
    for fmt in one.peaks | two.peaks:
        yield _row(f"{fmt} matmul, best rate, GFLOP/s", one.peaks.get(fmt), two.peaks.get(fmt), 1e9)
    yield _row("memory bandwidth, GB/s", one.bandwidth, two.bandwidth, 1e9)
    launches = one.launch_seconds, two.launch_seconds
    shown = [_figures(seconds * 1e6) for seconds in launches]
    yield ["launching one op, µs", *shown, _figures(launches[0] / launches[1])]
    left, right = ridges(one), ridges(two)
    for fmt in [fmt for fmt in left if fmt in right]:
        yield [f"{fmt} ridge, FLOPs per byte", f"{left[fmt]:.1f}", f"{right[fmt]:.1f}", ""]


def _row(name: str, one: float | None, two: float | None, unit: float) -> Row:
    shown = ["–" if value is None else _figures(value / unit) for value in (one, two)]
    return [name, *shown, _figures(two / one) if one and two else "–"]


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def _trainings(a: Page, b: Page) -> str:
    left, right = ({(one.workload, one.recipe): one for one in page.results} for page in (a, b))
    workloads = [workload for workload, _ in left]
    both = sorted((key for key in left if key in right), key=lambda key: workloads.index(key[0]))
    if not both:
        return "No training was timed under the same recipe on both."
    head = ["", "A", "B", _RATIO]
    rows, other_sizes = [head], False
    for key in both:
        rows += _training_rows(left[key], right[key])
        other_sizes |= left[key].title != right[key].title
    said = text_table(rows, right=head[1:])
    if other_sizes:
        said += "\n" + wrap(
            "Where the sizes of a training differ, only its speed-ups compare: no step times are "
            "given."
        )
    return said


def _training_rows(one: Result, two: Result) -> list[Row]:
    def row(name: str, show: Callable[[Result], str]) -> Row:
        return [f"  {name}", show(one), show(two), ""]

    rows = [
        [f"{short(one.title)}, {one.label}", "", "", ""],
        row("speed-up over fp32", lambda result: f"{result.measured:.2f}"),
        row("quartiles allow", lambda result: "{:.2f} to {:.2f}".format(*result.spread)),
        row("ceiling", lambda result: f"{result.ceiling:.2f}"),
    ]
    if one.title == two.title:
        for side, words in (("fp32", "  fp32 step"), ("amp", "  its step")):
            times = [result.seconds[side] for result in (one, two)]
            rows.append([words, *map(seconds_text, times), _figures(times[0] / times[1])])
    return rows
