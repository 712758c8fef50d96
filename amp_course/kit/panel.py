"""Panels as plain data: controls with values, a message, and a view in HTML.

A chapter's panel makes its controls and, whenever one changes, sets `html` and `message`. Nothing
here needs torch, NumPy, matplotlib or ipywidgets: `panel_widgets` shows a panel in JupyterLab,
`panel_page` writes it as a web page, and in the book the same Python runs in the browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any

PHOTOGRAPHS = "AMP_COURSE_PHOTOGRAPHS"  # set where notebooks are run to be stored


class Control:
    """Something that a user sets. Setting `value` makes its panel react, unless the panel does so
    while it reacts.

    label, tip: its name, and what it means, shown under the mouse and read by screen readers
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
        """Set the value from a web page's text."""
        self.value = text


class Menu(Control):
    """A choice of options, each a value or a pair of its text and its value.

    Raises ValueError for a value that is no option.
    """

    def __init__(
        self, value: Any, options: Iterable[Any], label: str, tip: str = "", **more: Any
    ) -> None:
        super().__init__(value, label, tip, **more)
        self.options = options

    @property
    def options(self) -> Any:
        """The values to choose from. Where new ones lack the current value, the first is chosen."""
        return self._values

    @options.setter
    def options(self, options: Iterable[Any]) -> None:
        pairs = [item if isinstance(item, tuple) else (str(item), item) for item in options]
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
    """Options to slide through.

    late: react when the slider comes to rest, as for what takes longer than a tenth of a second
    """

    def __init__(self, *args: Any, late: bool = False, **options: Any) -> None:
        super().__init__(*args, **{"width": "36em", **options})
        self.late = late


class Text(Control):
    """A line of text to type; `hint` is shown while it is empty."""

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

    groups: for each field its CSS class, its heading in HTML, and its bits as weight → name
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
    """A title, controls in rows, a message and a view (`html`).

    A chapter's panel sets `title`, passes its rows, and defines `update`. A test sets the controls'
    values.

    side_by_side: the controls may be left of the view on a wide page
    css_class:    of the panel, for `style`, its own style sheet
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
        """Set `html` and `message` after a control has changed, or for the first time (None)."""
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
        """Say that nothing changed, and why, in place of raising in the notebook."""
        self.message = f"<b>Nothing changed.</b> {escape(str(error).rstrip('.'))}."

    def sync(self) -> None:
        """Show the current state, even in the middle of an update."""
        for front in self.fronts:
            front()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from amp_course.kit.panel_page import page_of

        text = {"text/plain": repr(self)}
        try:
            from amp_course.kit.panel_widgets import widget_of
        except ImportError:  # without ipywidgets, show a page that does not react
            return text | {"text/html": page_of(self)}
        bundle = widget_of(self)._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        page = {"text/html": page_of(self)} if os.environ.get(PHOTOGRAPHS) else {}
        return {**bundle, **text, **page}


def _flat(rows: Iterable[Row]) -> Iterator[Control]:
    for row in rows:
        if isinstance(row, tuple):
            yield from _flat(row)
        else:
            yield row
