"""Draw what `HeadroomMap` shows, as HTML: a step in words,
its tensors as bars on the format's range, and the headroom so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from amp_course.bits.formats import FloatFormat, find_format
from amp_course.bits.numerals import raised
from amp_course.debugging.headroom import LEVELS, DivergingRun, describe_levels, level_of
from amp_course.kit.markup import inline_html
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, polyline, swatch, text
from amp_course.watching.readings import Kind, Reading

Found = Mapping[str, Sequence[Reading]]  # readings by module, as `RangeWatch.of` returns them

# For each LEVELS, the hatch that is the second cue: `kit.svg` draws it in white, on pale colours
# in black.
HATCHES = ("..", "--", "", "||", "//", "xx")
SKIPPED = ("#777777", "\\\\")  # a skipped step, and a loss that is not finite
_INSIDE = "var(--jp-layout-color2, #eee)"  # the range of the format
_WIDTH, _LEFT, _BARS_END, _MAP_END = 760, 160, 545, 740
_BAR, _ROW = 18, 13
_LOSS_TOP, _LOSS_FLOOR = 24, 68
_LONGEST = 24  # characters of a module's name; longer ones lose their beginning


def headroom_view(run: DivergingRun, kind: Kind, step: int) -> str:
    """Return the panel's HTML for one step, counted from 1."""
    found = run.ranges.of(kind)
    told = (
        f'<div role="status" aria-live="polite" '
        f'style="margin-bottom:8px">{inline_html(describe_step(run, kind, step))}</div>'
    )
    parts = (
        [told, _bars(run, kind, found, step), _history(run, kind, found, step), _legend()]
        if found
        else [told]
    )
    return f'<div style="color:{INK};line-height:1.5">{"".join(parts)}</div>'


def describe_step(run: DivergingRun, kind: Kind, step: int) -> str:
    """Say what a step did and which tensor was nearest to the end of the format,
    in `kit.markup`'s Markdown.
    """
    done = "the scaler skips the step" if step in run.skipped else "the optimizer steps"
    said = (
        f"**Step {step} of {len(run.losses)}:** the loss is {loss_text(run.losses[step - 1])}, "
        f"and {done}."
    )
    if run.death is not None and step > run.death:
        said += f" The run died in step {run.death}."
    shown = readings_in(run.ranges.of(kind), step)
    if not shown:
        return f"{said} No {kind} was measured in this step."
    hot = hottest([*shown.values()])
    said += f" Hottest {kind}: `{_name(hot.module)}`, {headroom_text(hot)}."
    cold = max(shown.values(), key=lambda reading: reading.lost)
    if cold.lost > 0.1:
        said += f" Most is lost in `{_name(cold.module)}`: {100 * cold.lost:.0f} % of its values."
    return said


def readings_in(found: Found, step: int) -> dict[str, Reading]:
    """Return the modules' readings in a step, the hottest of a module that ran more than once."""
    inside = {
        module: [one for one in readings if one.number == step]
        for module, readings in found.items()
    }
    return {module: hottest(readings) for module, readings in inside.items() if readings}


def hottest(readings: Sequence[Reading]) -> Reading:
    """Return the reading with the least headroom; NaN has none."""
    return min(readings, key=lambda one: -math.inf if math.isnan(one.headroom) else one.headroom)


def headroom_text(reading: Reading) -> str:
    """Say how far a reading is from overflow. Examples:
    "3.2 doublings left", "overflows by 0.5 doublings", "NaN"
    """
    if not reading.finite:
        return "NaN" if math.isnan(reading.largest) else "inf"
    if reading.largest == 0:
        return "all zeros"
    if reading.headroom < 0:
        return f"overflows by {-reading.headroom:.1f} doublings"
    return f"{reading.headroom:.1f} doublings left"


def loss_text(loss: float) -> str:
    """Write a loss. Examples: 0.25 → "0.250", 1234.5 → "1,234", nan → "NaN" """
    if math.isnan(loss):
        return "NaN"
    return f"{loss:,.3f}" if abs(loss) < 100 else f"{loss:,.0f}"


def _name(module: str) -> str:
    return module or "the model"


def _label(y: float, module: str, size: float) -> str:
    name = _name(module)
    short_name = name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
    return text(_LEFT - 8, y, short_name, anchor="end", size=size)


# ---- one step: a bar for each module ----


def bar_end(largest: float, fmt: FloatFormat) -> float:
    """Return the x at which the bar of a largest value ends;
    a tenth of the range is added on either side of the format.
    """
    if not math.isfinite(largest):
        return _BARS_END
    low, high = math.log2(fmt.smallest_subnormal), math.log2(fmt.max)
    exponent = math.log2(largest) if largest else -math.inf
    share = ((exponent - low) / (high - low) + 0.1) / 1.2
    return _LEFT + (_BARS_END - _LEFT) * min(1.0, max(0.0, share))


def _bars(run: DivergingRun, kind: Kind, found: Found, step: int) -> str:
    """Draw where the largest value of each tensor lies, on an axis of powers of two."""
    fmt, shown = find_format(run.ranges.dtype), readings_in(found, step)
    top, floor = 36, 36 + _BAR * len(found)
    first, end = bar_end(fmt.smallest_subnormal, fmt), bar_end(fmt.max, fmt)
    parts = [
        text(8, 14, f"largest {kind}", bold=True),
        box(first, top, end - first, floor - top, _INSIDE, tip=f"the range of {fmt.name}"),
        text(end, top - 6, f"{fmt.max:,.6g}", anchor="middle"),
    ]
    for value in (fmt.smallest_subnormal, fmt.smallest_normal, 1.0):
        x = bar_end(value, fmt)
        exponent = round(math.log2(value))
        parts.append(line(x, top, x, floor, stroke=GRID, width=0.5))
        parts.append(
            text(
                x, top - 6, f"2{raised(exponent)}" if exponent else "1", anchor="middle", fill=FAINT
            )
        )
    words = []
    for row, module in enumerate(found):
        y, reading = top + row * _BAR, shown.get(module)
        told = _row_text(reading)
        parts += [_label(y + 13, module, 12), text(_BARS_END + 8, y + 13, told)]
        words.append(f"{_name(module)} {told}")
        if reading is not None:
            parts.append(_bar(y, reading, bar_end(reading.largest, fmt), told))
    # last: the end is marked on the bars, too
    parts.append(line(end, top - 2, end, floor + 2, stroke=INK, width=1.5))
    label = f"Step {step}, largest {kind} by module, for {fmt.name}: {'; '.join(words)}."
    return picture(_WIDTH, floor + 14, *parts, label=label)


def _row_text(reading: Reading | None) -> str:
    if reading is None:
        return "not measured"
    return headroom_text(reading) + (
        f", {100 * reading.lost:.0f} % lost" if reading.lost > 0.1 else ""
    )


def _bar(y: float, reading: Reading, end: float, told: str) -> str:
    """Draw a bar with a thin frame, for the paler colours would drown on a light page."""
    level = level_of(reading)
    tip = f"{_name(reading.module)}: largest {reading.largest:,.4g}, {told}"
    frame = box(_LEFT, y + 2, end - _LEFT, _BAR - 4, FAINT)
    return frame + box(
        _LEFT + 1,
        y + 3,
        end - _LEFT - 2,
        _BAR - 6,
        LEVELS[level][1],
        hatch=HATCHES[level],
        tip=tip,
    )


# ---- all steps so far: the loss, the skipped steps, and a strip for each module ----


def _history(run: DivergingRun, kind: Kind, found: Found, step: int) -> str:
    """Draw the steps up to the chosen one over an axis of all steps, and mark that one."""
    last = len(run.losses)
    top = _LOSS_FLOOR + 26
    floor = top + _ROW * len(found)
    past = {
        module: [one for one in readings if one.number <= step]
        for module, readings in found.items()
    }
    parts = [
        text(8, 14, "so far", bold=True),
        *_losses(run.losses[:step], last),
        *_skips(run, step, last),
    ]
    parts += [
        line(_LEFT, y, _MAP_END, y, stroke=GRID, width=0.5)
        for y in (_LOSS_TOP, _LOSS_FLOOR, top, floor)
    ]
    for row, (module, readings) in enumerate(past.items()):
        parts.append(_label(top + row * _ROW + 10, module, 11))
        parts += _strip(top + row * _ROW, module, readings, run.ranges.every, last)
    for x in (_across(step - 1, last), _across(step, last)):
        parts.append(line(x, 18, x, floor + 3, stroke=INK, width=1.2))
    parts.append(text(_across(step - 0.5, last), 13, f"step {step}", anchor="middle"))
    ticks = [1, *range(_tick_distance(last), last + 1, _tick_distance(last))]
    parts += [
        text(_across(tick - 0.5, last), floor + 15, str(tick), anchor="middle", fill=FAINT)
        for tick in ticks
    ]
    skipped = sum(one <= step for one in run.skipped)
    label = (
        f"Steps 1 to {step}, {kind} by module: {describe_levels(past, 'step')}. Skipped: {skipped}."
    )
    return picture(_WIDTH, floor + 22, *parts, label=label)


def _across(step: float, last: int) -> float:
    return _LEFT + (_MAP_END - _LEFT) * step / last


def _tick_distance(last: int) -> int:
    """Return a round distance that gives up to 12 ticks. Example: 60 → 5"""
    return next(
        one
        for power in itertools.count()
        for one in (5 * 10**power, 10 * 10**power)
        if last <= 12 * one
    )


def _losses(losses: Sequence[float], last: int) -> list[str]:
    """Draw the loss as a line, on a logarithmic axis if it can be,
    and a hatched box where it is not finite.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    logarithmic = all(loss > 0 for loss in finite)
    heights = [math.log10(loss) if logarithmic else loss for loss in finite]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    parts, points = (
        [text(_LEFT - 8, (_LOSS_TOP + _LOSS_FLOOR) / 2 + 4, "loss", anchor="end", size=11)],
        [],
    )
    for number, loss in enumerate(losses, 1):
        if math.isfinite(loss):
            height = (math.log10(loss) if logarithmic else loss) - low
            y = _LOSS_FLOOR - (_LOSS_FLOOR - _LOSS_TOP) * (
                height / (high - low) if high > low else 0.5
            )
            points.append((_across(number - 0.5, last), y))
            continue
        parts += [polyline(points, stroke=INK)] if points else []
        points = []
        x, tip = _across(number - 1, last), f"step {number}: the loss is {loss_text(loss)}"
        colour, hatch = LEVELS[-1][1], HATCHES[-1]
        width = _across(1, last) - _LEFT
        parts.append(
            box(x, _LOSS_TOP, width, _LOSS_FLOOR - _LOSS_TOP, colour, hatch=hatch, tip=tip)
        )
    return parts + ([polyline(points, stroke=INK)] if points else [])


def _skips(run: DivergingRun, step: int, last: int) -> list[str]:
    y, width = _LOSS_FLOOR + 6, _across(1, last) - _LEFT
    parts = [text(_LEFT - 8, y + 10, "skipped steps", anchor="end", size=11)]
    for number in run.skipped:
        if number <= step:
            tip, (colour, hatch) = f"step {number}: skipped", SKIPPED
            parts.append(
                box(_across(number - 1, last), y, width, _ROW - 1, colour, hatch=hatch, tip=tip)
            )
    return parts


def _strip(y: float, module: str, readings: Sequence[Reading], every: int, last: int) -> list[str]:
    """Draw a module's levels; steps with the same one in a row share a box."""
    levels: dict[int, int] = {}
    for reading in readings:
        levels[reading.number] = max(level_of(reading), levels.get(reading.number, 0))
    parts = []
    for (kind, _), group in itertools.groupby(
        enumerate(levels.items()), lambda one: (one[1][1], one[1][0] - every * one[0])
    ):
        steps = [number for _, (number, _) in group]
        end = min(steps[-1] + every - 1, last)
        when = f"step {steps[0]}" if end == steps[0] else f"steps {steps[0]}–{end}"
        x, tip = _across(steps[0] - 1, last), f"{_name(module)}, {when}: {LEVELS[kind][0]}"
        width = _across(end, last) - x
        parts.append(box(x, y, width, _ROW - 1, LEVELS[kind][1], hatch=HATCHES[kind], tip=tip))
    return parts


def _legend() -> str:
    marks = {
        name: swatch(colour, hatch)
        for (name, colour, _), hatch in zip(LEVELS, HATCHES, strict=True)
    }
    marks["step skipped by the scaler"] = swatch(*SKIPPED)
    cells = [
        f'<span style="white-space:nowrap;margin-right:16px">{mark} {name}</span>'
        for name, mark in marks.items()
    ]
    return f"<div>{' '.join(cells)}</div>"
