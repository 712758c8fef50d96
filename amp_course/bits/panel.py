"""`BitExplorer`: click the bits of a number, or type one, and see what a format makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from html import escape

from amp_course.bits.formats import FORMATS, FP16, FloatFormat, find_format
from amp_course.bits.nearest import Exact, exact_value, nearest, pattern_for, step
from amp_course.bits.numerals import raised, typed_text
from amp_course.bits.panel_css import sheet
from amp_course.bits.panel_html import explorer_view, rounding_note
from amp_course.bits.parse import read
from amp_course.bits.scalar import decode
from amp_course.kit.colours import FIELDS
from amp_course.kit.panel import Bits, Button, Control, Menu, Note, Number, Panel, Text

OWN = "your own"
_ROOMY = 19  # formats of up to so many bits get large buttons
_FIRST = "0.1"
_SPECIALS = [
    ("ieee: inf and NaN", "ieee"),
    ("fn: one NaN, no inf", "fn"),
    ("finite: numbers only", "finite"),
]
_PICKS: dict[str, tuple[str, Callable[[FloatFormat], Exact]]] = {
    "1": ("one", lambda fmt: Fraction(1)),
    "0.1": ("a tenth, which no binary format holds exactly", lambda fmt: Fraction(1, 10)),
    "largest": ("the format's largest number", lambda fmt: Fraction(fmt.max)),
    "smallest normal": (
        "the smallest number with full precision",
        lambda fmt: Fraction(fmt.smallest_normal),
    ),
    "smallest": ("the smallest number above 0", lambda fmt: Fraction(fmt.smallest_subnormal)),
    "inf": ("infinity", lambda fmt: math.inf),
    "NaN": ("not a number", lambda fmt: math.nan),
}


class BitExplorer(Panel):
    """A number's bits as buttons, with its value, formula, neighbours, and what every format makes
    of it.

    A test drives it: panel.format.value = "fp16"; panel.text.value = "2049"; panel.bits.toggle(15);
    panel.picks["NaN"].click(); panel.up.click(). `value`, `pattern`, `fmt` and `exact` tell the
    state: exact is the number as typed, which is rounded again when the format changes.
    """

    title = "BitExplorer: what do these bits say?"
    side_by_side = False
    style = sheet()

    def __init__(self) -> None:
        self.fmt = FP16
        self.exact: Exact = Fraction(_FIRST)
        self.pattern = pattern_for(self.exact, self.fmt)
        self.format = Menu(
            self.fmt.name,
            [*((_label(fmt), fmt.name) for fmt in FORMATS), ("your own widths …", OWN)],
            "format",
            "the format that reads the bits; your number is rounded to it",
            width="300px",
        )
        tip = "from 1, or 2 with inf and NaN, to 11"
        self.exponent_bits = Number(4, "exponent bits", tip, width="13em")
        self.significand_bits = Number(3, "significand bits", "stored bits, 0 to 52", width="13em")
        self.specials = Menu(
            "ieee", _SPECIALS, "specials", "which patterns are not numbers", width="300px"
        )
        self._chosen = self.fmt.name
        self.own = (self.exponent_bits, self.significand_bits, self.specials)
        self.text = Text(
            _FIRST,
            "number",
            "a number, or a bit pattern starting with 0x or 0b; then press Enter",
            hint="2049, −0.1, 1/3, 2^-24, 0x3C00, inf",
            width="300px",
        )
        self.picks = {name: Button(name, tip) for name, (tip, _) in _PICKS.items()}
        self.down = Button("◂ previous", "the next number below: one step of the pattern")
        self.up = Button("next ▸", "the next number above: one step of the pattern")
        self.bits = Bits(self.pattern)
        hint = Note("Click a bit, or move to it with Tab and press Space.")
        super().__init__(
            (self.format, self.own, hint),
            (self.text, tuple(self.picks.values()), (self.down, self.up)),
            self.bits,
        )

    @property
    def value(self) -> float:
        """The value of the bits."""
        return decode(self.pattern, self.fmt)

    def update(self, control: Control | None) -> None:
        """Do what the reader asked for, and show it; or say why not."""
        try:
            typed, note = self._take(control)
        except ValueError as error:
            if self.format.value != OWN:
                self.format.value = self._chosen
            refused = f"<b>Nothing changed.</b> {escape(str(error))}."
            self.message = f"<span class='amp-refused'>{refused}</span>"
            self.bits.value = self.pattern
            self._show_widths()
            return
        self._chosen = self.format.value
        self._show_widths()
        if typed is not None:
            self.text.value = typed
        self.message = note
        self.bits.groups, self.bits.value = _groups(self.fmt), self.pattern
        self.css_class = "amp-bits amp-roomy" if self.fmt.bits <= _ROOMY else "amp-bits"
        self.html = explorer_view(self.pattern, self.fmt, self.exact)

    def _take(self, control: Control | None) -> tuple[str | None, str]:
        """Change the state; return the new text of the field, and what to say.

        Raises ValueError, and changes nothing, for what cannot be read or has no pattern.
        """
        if control is self.bits or control in (self.up, self.down):
            if control is self.bits:
                self.pattern = self.bits.value
            else:
                self.pattern = step(self.pattern, self.fmt, up=control is self.up)
            self.exact = exact_value(self.pattern, self.fmt)
            return typed_text(self.exact), ""
        fmt, exact, typed = self.fmt, self.exact, None
        if control is self.text:
            self.pattern, self.exact = read(self.text.value, fmt)
            return None, rounding_note(nearest(self.exact, fmt))
        if control is self.format or control in self.own:
            fmt = self._format()
        for name, button in self.picks.items():
            if control is button:
                exact = _PICKS[name][1](fmt)
                typed = typed_text(exact)
        # the exact number is rounded, and not what the former format made of it
        self.pattern, self.exact, self.fmt = pattern_for(exact, fmt), exact, fmt
        return typed, rounding_note(nearest(exact, fmt))

    def _show_widths(self) -> None:
        for one in self.own:
            one.hidden = self.format.value != OWN

    def _format(self) -> FloatFormat:
        if self.format.value != OWN:
            return find_format(self.format.value)
        exponent, significand, specials = (one.value for one in self.own)
        return FloatFormat.of(exponent, significand, specials)


def _groups(fmt: FloatFormat) -> list[tuple[str, str, dict[int, str]]]:
    top, cut = fmt.bits - 1, fmt.significand_bits
    names = {
        "sign": {top: f"bit {top}: sign"},
        "exponent": {
            weight: f"bit {weight}: exponent, counts {2 ** (weight - cut)}"
            for weight in range(top - 1, cut - 1, -1)
        },
        "significand": {
            weight: f"bit {weight}: significand, counts 2{raised(weight - cut)}"
            for weight in range(cut - 1, -1, -1)
        },
    }
    groups = []
    for name, bits in names.items():
        count = f", {len(bits)} bits" if len(bits) > 1 else ""
        if bits:
            groups.append((f"amp-{name}", f"<b>{FIELDS[name][1]}</b> {name}{count}", bits))
    return groups


def _label(fmt: FloatFormat) -> str:
    return f"{fmt.name} (1 + {fmt.exponent_bits} + {fmt.significand_bits} bits)"
