"""What holds for the panels of all chapters: whatever a control changes in a picture,
it changes in its words, too.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from amp_course.kit.panel import Bits, Control, Menu, Text
from tests.browser.every_panel import PANELS, make


class Pictures(HTMLParser):
    """The pictures of a page: for each, the words for those who cannot see it,
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


def other_values(control: Control) -> list[Any]:
    """Return two more values of a control, where there are two."""
    if isinstance(control, Bits):
        return [control.value ^ 1, control.value ^ 1 << len(control) - 1]
    if isinstance(control, Text):
        return {
            "number": ["2049", "-3"],
            "context length": ["4096", "100"],
            "RoPE base": ["500", "1e6"],
        }.get(control.label, ["16", "32"])
    if isinstance(control, Menu):
        values, place = control.options, control.place
        return [values[one] for one in {place - 1, (place + 1) % len(values)} if one != place]
    return []  # a button, a note, or a number that is hidden


@pytest.mark.parametrize("name", PANELS)
def test_a_picture_never_changes_without_its_words(name: str) -> None:
    panel = make(name)
    silent, moved = [], 0
    for control in panel.controls():
        first = control.value
        if control.disabled or control.hidden:
            continue
        for value in other_values(control):
            before = Pictures(panel.html)
            assert all(before.words), f"a picture of {name} has no words"
            control.value = value
            after = Pictures(panel.html)
            moved += before.drawn != after.drawn
            if len(before.drawn) != len(after.drawn):
                continue
            for old, new, said, says in zip(
                before.drawn, after.drawn, before.words, after.words, strict=True
            ):
                if old != new and said == says:
                    silent.append((control.label, value, said[:60]))
        control.value = first
    assert not silent
    assert moved or name in (
        "DtypeTrace",
        "LoopWorkbench",
        "StepExplorer",
    )  # tables and text; a button that measures


def test_the_panel_that_measures_says_what_it_measured() -> None:
    panel = make("StepExplorer")
    before = Pictures(panel.html)
    panel.show(panel.results[1:])
    after = Pictures(panel.html)
    assert before.drawn != after.drawn and before.words != after.words and all(after.words)
