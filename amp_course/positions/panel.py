"""`CollisionExplorer`: choose a format and a context, and see which tokens share a position,
and what RoPE makes of it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.bits.formats import BF16, FORMATS
from amp_course.bits.nearest import is_finite
from amp_course.bits.parse import clip, read_number
from amp_course.kit.panel import WIDE, Panel
from amp_course.positions.figures import sharing_figure
from amp_course.positions.panel_html import collision_view
from amp_course.positions.sharing import share

LONGEST, WIDEST, LARGEST_BASE = 2**40, 1024, 10**12
_CHARACTERS = 100  # the longest input that is read
_GROUPED = re.compile("[0-9]{1,3}(,[0-9]{3})+")
_EXAMPLES = {"a context length": "4096 or 2^17", "a base": "10000", "a head size": "64"}
_NARROW = widgets.Layout(width="18em")


class CollisionExplorer(Panel):
    """Format, context length, base and head size; a test drives it: panel.length.value = "4096".

    `panel.shown` holds what is shown, a `Sharing`. Input that cannot be read is explained, and the
    view stays unchanged.
    """

    def __init__(self) -> None:
        self.format = widgets.Dropdown(
            options=[(fmt.name, fmt) for fmt in FORMATS],
            value=BF16,
            description="id format",
            style=WIDE,
            layout=_NARROW,
            tooltip="what the position ids are rounded to",
        )
        self.length = _field(
            "512", "context length", "tokens in the context, a whole number such as 4096 or 2^17"
        )
        self.halve = widgets.Button(
            description="÷ 2", tooltip="half the context", layout=widgets.Layout(width="4em")
        )
        self.double = widgets.Button(
            description="× 2", tooltip="twice the context", layout=widgets.Layout(width="4em")
        )
        self.base = _field(
            "10000", "RoPE base", "the longest wavelength is about 2π times this many tokens"
        )
        self.head_size = _field("64", "head size", "channels of one head, an even number")
        self.shown = share(BF16, 512)
        rows = [
            self.format,
            _row(self.length, self.halve, self.double),
            _row(self.base, self.head_size),
        ]
        super().__init__("CollisionExplorer: which tokens share a position?", rows, widgets.HTML())
        for control in (self.format, self.length, self.base, self.head_size):
            control.observe(self._redraw, names="value")
        self.halve.on_click(lambda _: self._set_length(max(1, self.shown.n // 2)))
        self.double.on_click(lambda _: self._set_length(min(LONGEST, self.shown.n * 2)))
        self._redraw()

    def _set_length(self, n: int) -> None:
        self.length.value = str(n)

    def _redraw(self, change: Any = None) -> None:
        try:
            n = whole_number(self.length.value, "a context length", "tokens", 1, LONGEST)
            base = base_number(self.base.value)
            head_size = whole_number(self.head_size.value, "a head size", "channels", 2, WIDEST)
            shown = share(self.format.value, n, base, head_size)
        except ValueError as error:
            return self.tell(f"<b>Nothing changed.</b> {escape(str(error))}.")
        self.shown = shown
        self.tell()
        self.view.value = collision_view(shown)

    def still(self) -> Figure:
        """Return a picture of the last tokens, their ids, and the two maps."""
        return sharing_figure(self.shown)


def whole_number(text: str, what: str, unit: str, least: int, most: int) -> int:
    """Read a whole number from `least` to `most`: "2^12" → 4096.

    Raises ValueError with the cause and the fix for anything else that can be typed.
    """
    number = _finite(text, what)
    if number.denominator != 1:
        near = min(max(int(number), least, 2), most)
        near -= near % 2  # so that it will do for channels too
        raise ValueError(
            f"“{clip(text)}” is not {what}: {unit} come in whole numbers. Type {near}, for example"
        )
    if number < least:
        raise ValueError(f"“{clip(text)}” is too small for {what}: type {least} or more")
    if number > most:
        raise ValueError(f"“{clip(text)}” is too large for {what}: type {most} or less")
    return int(number)


def base_number(text: str) -> float:
    """Read RoPE's base, a number above 1: "5e5" → 500000.0.
    Raises ValueError with the cause and the fix.
    """
    number = _finite(text, "a base")
    if not 1 < number <= LARGEST_BASE:
        raise ValueError(
            f"“{clip(text)}” is not a base for RoPE: type a number above 1 and up to 1e12, such as "
            f"10000"
        )
    return float(number)


def _finite(text: str, what: str) -> Fraction:
    plain = text.strip().replace("−", "-")
    if _GROUPED.fullmatch(plain):  # as the view shows its counts
        plain = plain.replace(",", "")
    try:
        number = read_number(plain) if 0 < len(plain) <= _CHARACTERS else None
    except ValueError:
        number = None
    if number is None or not is_finite(number):
        wrong = (
            f"“{clip(text)}” is not {what}"
            if plain
            else f"The field is empty, and {what} is needed"
        )
        raise ValueError(f"{wrong}: type a number such as {_EXAMPLES[what]}")
    return Fraction(number)


def _field(value: str, description: str, tooltip: str) -> widgets.Text:
    return widgets.Text(
        value=value,
        description=description,
        tooltip=tooltip,
        continuous_update=False,
        style=WIDE,
        layout=_NARROW,
    )


def _row(*children: widgets.Widget) -> widgets.HBox:
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap"))
