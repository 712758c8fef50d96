"""Panels as plain data: controls with values, a message, and a view in HTML.

A chapter's panel makes its controls and, whenever one changes, sets `html` and `message`. Nothing
here needs torch, NumPy, matplotlib or ipywidgets: `panel_widgets` shows a panel in JupyterLab,
`panel_page` writes it as a web page, and in the book the same Python runs in the reader's browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any

PHOTOGRAPHS = "AMP_COURSE_PHOTOGRAPHS"  # set where notebooks are run to be stored


class Control:
    """Something that a reader sets. Setting `value` lets its panel react, as the reader's choice
    does; what the panel itself sets while it reacts is no choice.

    label, tip: its name, and what it means; tip is shown under the mouse and read to screen readers
    width:      in JupyterLab and on a wide page, as CSS
    """

    def __init__(self, value: Any, label: str, tip: str = "", *, width: str = "24em") -> None:
        self.panel: Panel | None = None
        self.label, self.tip, self.width = label, tip, width
        self.disabled = self.hidden = False
        self._value = value

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self.require(value)
        if value != self._value:
            self._value = value
            if self.panel is not None:
                self.panel.react(self)

    def require(self, value: Any) -> None:
        """Raise ValueError for a value that cannot be set."""

    def take(self, text: str) -> None:
        """Set the value from what a web page sends."""
        self.value = text


class Menu(Control):
    """One of some options, each a value or a pair of its text and its value.

    Raises ValueError for a value that is no option.
    """

    def __init__(
        self, value: Any, options: Iterable[Any], label: str, tip: str = "", **options_of_all: Any
    ) -> None:
        super().__init__(value, label, tip, **options_of_all)
        self.options = options

    @property
    def options(self) -> Any:
        """The values to choose from; a value that is not among new ones becomes the first."""
        return self._values

    @options.setter
    def options(self, options: Iterable[Any]) -> None:
        pairs = [one if isinstance(one, tuple) else (str(one), one) for one in options]
        self.texts = [text for text, _ in pairs]
        values: Sequence[Any] = [value for _, value in pairs]
        self._values = options if isinstance(options, range) else values
        if self._value not in self._values:
            self._value = self._values[0]

    def require(self, value: Any) -> None:
        if value not in self._values:
            raise ValueError(f"{value!r} is no option of {self.label!r}: {self.texts}")

    @property
    def place(self) -> int:
        return self._values.index(self._value)

    def take(self, text: str) -> None:
        self.value = self._values[int(text)]


class Slider(Menu):
    """Options in a row, to slide through.

    late: react when the slider comes to rest, for what takes longer than a tenth of a second
    """

    def __init__(self, *args: Any, late: bool = False, **options: Any) -> None:
        super().__init__(*args, **{"width": "36em", **options})
        self.late = late


class Text(Control):
    """A line to type into; `hint` is shown while it is empty."""

    def __init__(self, *args: Any, hint: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.hint = hint


class Number(Control):
    """A whole number to type."""

    def take(self, text: str) -> None:
        try:
            self.value = int(text)
        except ValueError:
            return


class Button(Control):
    """Something to press."""

    def __init__(self, label: str, tip: str = "", *, primary: bool = False) -> None:
        super().__init__(None, label, tip)
        self.primary = primary

    def click(self) -> None:
        if self.panel is not None and not self.disabled:
            self.panel.react(self)

    def take(self, text: str) -> None:
        self.click()


class Bits(Control):
    """A row of bits, each a button; `value` is the pattern.

    groups: for each field its CSS class, its heading in HTML, and its bits: weight → name
    """

    def __init__(self, value: int) -> None:
        super().__init__(value, "bits")
        self.groups: list[tuple[str, str, dict[int, str]]] = []

    def __len__(self) -> int:
        return sum(len(names) for _, _, names in self.groups)

    def toggle(self, weight: int) -> None:
        self.value = self.value ^ 1 << weight

    def take(self, text: str) -> None:
        self.toggle(int(text))

    @staticmethod
    def nibbles(names: Iterable[int]) -> list[list[int]]:
        """Group the weights of a field's bits by hex digit."""
        fours: dict[int, list[int]] = {}
        for weight in names:
            fours.setdefault(weight // 4, []).append(weight)
        return list(fours.values())


class Note(Control):
    """A line of HTML among the controls."""

    def __init__(self, html: str) -> None:
        super().__init__(html, "")


Row = Control | tuple["Row", ...]


class Panel:
    """A title, controls in rows, a message and a view; `html` and `message` are what is shown.

    A chapter's panel sets `title`, passes its rows, and gives `update`. Setting a control's value
    drives it in a test.

    side_by_side: whether the controls may be left of the view on a wide page
    css_class:    of the panel, for `style`, a sheet of its own
    """

    title = ""
    side_by_side = True
    css_class = ""
    style = ""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows
        self.html = self.message = ""
        self.fronts: list[Callable[[], None]] = []
        self._reacting = False
        for control in self.controls():
            control.panel = self
        self.react(None)

    def controls(self) -> list[Control]:
        """Return all controls, in the order of the page."""
        return list(_flat(self.rows))

    def update(self, control: Control | None) -> None:
        """Set `html` and `message` after a control has changed; None: for the first time."""
        raise NotImplementedError

    def react(self, control: Control | None) -> None:
        """Update after a change, and show it wherever the panel is shown."""
        if self._reacting:
            return
        self._reacting = True
        try:
            self.update(control)
        finally:
            self._reacting = False
        self.sync()

    def refuse(self, error: object) -> None:
        """Say that nothing changed, and why; what a panel is given never raises in the notebook."""
        self.message = f"<b>Nothing changed.</b> {escape(str(error).rstrip('.'))}."

    def sync(self) -> None:
        """Show the state as it is, even in the middle of an update."""
        for front in self.fronts:
            front()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from amp_course.kit.panel_page import page_of

        words = {"text/plain": repr(self)}
        try:
            from amp_course.kit.panel_widgets import widget_of
        except ImportError:  # without ipywidgets it is shown as it is
            return words | {"text/html": page_of(self)}
        bundle = widget_of(self)._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        page = {"text/html": page_of(self)} if os.environ.get(PHOTOGRAPHS) else {}
        return {**bundle, **words, **page}


def _flat(rows: Iterable[Row]) -> Iterator[Control]:
    for row in rows:
        if isinstance(row, tuple):
            yield from _flat(row)
        else:
            yield row
