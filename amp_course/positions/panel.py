"""`CollisionExplorer`: which tokens of a context share a position, and what RoPE makes of that."""

from __future__ import annotations

import contextlib
import math
import re
from fractions import Fraction

from amp_course.bits.formats import BF16, FORMATS
from amp_course.bits.nearest import Exact, is_finite
from amp_course.bits.parse import clip, read_number
from amp_course.kit.panel import Button, Control, Menu, Panel, Text
from amp_course.positions.panel_html import collision_view
from amp_course.positions.sharing import Sharing, share

LONGEST, WIDEST, LARGEST_BASE = 2**40, 1024, 10**12
_CHARACTERS = 100  # the longest input that is read
_GROUPED = re.compile("[0-9]{1,3}(,[0-9]{3})+")
_EXAMPLES = {"a context length": "4096 or 2^17", "a base": "10000", "a head size": "64"}
_NARROW = "18em"


class CollisionExplorer(Panel):
    """Show the `Sharing` of a format, context length, RoPE base and head size: `panel.shown`.

    Input that cannot be read is explained, and the view stays as it is.
    In a test: panel.length.value = "4096"
    """

    title = "CollisionExplorer: which tokens share a position?"
    shown: Sharing

    def __init__(self) -> None:
        formats = [(fmt.name, fmt) for fmt in FORMATS]
        tip = "what the position ids are rounded to"
        self.format = Menu(BF16, formats, "id format", tip, width=_NARROW)
        tip = "tokens in the context, a whole number such as 4096 or 2^17"
        self.length = Text("512", "context length", tip, width=_NARROW)
        self.halve = Button("÷ 2", "half the context")
        self.double = Button("× 2", "twice the context")
        tip = "the longest wavelength is about 2π times this many tokens"
        self.base = Text("10000", "RoPE base", tip, width=_NARROW)
        tip = "channels of one head, an even number"
        self.head_size = Text("64", "head size", tip, width=_NARROW)
        length = (self.length, self.halve, self.double)
        super().__init__(self.format, length, (self.base, self.head_size))

    def update(self, control: Control | None) -> None:
        """Read the fields and show the result, or say what is wrong with them."""
        if control is self.halve:
            self.length.value = str(max(1, self.shown.n // 2))
        if control is self.double:
            self.length.value = str(min(LONGEST, self.shown.n * 2))
        try:
            n = whole_number(self.length.value, "a context length", "tokens", 1, LONGEST)
            base = base_number(self.base.value)
            head_size = whole_number(self.head_size.value, "a head size", "channels", 2, WIDEST)
            self.shown = share(self.format.value, n, base, head_size)
        except ValueError as error:
            self.refuse(error)
            return
        self.message = ""
        self.html = collision_view(self.shown)


def whole_number(text: str, what: str, unit: str, least: int, most: int) -> int:
    """Read a whole number from `least` to `most`: "2^12" → 4096.

    Raises ValueError with the cause and the fix for anything else that can be typed.
    """
    number = _finite(text, what)
    if number.denominator != 1:
        near = min(max(int(number), least, 2), most)
        near -= near % 2  # channels have to be even
        raise ValueError(
            f"“{clip(text)}” is not {what}: {unit} come in whole numbers. Type {near}, for example"
        )
    if number < least:
        raise ValueError(f"“{clip(text)}” is too small for {what}: type {least} or more")
    if number > most:
        raise ValueError(f"“{clip(text)}” is too large for {what}: type {most} or less")
    return int(number)


def base_number(text: str) -> float:
    """Read RoPE's base, a number above 1: "5e5" → 500000.0. Raises ValueError for any other."""
    number = _finite(text, "a base")
    if not 1 < number <= LARGEST_BASE:
        raise ValueError(
            f"“{clip(text)}” is not a base for RoPE: type a number above 1 and up to 1e12, such as "
            "10000"
        )
    return float(number)


def _finite(text: str, what: str) -> Fraction:
    plain = text.strip().replace("−", "-")
    if _GROUPED.fullmatch(plain):  # "1,024", as the view shows its counts
        plain = plain.replace(",", "")
    number: Exact = math.nan
    if len(plain) <= _CHARACTERS:
        with contextlib.suppress(ValueError):
            number = read_number(plain)
    if not is_finite(number):
        wrong = f"“{clip(text)}” is not {what}"
        if not plain:
            wrong = f"The field is empty, and {what} is needed"
        raise ValueError(f"{wrong}: type a number such as {_EXAMPLES[what]}")
    return Fraction(number)
