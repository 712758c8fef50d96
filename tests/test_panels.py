"""What holds for the panels of all chapters: whatever a control changes in a picture,
it changes in its words, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import ipywidgets as widgets
import pytest

from tests.browser.every_panel import PANELS, make

SETTABLE = (
    widgets.Dropdown,
    widgets.IntSlider,
    widgets.SelectionSlider,
    widgets.Text,
    widgets.ToggleButton,
)


class Pictures(HTMLParser):
    """The pictures of a page: for each, the words for a reader who cannot see it,
    and what is drawn.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.drawn: list[str] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "img":
            self.words.append(found.get("alt") or "")
            self.drawn.append(found.get("src") or "")
        elif tag == "svg" and found.get("aria-hidden") != "true":
            self.words.append(found.get("aria-label") or "")
            self.drawn.append("")
            self._open = True
        elif self._open:
            self.drawn[-1] += repr((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "svg"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.drawn[-1] += data


def controls(widget: Any) -> Iterator[widgets.Widget]:
    """Yield all controls in a widget that take a value."""
    if isinstance(widget, SETTABLE):
        yield widget
    for child in getattr(widget, "children", ()):
        yield from controls(child)


def other_values(control: Any) -> list[Any]:
    """Return two more values of a control, where there are two."""
    if isinstance(control, widgets.ToggleButton):
        return [not control.value]
    if isinstance(control, widgets.Text):
        return {
            "number": ["2049", "-3"],
            "context length": ["4096", "100"],
            "RoPE base": ["500", "1e6"],
        }.get(control.description, ["16", "32"])
    if isinstance(control, widgets.IntSlider):
        near = (
            control.value + control.step
            if control.value < control.max
            else control.value - control.step
        )
        return [near, control.max if control.value < control.max else control.min]
    values = [one[1] if isinstance(one, tuple) else one for one in control.options]
    place = values.index(control.value)
    return [
        one
        for one in (values[place - 1], values[(place + 1) % len(values)])
        if one is not control.value
    ]


@pytest.mark.parametrize("name", PANELS)
def test_a_picture_never_changes_without_its_words(name: str) -> None:
    panel = make(name)
    silent, moved = [], 0
    for control in list(controls(panel)):
        first = control.value
        if control.disabled or control.layout.display == "none":
            continue
        for value in other_values(control):
            before = Pictures(panel.view.value)
            assert all(before.words), f"a picture of {name} has no words"
            control.value = value
            after = Pictures(panel.view.value)
            moved += before.drawn != after.drawn
            if len(before.drawn) != len(after.drawn):
                continue
            for old, new, said, says in zip(
                before.drawn, after.drawn, before.words, after.words, strict=True
            ):
                if old != new and said == says:
                    silent.append((control.description, value, said[:60]))
        control.value = first
    assert not silent
    assert moved or name in (
        "DtypeTrace",
        "LoopWorkbench",
        "StepExplorer",
    )  # tables and text; a button that measures


def test_the_panel_that_measures_says_what_it_measured() -> None:
    panel = make("StepExplorer")
    before = Pictures(panel.view.value)
    panel.results = panel.results[1:]
    panel._redraw()
    after = Pictures(panel.view.value)
    assert before.drawn != after.drawn and before.words != after.words and all(after.words)
