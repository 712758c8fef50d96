"""`BitExplorer`: click the bits of a number, or type one, and see what a format makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from html import escape
from typing import Any, cast

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.bits.figures import bits_figure
from amp_course.bits.formats import FORMATS, FP16, FloatFormat, Specials, find_format
from amp_course.bits.nearest import Exact, exact_value, nearest, pattern_for, step
from amp_course.bits.numerals import raised, typed_text
from amp_course.bits.panel_css import style
from amp_course.bits.panel_html import explorer_view, rounding_note
from amp_course.bits.parse import read
from amp_course.bits.scalar import decode
from amp_course.kit.colours import FIELDS
from amp_course.kit.panel import WIDE, Panel

OWN = "your own"
_ROOMY = 19  # formats of up to so many bits get large buttons
_FIRST = "0.1"
_SPECIALS = {
    "ieee: inf and NaN": "ieee",
    "fn: one NaN, no inf": "fn",
    "finite: numbers only": "finite",
}
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

    A test drives it: panel.format.value = "fp16"; panel.text.value = "2049"; panel.bits[15].value =
    True (by weight, the sign comes last); panel.picks["NaN"].click(); panel.up.click(). `value`,
    `pattern`, `fmt` and `exact` tell the
    state: exact is the number as typed, which is rounded again when the format changes.
    """

    def __init__(self) -> None:
        self.fmt = FP16
        self.exact: Exact = Fraction(_FIRST)
        self.pattern = pattern_for(self.exact, self.fmt)
        self.bits: list[widgets.ToggleButton] = []
        self._made: list[widgets.ToggleButton] = []
        self._rows: dict[tuple[int, int], list[widgets.Widget]] = {}
        self._is_updating = False
        self._chosen = self.fmt.name
        super().__init__(
            "BitExplorer: what do these bits say?",
            self._controls(),
            widgets.HTML(),
            side_by_side=False,
        )
        self.message.add_class("amp-message")
        self.add_class("amp-bits")
        self._lay_out()
        self._show(note=rounding_note(nearest(self.exact, self.fmt)))

    @property
    def value(self) -> float:
        """The value of the bits."""
        return decode(self.pattern, self.fmt)

    def still(self) -> Figure:
        """Return a picture of the bits and their value."""
        return bits_figure(self.pattern, self.fmt)

    def _controls(self) -> list[widgets.Widget]:
        self.format = widgets.Dropdown(
            options=[*((_label(fmt), fmt.name) for fmt in FORMATS), ("your own widths …", OWN)],
            value=self.fmt.name,
            description="format",
            style=WIDE,
            tooltip="the format that reads the bits; your number is rounded to it",
        )
        self.exponent_bits = widgets.IntText(
            value=4,
            description="exponent bits",
            style=WIDE,
            tooltip="from 1, or 2 with inf and NaN, to 11",
        )
        self.significand_bits = widgets.IntText(
            value=3, description="significand bits", style=WIDE, tooltip="stored bits, 0 to 52"
        )
        self.specials = widgets.Dropdown(
            options=list(_SPECIALS.items()),
            description="specials",
            style=WIDE,
            tooltip="which patterns are not numbers",
        )
        narrow = widgets.Layout(width="13em")
        self.exponent_bits.layout = self.significand_bits.layout = narrow
        self.own = _row([self.exponent_bits, self.significand_bits, self.specials], display="none")
        self.text = widgets.Text(
            value=_FIRST,
            continuous_update=False,
            description="number",
            placeholder="2049, −0.1, 1/3, 2^-24, 0x3C00, inf",
            style=WIDE,
            tooltip="a number, or a bit pattern starting with 0x or 0b; then press Enter",
        )
        self.picks = {name: _button(name, tip) for name, (tip, _) in _PICKS.items()}
        self.down = _button("◂ previous", "the next number below: one step of the pattern")
        self.up = _button("next ▸", "the next number above: one step of the pattern")
        self.field = widgets.Box()
        self.field.add_class("amp-field")
        self.format.observe(self._format_chosen, "value")
        for control in (self.exponent_bits, self.significand_bits, self.specials):
            control.observe(self._widths_chosen, "value")
        self.text.observe(self._typed, "value")
        for name, pick in self.picks.items():
            pick.on_click(lambda _, name=name: self._take(_PICKS[name][1](self.fmt)))
        self.down.on_click(lambda _: self._step(up=False))
        self.up.on_click(lambda _: self._step(up=True))
        sheet = widgets.HTML(style(), layout=widgets.Layout(display="none"))
        hint = widgets.HTML("Click a bit, or move to it with Tab and press Space.")
        return [
            sheet,
            _row([self.format, self.own, _classed(hint, "amp-hint")]),
            _row([self.text, _row([*self.picks.values()]), _row([self.down, self.up])]),
            self.field,
        ]

    # One method for each thing that the reader can do.

    def _typed(self, _: Any) -> None:
        if self._is_updating:
            return
        try:
            pattern, exact = read(self.text.value, self.fmt)
        except ValueError as error:
            return self._refuse(error)
        self.pattern, self.exact = pattern, exact
        self._show(note=rounding_note(nearest(exact, self.fmt)))

    def _toggled(self, _: Any) -> None:
        if not self._is_updating:
            self._set_pattern(sum(1 << weight for weight, bit in enumerate(self.bits) if bit.value))

    def _step(self, up: bool) -> None:
        try:
            self._set_pattern(step(self.pattern, self.fmt, up))
        except ValueError as error:
            self._refuse(error)

    def _take(self, exact: Exact) -> None:
        try:
            self.pattern = pattern_for(exact, self.fmt)
        except ValueError as error:
            return self._refuse(error)
        self.exact = exact
        self._show(text=typed_text(exact), note=rounding_note(nearest(exact, self.fmt)))

    def _format_chosen(self, _: Any) -> None:
        if self._is_updating:
            return
        if self.format.value == OWN:
            self.own.layout.display = ""
            self._widths_chosen(None)
            return
        try:
            self._use(find_format(self.format.value))
        except ValueError as error:
            self._refuse(error)
            with self._updating():
                self.format.value = self._chosen
        else:
            self.own.layout.display = "none"

    def _widths_chosen(self, _: Any) -> None:
        if self._is_updating or self.format.value != OWN:
            return
        specials = cast(Specials, self.specials.value)
        try:
            self._use(
                FloatFormat.of(self.exponent_bits.value, self.significand_bits.value, specials)
            )
        except ValueError as error:
            self._refuse(error)

    # What follows from that.

    def _use(self, fmt: FloatFormat) -> None:
        """Round the exact number, not what the former format made of it, into a format;
        raise ValueError for NaN.
        """
        self.pattern = pattern_for(self.exact, fmt)
        self.fmt, self._chosen = fmt, self.format.value
        self._lay_out()
        self._show(note=rounding_note(nearest(self.exact, fmt)))

    def _set_pattern(self, pattern: int) -> None:
        self.pattern = pattern
        self.exact = exact_value(pattern, self.fmt)
        self._show(text=typed_text(self.exact))

    def _show(self, text: str | None = None, note: str = "") -> None:
        """Show the current state; only what changed is sent to the browser."""
        with self._updating():
            for weight, bit in enumerate(self.bits):
                bit.value = bool(self.pattern >> weight & 1)
            if text is not None:
                self.text.value = text
            self.tell(note)
            self.view.value = explorer_view(self.pattern, self.fmt, self.exact)

    def _refuse(self, error: ValueError) -> None:
        self.tell(f"<span class='amp-refused'><b>Nothing changed.</b> {escape(str(error))}.</span>")

    def _lay_out(self) -> None:
        """Name and arrange the buttons for the format's bits;
        each is made once, when a format first needs it.
        """
        fmt = self.fmt
        while len(self._made) < fmt.bits:
            self._made.append(self._new_bit())
        self.bits = self._made[: fmt.bits]
        for weight, bit in enumerate(self.bits):
            name = _bit_name(weight, fmt)
            with bit.hold_sync():
                bit.description, bit.tooltip = name, name
        shape = (fmt.exponent_bits, fmt.significand_bits)
        if shape not in self._rows:
            self._rows[shape] = self._groups()
        self.field.children = self._rows[shape]
        (self.add_class if fmt.bits <= _ROOMY else self.remove_class)("amp-roomy")

    def _new_bit(self) -> widgets.ToggleButton:
        shared = (
            {"layout": self._made[0].layout, "style": self._made[0].style} if self._made else {}
        )
        bit = widgets.ToggleButton(**shared)
        bit.add_class("amp-bit")
        bit.observe(self._toggled, "value")
        return bit

    def _groups(self) -> list[widgets.Widget]:
        """Box the bits by field and, within a field, by hex digit."""
        top, cut = self.fmt.bits - 1, self.fmt.significand_bits
        made = []
        for name, first, last in (
            ("sign", top, top),
            ("exponent", top - 1, cut),
            ("significand", cut - 1, 0),
        ):
            fours: dict[int, list[widgets.Widget]] = {}
            for weight in range(first, last - 1, -1):
                fours.setdefault(weight // 4, []).append(self.bits[weight])
            if not fours:
                continue
            count = first - last + 1
            head = widgets.HTML(
                f"<b>{FIELDS[name][1]}</b> {name}" + (f", {count} bits" if count > 1 else "")
            )
            head.add_class("amp-name")
            nibbles = [_classed(widgets.HBox(bits), "amp-nibble") for bits in fours.values()]
            group = widgets.VBox([head, _classed(widgets.HBox(nibbles), "amp-nibbles")])
            made.append(_classed(_classed(group, "amp-group"), f"amp-{name}"))
        return made

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Change controls without treating it as the reader's input."""
        self._is_updating = True
        try:
            yield
        finally:
            self._is_updating = False


def _bit_name(weight: int, fmt: FloatFormat) -> str:
    if weight == fmt.bits - 1:
        return f"bit {weight}: sign"
    if weight >= fmt.significand_bits:
        return f"bit {weight}: exponent, counts {2 ** (weight - fmt.significand_bits)}"
    return f"bit {weight}: significand, counts 2{raised(weight - fmt.significand_bits)}"


def _label(fmt: FloatFormat) -> str:
    return f"{fmt.name} (1 + {fmt.exponent_bits} + {fmt.significand_bits} bits)"


def _button(name: str, tooltip: str) -> widgets.Button:
    return _classed(widgets.Button(description=name, tooltip=tooltip), "amp-pick")


def _row(children: list[widgets.Widget], **layout: str) -> widgets.HBox:
    return _classed(widgets.HBox(children, layout=widgets.Layout(**layout)), "amp-picks")


def _classed(widget: Any, name: str) -> Any:
    widget.add_class(name)
    return widget
