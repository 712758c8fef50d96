"""Draw what `CollisionExplorer` shows, as HTML: the counts, a strip of tokens with their ids, and
maps of RoPE's similarity.
"""

from __future__ import annotations

import base64
import functools
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from itertools import chain

from amp_course.kit.panel_parts import in_row, status, view
from amp_course.kit.svg import FAINT, GRID, box, line, picture, swatch, text
from amp_course.positions.sharing import Sharing

# colour and hatch of an id that one token has, and of one that several share
ALONE, SHARED = (("#56B4E9", ""), ("#D55E00", "//"))
_WIDTH, _LEFT, _TOP, _TALL, _HEIGHT = 680, 8, 22, 26, 118
_NO_VALUE, _GREY = 255, b"\x96\x96\x96"
# colours of viridis, from dark to bright, nearly linear in between
_VIRIDIS = "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725"
_EVERY = 8  # tokens between two position labels
Map = Sequence[Sequence[float]]


def collision_view(shown: Sharing) -> str:
    """Return the panel's HTML: counts, strip, and the two maps side by side with their scale."""
    low = round(min(map(min, shown.right)), 2)
    maps = {"with exact ids": shown.right, f"with ids in {shown.fmt.name}": shown.rounded}
    pictures = "".join(_map(name, values, low, shown) for name, values in maps.items())
    caption = (
        f"RoPE’s similarity among these tokens, head size {shown.head_size}, base {shown.base:g}: "
        f"how alike the same vector is at two positions{_verdict(shown.largest_error)}"
    )
    return view(
        counts_line(shown),
        strip(shown),
        f'<div style="margin:2px 0 4px">{caption}</div><div style="display:flex;flex-wrap:wrap;'
        f'gap:12px 20px;align-items:flex-end">{pictures}{_scale(low)}</div>',
    )


def counts_line(shown: Sharing) -> str:
    """Return the counts in words: "385 ids for 512 tokens · first collision at token 257 · …"."""
    parts = [f"<b>{shown.distinct:,}</b> ids for <b>{shown.n:,}</b> tokens"]
    if shown.first_collision < shown.n:
        parts.append(f"first collision at token <b>{shown.first_collision:,}</b>")
        parts.append(f"at most <b>{shown.most_sharing:,}</b> tokens share one id")
    else:
        parts.append(f"no collision; the first would be at token {shown.first_collision:,}")
    if shown.first_past_range is not None and shown.first_past_range < shown.n:
        parts.append(f"<b>inf</b> from token {shown.first_past_range:,} on")
    return status(in_row(parts, "1.8em", " "), "margin:2px 0 6px")


def strip(shown: Sharing) -> str:
    """Draw the last tokens: a box for each id, as wide as its tokens, below their positions."""
    wide = (_WIDTH - 2 * _LEFT) / (shown.n - shown.start)
    parts = []
    for token in range(shown.start, shown.n):
        x = _LEFT + (token - shown.start) * wide
        if token % _EVERY:
            parts.append(line(x, _TOP - 4, x, _TOP, stroke=GRID))
        else:
            parts.append(line(x, _TOP - 7, x, _TOP))
            parts.append(text(x + 2, _TOP - 8, f"{token:,}", size=11, fill=FAINT))
    for run in shown.runs:
        x, width = _LEFT + (run.start - shown.start) * wide, run.count * wide
        colour, hatch = SHARED if run.count > 1 else ALONE
        name = id_text(run.value)
        end = run.start + run.count
        who = _tokens(run.start, end) if run.count > 1 else f"token {run.start:,}"
        size, tip = max(width - 2, 1), f"{who}: id {name}"
        parts.append(box(x + 1, _TOP, size, _TALL, colour, hatch=hatch, tip=tip))
        place = f"translate({x + width / 2 + 3:.1f} {_TOP + _TALL + 12}) rotate(-45)"
        parts.append(f'<g transform="{place}">{text(0, 0, name, size=11, anchor="end")}</g>')
    tokens = _tokens(shown.start, shown.n)
    first, last = id_text(shown.runs[0].value), id_text(shown.runs[-1].value)
    label = (
        f"ids of {tokens} in {shown.fmt.name}: {len(shown.runs)} different ones, from {first} to "
        f"{last}"
    )
    caption = (
        f'<div style="color:{FAINT};font-size:0.92em">{tokens}; each box is one id, its value '
        f"below: {swatch(*ALONE)} used by one token, {swatch(*SHARED)} shared by several</div>"
    )
    return caption + picture(_WIDTH, _HEIGHT, *parts, label=label)


def id_text(value: float) -> str:
    """Write an id: 4096.0 → "4,096", 7.5 → "7.5", inf → "inf"."""
    return f"{value:,.0f}" if math.isinf(value) or value == int(value) else f"{value:,g}"


def _tokens(start: int, end: int) -> str:
    return f"tokens {start:,} to {end - 1:,}"


def _verdict(largest_error: float) -> str:
    if math.isnan(largest_error):
        return ". <b>Grey: an id is inf, which has no angle.</b>"
    if largest_error == 0:
        return ". Here the maps are equal."
    return f". Largest error here: <b>{largest_error:.2f}</b>."


def _map(name: str, values: Map, low: float, shown: Sharing) -> str:
    return (
        f'<figure style="margin:0"><img alt="{escape(describe_map(name, values, shown))}" '
        f'src="{map_uri(values, low)}" '
        'style="width:220px;height:220px;image-rendering:pixelated;display:block">'
        f'<figcaption style="margin-top:2px">{escape(name)}</figcaption></figure>'
    )


def describe_map(name: str, values: Map, shown: Sharing) -> str:
    """Return a similarity map's alt text.

    Example: "similarity map with ids in bf16, tokens 464 to 511, head size 64, base 10000: from
             0.46 to 1; 32 pairs of tokens look the same"
    """
    what = f"similarity map {name}, {_tokens(shown.start, shown.n)}"
    known = [value for value in chain(*values) if not math.isnan(value)]
    if not known:
        return f"{what}: all grey, no id has an angle"
    pairs = sum(value > 1 - 1e-6 for place, row in enumerate(values) for value in row[:place])
    every = len(values) ** 2
    grey = f"; {every - len(known):,} of {every:,} points are grey" if len(known) < every else ""
    alike = f"{pairs:,} pairs of tokens look the same" if pairs else "no two tokens look the same"
    return (
        f"{what}, head size {shown.head_size}, base {shown.base:g}: from "
        f"{min(known):.2f} to 1; {alike}{grey}"
    )


def map_uri(values: Map, low: float) -> str:
    """Return a square map as the data URI of a small PNG: `low` is dark, 1 bright, NaN grey."""
    span = max(1.0 - low, 1e-6)

    def level(value: float) -> int:
        if math.isnan(value):
            return _NO_VALUE
        return round(min(max((value - low) / span, 0), 1) * (_NO_VALUE - 1))

    rows = (bytes([0, *map(level, row)]) for row in values)
    size = struct.pack(">II", len(values), len(values))
    content = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", size + b"\x08\x03\0\0\0")  # 8 bits a pixel, by palette
        + _chunk(b"PLTE", _palette())
        + _chunk(b"IDAT", zlib.compress(b"".join(rows)))
        + _chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


@functools.cache
def _palette() -> bytes:
    anchors = [bytes.fromhex(colour) for colour in _VIRIDIS.split()]
    colours = []
    for level in range(_NO_VALUE):
        place = level / (_NO_VALUE - 1) * (len(anchors) - 1)
        low, high = anchors[int(place)], anchors[math.ceil(place)]
        colours += [round(a + (b - a) * (place % 1)) for a, b in zip(low, high, strict=True)]
    return bytes(colours) + _GREY


def _scale(low: float) -> str:
    stops = ", ".join(f"#{colour}" for colour in _VIRIDIS.split())
    return (
        '<div style="display:flex;gap:6px;height:220px;margin-bottom:1.6em" aria-hidden="true">'
        f'<div style="width:14px;background:linear-gradient(to top, {stops})"></div>'
        '<div style="display:flex;flex-direction:column;justify-content:space-between">'
        f"<span>1</span><span>{low:g}</span></div></div>"
    )
