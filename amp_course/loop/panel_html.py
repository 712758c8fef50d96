"""Draw what `StepExplorer` measured, as SVG: a bar for each speed-up over fp32."""

from __future__ import annotations

from collections.abc import Sequence

from amp_course.kit.colours import COLOURS, HATCHES
from amp_course.kit.svg import FAINT, INK, box, line, picture, text

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _TALL = 720, 240, 650, 34, 26, 20


def speed_ups_view(points: Sequence[tuple[str, str, float]]) -> str:
    """Draw a bar for each (recipe's name, label, fp32's time over the recipe's); "" for none."""
    if not points:
        return ""
    scale = (_RIGHT - _LEFT) / max(1.0, *(speedup for *_, speedup in points))
    floor = _TOP + _ROW * len(points)
    parts = [text(_LEFT, 14, "Speed-up over fp32", bold=True)]
    for row, (recipe, label, speedup) in enumerate(points):
        top, width = _TOP + _ROW * row, scale * speedup
        parts += [
            text(_LEFT - 8, top + 14, label, anchor="end"),
            box(_LEFT, top, width, _TALL, COLOURS[recipe], hatch=HATCHES[recipe]),
            text(_LEFT + width + 6, top + 14, f"{speedup:.2f} ×"),
        ]
    one = _LEFT + scale
    parts += [
        line(_LEFT, _TOP - 6, _LEFT, floor),
        line(one, _TOP - 6, one, floor, stroke=INK, dash="2 3"),
        text(one, floor + 16, "1 = as fast as fp32", anchor="middle", fill=FAINT),
    ]
    values = "; ".join(f"{label}: {speedup:.2f}" for _, label, speedup in points)
    alt = f"Speed-ups over fp32, one bar each. {values}."
    return picture(_WIDTH, floor + 24, *parts, label=alt)
