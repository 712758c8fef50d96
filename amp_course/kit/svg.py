"""Draw small SVG pictures for panels: redrawn in a millisecond, sharp at any size, in the colours
of the user's theme.

Text is escaped here, so that nothing that a user types becomes markup. Figures for a page without
a kernel are drawn by matplotlib (`kit.style`).
"""

from __future__ import annotations

from html import escape

INK = "var(--jp-ui-font-color1, #222)"
FAINT = "var(--jp-ui-font-color2, #666)"
GRID = "var(--jp-border-color2, #ccc)"

# matplotlib's hatch → the lines that fill a tile of 8 × 8
_TILES = {
    "//": "M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6",
    "\\\\": "M-2,6 L2,10 M0,0 L8,8 M6,-2 L10,2",
    "xx": "M0,0 L8,8 M8,0 L0,8",
    "..": "M2,2 h0.01 M6,6 h0.01",
    "--": "M0,4 L8,4",
    "||": "M4,0 L4,8",
    "++": "M0,4 L8,4 M4,0 L4,8",
}


def picture(width: float, height: float, *parts: str, label: str) -> str:
    """Return an SVG of width × height pixels, less on a narrow page; `label` is its alt text."""
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width:g} {height:g}" '
        f'xmlns="http://www.w3.org/2000/svg" '
        f'style="width:100%;max-width:{width:g}px;height:auto;display:block" '
        f'font-family="var(--jp-ui-font-family, sans-serif)">' + "".join(parts) + "</svg>"
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = 12,
    anchor: str = "start",
    fill: str = INK,
    bold: bool = False,
) -> str:
    """Return a line of text whose baseline is at y; anchor: "start", "middle" or "end"."""
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}"{weight}>{escape(content)}</text>'


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    *,
    stroke: str = FAINT,
    width: float = 1,
    dash: str = "",
) -> str:
    """Return a straight line; dash: as in SVG's stroke-dasharray, "4 3"."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )


def polyline(
    points: list[tuple[float, float]], *, stroke: str, width: float = 1.5, dash: str = ""
) -> str:
    """Return a line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{stroke}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, *, hatch: str = "", tip: str = ""
) -> str:
    """Return a filled rectangle, perhaps hatched, with `tip` shown under the mouse.

    fill: a colour "#rrggbb"; hatch: one of matplotlib's "//", "\\\\", "xx", "..", "--", "||", "++"
    """
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    title = f"<title>{escape(tip)}</title>" if tip else ""
    if not hatch:
        return f'<rect {place} fill="{fill}">{title}</rect>'
    # All pictures of a page share ids, so a pattern's id names its colour and hatch.
    name = f"amp-{fill.lstrip('#')}-{list(_TILES).index(hatch)}"
    stroke = "#222222" if is_pale(fill) else "white"
    pattern = (
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse"><rect width="8" '
        f'height="8" fill="{fill}"/><path d="{_TILES[hatch]}" stroke="{stroke}" stroke-width="1.6" '
        f'stroke-linecap="round"/></pattern>'
    )
    return f'<defs>{pattern}</defs><rect {place} fill="url(#{name})">{title}</rect>'


def is_pale(fill: str) -> bool:
    """Return True if white lines would be hard to see on a colour "#rrggbb"."""
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    return 0.3 * red + 0.6 * green + 0.1 * blue > 180


def swatch(colour: str, hatch: str = "") -> str:
    """Return a small filled box for a line of text, as in a legend."""
    mark = box(0, 0, 16, 12, colour, hatch=hatch)
    return (
        f'<svg width="16" height="12" style="vertical-align:-1px" aria-hidden="true">{mark}</svg>'
    )
