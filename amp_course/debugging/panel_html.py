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
from amp_course.kit.panel_parts import in_row, status, view
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, polyline, swatch, text
from amp_course.watching.readings import Kind, Reading

_SKIPPED = ("#777777", "\\\\")  # the colour and hatch of a skipped step
_INSIDE = "var(--jp-layout-color2, #eee)"  # the range of the format
_WIDTH, _LEFT, _BARS_END, _MAP_END = 760, 160, 545, 740
_BAR, _ROW = 18, 13
_LOSS_TOP, _LOSS_FLOOR = 24, 68
_LONGEST = 24  # characters of a module's name; longer ones lose their beginning


def headroom_view(run: DivergingRun, kind: Kind, step: int) -> str:
    """Return the panel's HTML for one step, counted from 1."""
    shown = {
        module: one
        for module, readings in run.ranges.of(kind).items()
        for one in readings
        if one.number == step
    }
    summary = inline_html(_describe_step(run, kind, step, list(shown.values())))
    parts = [status(summary, "margin-bottom:8px")]
    if shown:
        parts += [_bars(run, kind, shown, step), _history(run, kind, step), _legend()]
    return view(*parts)


def _describe_step(run: DivergingRun, kind: Kind, step: int, shown: Sequence[Reading]) -> str:
    """Describe what a step did, and the tensor nearest to overflow, in `kit.markup`'s Markdown."""
    done = "the scaler skips the step" if step in run.skipped else "the optimizer steps"
    words = (
        f"**Step {step} of {len(run.losses)}:** the loss is {_loss_text(run.losses[step - 1])}, "
        f"and {done}."
    )
    if run.death is not None and step > run.death:
        words += f" The run died in step {run.death}."
    if not shown:
        return f"{words} No {kind} was measured in this step."
    hot = min(shown, key=lambda one: -math.inf if math.isnan(one.headroom) else one.headroom)
    words += f" Hottest {kind}: `{_name(hot.module)}`, {headroom_text(hot)}."
    cold = max(shown, key=lambda reading: reading.lost)
    if cold.lost > 0.1:
        words += f" Most is lost in `{_name(cold.module)}`: {100 * cold.lost:.0f} % of its values."
    return words


def headroom_text(reading: Reading) -> str:
    """Describe how far a reading is from overflow: "3.2 doublings left", "NaN"."""
    if not reading.finite:
        return "NaN" if math.isnan(reading.largest) else "inf"
    if reading.largest == 0:
        return "all zeros"
    if reading.headroom < 0:
        return f"overflows by {-reading.headroom:.1f} doublings"
    return f"{reading.headroom:.1f} doublings left"


def _loss_text(loss: float) -> str:
    """Write a loss: 0.25 → "0.250", 1234.5 → "1,234", nan → "NaN"."""
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
    """Return the x at which the bar of a largest value ends; the axis is the range of the format,
    and a tenth more on either side.
    """
    if not math.isfinite(largest):
        return _BARS_END
    low, high = math.log2(fmt.smallest_subnormal), math.log2(fmt.max)
    exponent = math.log2(largest) if largest else -math.inf
    share = ((exponent - low) / (high - low) + 0.1) / 1.2
    return _LEFT + (_BARS_END - _LEFT) * min(1.0, max(0.0, share))


def _bars(run: DivergingRun, kind: Kind, shown: Mapping[str, Reading], step: int) -> str:
    """Draw where the largest value of each tensor lies, on an axis of powers of two."""
    fmt = find_format(run.ranges.dtype)
    top, floor = 36, 36 + _BAR * len(shown)
    first, end = bar_end(fmt.smallest_subnormal, fmt), bar_end(fmt.max, fmt)
    parts = [
        text(8, 14, f"largest {kind}", bold=True),
        box(first, top, end - first, floor - top, _INSIDE, tip=f"the range of {fmt.name}"),
        text(end, top - 6, f"{fmt.max:,.6g}", anchor="middle"),
    ]
    for value in (fmt.smallest_subnormal, fmt.smallest_normal, 1.0):
        x = bar_end(value, fmt)
        exponent = round(math.log2(value))
        word = f"2{raised(exponent)}" if exponent else "1"
        parts.append(line(x, top, x, floor, stroke=GRID, width=0.5))
        parts.append(text(x, top - 6, word, anchor="middle", fill=FAINT))
    words = []
    for row, (module, reading) in enumerate(shown.items()):
        y, headroom = top + row * _BAR, headroom_text(reading)
        if reading.lost > 0.1:
            headroom += f", {100 * reading.lost:.0f} % lost"
        parts += [_label(y + 13, module, 12), text(_BARS_END + 8, y + 13, headroom)]
        parts.append(_bar(y, reading, bar_end(reading.largest, fmt), headroom))
        words.append(f"{_name(module)} {headroom}")
    # Last, so that the end of the format is drawn over the bars
    parts.append(line(end, top - 2, end, floor + 2, stroke=INK, width=1.5))
    label = f"Step {step}, largest {kind} by module, for {fmt.name}: {'; '.join(words)}."
    return picture(_WIDTH, floor + 14, *parts, label=label)


def _bar(y: float, reading: Reading, end: float, headroom: str) -> str:
    """Draw a bar with a thin frame: without it, pale colours are hard to see on a light page."""
    level = LEVELS[level_of(reading)]
    tip = f"{_name(reading.module)}: largest {reading.largest:,.4g}, {headroom}"
    frame = box(_LEFT, y + 2, end - _LEFT, _BAR - 4, FAINT)
    width, height = end - _LEFT - 2, _BAR - 6
    return frame + box(_LEFT + 1, y + 3, width, height, level.colour, hatch=level.hatch, tip=tip)


# ---- all steps so far: the loss, the skipped steps, and a strip for each module ----


def _history(run: DivergingRun, kind: Kind, step: int) -> str:
    """Draw the steps up to the chosen one over an axis of all steps, and mark that one."""
    last = len(run.losses)
    past = {
        module: [one for one in readings if one.number <= step]
        for module, readings in run.ranges.of(kind).items()
    }
    top = _LOSS_FLOOR + 26
    floor = top + _ROW * len(past)
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
        parts += _strip(top + row * _ROW, module, readings, last)
    for x in (_across(step - 1, last), _across(step, last)):
        parts.append(line(x, 18, x, floor + 3, stroke=INK, width=1.2))
    parts.append(text(_across(step - 0.5, last), 13, f"step {step}", anchor="middle"))
    distance = 5 * math.ceil(last / 60)  # up to 12 ticks
    parts += [
        text(_across(tick - 0.5, last), floor + 15, str(tick), anchor="middle", fill=FAINT)
        for tick in (1, *range(distance, last + 1, distance))
    ]
    skipped = sum(one <= step for one in run.skipped)
    label = (
        f"Steps 1 to {step}, {kind} by module: {describe_levels(past, 'step')}. Skipped: {skipped}."
    )
    return picture(_WIDTH, floor + 22, *parts, label=label)


def _across(step: float, last: int) -> float:
    return _LEFT + (_MAP_END - _LEFT) * step / last


def _losses(losses: Sequence[float], last: int) -> list[str]:
    """Draw the loss as a line on a logarithmic axis, and a hatched box where it is not finite."""
    heights = [math.log10(max(loss, 1e-9)) if math.isfinite(loss) else None for loss in losses]
    finite = [height for height in heights if height is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    parts = [text(_LEFT - 8, (_LOSS_TOP + _LOSS_FLOOR) / 2 + 4, "loss", anchor="end", size=11)]
    points: list[tuple[float, float]] = []
    tall, fill = _LOSS_FLOOR - _LOSS_TOP, (LEVELS[-1].colour, LEVELS[-1].hatch)
    for number, height in enumerate(heights, 1):
        if height is not None:
            y = _LOSS_FLOOR - tall * ((height - low) / (high - low) if high > low else 0.5)
            points.append((_across(number - 0.5, last), y))
            continue
        parts += [polyline(points, stroke=INK)] if points else []
        points = []
        tip = f"step {number}: the loss is {_loss_text(losses[number - 1])}"
        parts.append(_cell(number, number, _LOSS_TOP, tall, last, fill, tip))
    return parts + ([polyline(points, stroke=INK)] if points else [])


def _skips(run: DivergingRun, step: int, last: int) -> list[str]:
    y = _LOSS_FLOOR + 6
    return [
        text(_LEFT - 8, y + 10, "skipped steps", anchor="end", size=11),
        *(
            _cell(number, number, y, _ROW - 1, last, _SKIPPED, f"step {number}: skipped")
            for number in run.skipped
            if number <= step
        ),
    ]


def _strip(y: float, module: str, readings: Sequence[Reading], last: int) -> list[str]:
    """Draw a module's levels; consecutive steps with the same level share a box."""
    parts = []
    for place, group in itertools.groupby(readings, level_of):
        level, steps = LEVELS[place], [reading.number for reading in group]
        first, end = steps[0], steps[-1]
        when = f"step {first}" if end == first else f"steps {first}–{end}"
        tip = f"{_name(module)}, {when}: {level.name}"
        parts.append(_cell(first, end, y, _ROW - 1, last, (level.colour, level.hatch), tip))
    return parts


def _cell(
    first: int, end: int, y: float, height: float, last: int, fill: tuple[str, str], tip: str
) -> str:
    """Draw a box over the steps from `first` to `end`; fill: a colour and a hatch."""
    x, (colour, hatch) = _across(first - 1, last), fill
    return box(x, y, _across(end, last) - x, height, colour, hatch=hatch, tip=tip)


def _legend() -> str:
    entries = [f"{swatch(level.colour, level.hatch)} {level.name}" for level in LEVELS]
    entries.append(f"{swatch(*_SKIPPED)} step skipped by the scaler")
    return f"<div>{in_row(entries, '16px', ' ')}</div>"
