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
    shown = {
        module: one
        for module, readings in run.ranges.of(kind).items()
        for one in readings
        if one.number == step
    }
    said = describe_step(run, kind, step, list(shown.values()))
    parts = [
        f'<div role="status" aria-live="polite" style="margin-bottom:8px">{inline_html(said)}</div>'
    ]
    if shown:
        parts += [_bars(run, kind, shown, step), _history(run, kind, step), _legend()]
    return f'<div style="color:{INK};line-height:1.5">{"".join(parts)}</div>'


def describe_step(run: DivergingRun, kind: Kind, step: int, shown: Sequence[Reading]) -> str:
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
    if not shown:
        return f"{said} No {kind} was measured in this step."
    hot = min(shown, key=lambda one: -math.inf if math.isnan(one.headroom) else one.headroom)
    said += f" Hottest {kind}: `{_name(hot.module)}`, {headroom_text(hot)}."
    cold = max(shown, key=lambda reading: reading.lost)
    if cold.lost > 0.1:
        said += f" Most is lost in `{_name(cold.module)}`: {100 * cold.lost:.0f} % of its values."
    return said


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
        y, told = top + row * _BAR, headroom_text(reading)
        if reading.lost > 0.1:
            told += f", {100 * reading.lost:.0f} % lost"
        parts += [_label(y + 13, module, 12), text(_BARS_END + 8, y + 13, told)]
        parts.append(_bar(y, reading, bar_end(reading.largest, fmt), told))
        words.append(f"{_name(module)} {told}")
    # last: the end is marked on the bars, too
    parts.append(line(end, top - 2, end, floor + 2, stroke=INK, width=1.5))
    label = f"Step {step}, largest {kind} by module, for {fmt.name}: {'; '.join(words)}."
    return picture(_WIDTH, floor + 14, *parts, label=label)


def _bar(y: float, reading: Reading, end: float, told: str) -> str:
    """Draw a bar with a thin frame, for the paler colours would drown on a light page."""
    level = level_of(reading)
    tip = f"{_name(reading.module)}: largest {reading.largest:,.4g}, {told}"
    frame = box(_LEFT, y + 2, end - _LEFT, _BAR - 4, FAINT)
    width, tall, colour = end - _LEFT - 2, _BAR - 6, LEVELS[level][1]
    return frame + box(_LEFT + 1, y + 3, width, tall, colour, hatch=HATCHES[level], tip=tip)


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
    for number, height in enumerate(heights, 1):
        if height is not None:
            share = (height - low) / (high - low) if high > low else 0.5
            y = _LOSS_FLOOR - (_LOSS_FLOOR - _LOSS_TOP) * share
            points.append((_across(number - 0.5, last), y))
            continue
        parts += [polyline(points, stroke=INK)] if points else []
        points = []
        tip = f"step {number}: the loss is {loss_text(losses[number - 1])}"
        look = LEVELS[-1][1], HATCHES[-1]
        parts.append(_cell(number, number, _LOSS_TOP, _LOSS_FLOOR - _LOSS_TOP, last, look, tip))
    return parts + ([polyline(points, stroke=INK)] if points else [])


def _skips(run: DivergingRun, step: int, last: int) -> list[str]:
    y = _LOSS_FLOOR + 6
    return [
        text(_LEFT - 8, y + 10, "skipped steps", anchor="end", size=11),
        *(
            _cell(number, number, y, _ROW - 1, last, SKIPPED, f"step {number}: skipped")
            for number in run.skipped
            if number <= step
        ),
    ]


def _strip(y: float, module: str, readings: Sequence[Reading], last: int) -> list[str]:
    """Draw a module's levels; steps with the same one in a row share a box."""
    parts = []
    for level, group in itertools.groupby(readings, level_of):
        steps = [reading.number for reading in group]
        first, end = steps[0], steps[-1]
        when = f"step {first}" if end == first else f"steps {first}–{end}"
        look, tip = (
            (LEVELS[level][1], HATCHES[level]),
            f"{_name(module)}, {when}: {LEVELS[level][0]}",
        )
        parts.append(_cell(first, end, y, _ROW - 1, last, look, tip))
    return parts


def _cell(
    first: int, end: int, y: float, tall: float, last: int, look: tuple[str, str], tip: str
) -> str:
    """Draw a box over the steps from `first` to `end`; look: a colour and a hatch."""
    x, (colour, hatch) = _across(first - 1, last), look
    return box(x, y, _across(end, last) - x, tall, colour, hatch=hatch, tip=tip)


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
