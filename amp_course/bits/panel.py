"""`BitExplorer`: click the bits of a number, or type one, and see what a format makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from amp_course.bits.formats import FORMATS, FP16, FloatFormat, find_format
from amp_course.bits.nearest import Exact, exact_value, nearest, pattern_for, step
from amp_course.bits.numerals import raised, typed_text
from amp_course.bits.panel_css import SHEET
from amp_course.bits.panel_html import explorer_view, rounding_note
from amp_course.bits.parse import read
from amp_course.bits.scalar import decode
from amp_course.kit.colours import FIELDS
from amp_course.kit.panel import Bits, Button, Control, Menu, Note, Number, Panel, Text

OWN = "your own"
_ROOMY = 19  # formats of up to so many bits get large buttons
_FIRST = "0.1"
_WIDE = "300px"
_SPECIALS = [
    ("ieee: inf and NaN", "ieee"),
    ("fn: one NaN, no inf", "fn"),
    ("finite: numbers only", "finite"),
]
# of a button that picks a number: its tip, and the number in a format
_PICKS: dict[str, tuple[str, Callable[[FloatFormat], Exact]]] = {
    "1": ("one", lambda _: Fraction(1)),
    "0.1": ("a tenth, which no binary format holds exactly", lambda _: Fraction(_FIRST)),
    "largest": ("the format's largest number", lambda fmt: Fraction(fmt.max)),
    "smallest normal": (
        "the smallest number with full precision",
        lambda fmt: Fraction(fmt.smallest_normal),
    ),
    "smallest": ("the smallest number above 0", lambda fmt: Fraction(fmt.smallest_subnormal)),
    "inf": ("infinity", lambda _: math.inf),
    "NaN": ("not a number", lambda _: math.nan),
}


class BitExplorer(Panel):
    """A number's bits as buttons, with its value, formula and neighbours, and all formats.

    In a test: panel.format.value = "fp16"; panel.text.value = "2049"; panel.bits.toggle(15);
    panel.picks["NaN"].click(); panel.up.click(). The state is `value`, `pattern`, `fmt` and
    `exact`: the number as typed, which is rounded again when the format changes.
    """

    title = "BitExplorer: what do these bits say?"
    side_by_side = False
    style = SHEET

    def __init__(self) -> None:
        self.fmt = FP16
        self.exact: Exact = Fraction(_FIRST)
        self.pattern = pattern_for(self.exact, self.fmt)
        self._chosen = self.fmt.name
        formats = [
            (f"{fmt.name} (1 + {fmt.exponent_bits} + {fmt.significand_bits} bits)", fmt.name)
            for fmt in FORMATS
        ]
        formats.append(("your own widths …", OWN))
        tip = "the format that reads the bits; your number is rounded to it"
        self.format = Menu(self._chosen, formats, "format", tip, width=_WIDE)
        tip = "from 1, or 2 with inf and NaN, to 11"
        self.exponent_bits = Number(4, "exponent bits", tip, width="13em")
        self.significand_bits = Number(3, "significand bits", "stored bits, 0 to 52", width="13em")
        tip = "which patterns are not numbers"
        self.specials = Menu("ieee", _SPECIALS, "specials", tip, width=_WIDE)
        self.own = (self.exponent_bits, self.significand_bits, self.specials)
        tip = "a number, or a bit pattern starting with 0x or 0b; then press Enter"
        hint = "2049, −0.1, 1/3, 2^-24, 0x3C00, inf"
        self.text = Text(_FIRST, "number", tip, hint=hint, width=_WIDE)
        self.picks = {name: Button(name, tip) for name, (tip, _) in _PICKS.items()}
        self.down = Button("◂ previous", "the next number below: one step of the pattern")
        self.up = Button("next ▸", "the next number above: one step of the pattern")
        self.bits = Bits(self.pattern)
        note = Note("Click a bit, or move to it with Tab and press Space.")
        picks = (self.text, tuple(self.picks.values()), (self.down, self.up))
        super().__init__((self.format, self.own, note), picks, self.bits)

    @property
    def value(self) -> float:
        """The value of the bits."""
        return decode(self.pattern, self.fmt)

    def update(self, control: Control | None) -> None:
        """Do what a control asks for, and show the result; or say why not."""
        try:
            self._take(control)
        except ValueError as error:
            if self.format.value != OWN:
                self.format.value = self._chosen
            self.refuse(error)
            self.message = f"<span class='amp-refused'>{self.message}</span>"
        else:
            self._chosen = self.format.value
            self.bits.groups = _groups(self.fmt)
            self.css_class = "amp-bits amp-roomy" if self.fmt.bits <= _ROOMY else "amp-bits"
            self.html = explorer_view(self.pattern, self.fmt, self.exact)
        self.bits.value = self.pattern
        for width in self.own:
            width.hidden = self.format.value != OWN

    def _take(self, control: Control | None) -> None:
        """Change the number and the format, the text of the field, and the message.

        Raises ValueError, and changes nothing, for text that cannot be read and a number without a
        pattern.
        """
        if control in (self.bits, self.up, self.down):
            if control is self.bits:
                self.pattern = self.bits.value
            else:
                self.pattern = step(self.pattern, self.fmt, up=control is self.up)
            self.exact = exact_value(self.pattern, self.fmt)
            self.text.value, self.message = typed_text(self.exact), ""
            return
        fmt, exact = self.fmt, self.exact
        if control in (self.format, *self.own):
            fmt = self._format()
        picked = next((name for name, button in self.picks.items() if button is control), None)
        if control is self.text:
            self.pattern, exact = read(self.text.value, fmt)
        else:
            if picked:
                exact = _PICKS[picked][1](fmt)
            # the exact number is rounded, not its value in the former format
            self.pattern = pattern_for(exact, fmt)
        if picked:
            self.text.value = typed_text(exact)
        self.exact, self.fmt = exact, fmt
        self.message = rounding_note(nearest(exact, fmt))

    def _format(self) -> FloatFormat:
        if self.format.value != OWN:
            return find_format(self.format.value)
        return FloatFormat.of(*(width.value for width in self.own))


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
