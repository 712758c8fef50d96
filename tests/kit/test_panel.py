"""A panel as plain data, and its two faces: ipywidgets and a web page."""

from __future__ import annotations

import sys
from html.parser import HTMLParser

import ipywidgets as widgets
import pytest

from amp_course.kit.panel import PHOTOGRAPHS, Bits, Button, Menu, Note, Number, Panel, Slider, Text
from amp_course.kit.panel_page import page_of
from amp_course.kit.panel_widgets import widget_of


class Every(Panel):
    """One control of each kind; what they are is the view."""

    title = "Every: <one> of each?"
    css_class = "amp-every"
    style = ".amp-every { color: inherit }"

    def __init__(self) -> None:
        self.menu = Menu("b", ["a", ("the <b>", "b"), "c"], "menu", "choose")
        self.slider = Slider(3, range(1, 9, 2), "slider", "slide")
        self.steps = Slider(0.5, [("half", 0.5), ("all", 1.0)], "steps", "step", late=True)
        self.text = Text("x", "text", "type", hint="a word")
        self.number = Number(4, "number", "count")
        self.button = Button("press", "again", primary=True)
        self.bits = Bits(5)
        self.bits.groups = [("amp-low", "<b>low</b>", {2: "bit 2", 1: "bit 1", 0: "bit 0"})]
        self.updates: list[object] = []
        super().__init__(
            self.menu,
            (self.slider, self.steps),
            (self.text, (self.number, self.button)),
            self.bits,
            Note("a <i>note</i>"),
        )

    def update(self, control: object) -> None:
        self.updates.append(control)
        if control is self.button:
            self.number.value += 1  # no choice of the user's: no second update
        values = [self.menu, self.slider, self.steps, self.text, self.number, self.bits]
        self.html = " ".join(str(one.value) for one in values)


class Reader(HTMLParser):
    """The controls of a page: data-key → its tag and attributes, all of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.controls: dict[str, list[tuple[str, dict[str, str | None]]]] = {}
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("data-key"):
            self.controls.setdefault(str(found["data-key"]), []).append((tag, found))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def panel() -> Every:
    return Every()


def test_it_updates_once_at_the_start_and_once_for_each_change(panel: Every) -> None:
    assert panel.updates == [None] and panel.html == "b 3 0.5 x 4 5"
    panel.menu.value = "c"
    panel.menu.value = "c"
    assert panel.updates == [None, panel.menu] and panel.html == "c 3 0.5 x 4 5"
    panel.button.click()
    assert panel.updates[2:] == [panel.button] and panel.number.value == 5
    panel.button.disabled = True
    panel.button.click()
    assert len(panel.updates) == 3


def test_a_menu_takes_its_options_only_and_falls_back_to_the_first(panel: Every) -> None:
    with pytest.raises(ValueError, match="'z' is no option of 'menu'"):
        panel.menu.value = "z"
    assert panel.menu.value == "b" and panel.updates == [None]
    panel.menu.options = ["d", "e"]
    assert panel.menu.value == "d" and panel.menu.texts == ["d", "e"]
    with pytest.raises(ValueError, match="no option of 'slider'"):
        panel.slider.value = 4


def test_an_update_that_fails_does_not_leave_the_panel_deaf(panel: Every) -> None:
    panel.menu.options = ["b"]
    panel.text._value = None
    panel.update = lambda control: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        panel.text.value = "y"
    del panel.update  # type: ignore[method-assign]
    panel.text.value = "z"
    assert panel.html == "b 3 0.5 z 4 5"


def made(box: widgets.Widget) -> dict[str, widgets.Widget]:
    """The controls of a panel's widget, by label."""
    found, left = {}, [box]
    while left:
        one = left.pop()
        left += getattr(one, "children", ())
        if getattr(one, "description", ""):
            found[one.description] = one
    return found


def test_widgets_and_controls_follow_each_other_in_every_face(panel: Every) -> None:
    first, second = made(widget_of(panel)), made(widget_of(panel))
    assert set(first) == {
        *("menu", "slider", "steps", "text", "number", "press", "bit 2", "bit 1", "bit 0")
    }
    first["menu"].index = 2
    first["slider"].value = 7
    first["steps"].index = 1
    first["text"].value = "y"
    first["number"].value = 9
    first["bit 1"].value = True
    assert panel.html == "c 7 1.0 y 9 7"
    first["press"].click()
    assert second["number"].value == 10 and second["menu"].index == 2
    assert [second[f"bit {n}"].value for n in range(3)] == [True] * 3
    panel.menu.options = ["c", "d"]
    panel.slider.options = range(7, 12, 2)
    panel.slider.disabled = panel.text.hidden = True
    panel.sync()
    for face in (first, second):
        assert list(face["menu"].options) == ["c", "d"] and face["menu"].index == 0
        assert (face["slider"].min, face["slider"].max, face["slider"].value) == (7, 11, 7)
        assert face["slider"].disabled and face["text"].layout.display == "none"
    assert panel.html == "c 7 1.0 y 10 7"


def test_the_page_has_every_control_and_takes_what_it_sends(panel: Every) -> None:
    page = Reader(page_of(panel))
    kinds = {key: [tag for tag, _ in found] for key, found in page.controls.items()}
    keys = [str(panel.controls().index(one)) for one in panel.controls() if type(one) is not Note]
    assert list(kinds) == keys
    assert kinds["0"] == ["select"] and kinds["6"] == ["button"] * 3
    assert [found["value"] for _, found in page.controls["6"]] == ["2", "1", "0"]
    assert [found["aria-pressed"] for _, found in page.controls["6"]] == ["true", "false", "true"]
    assert page.controls["1"][0][1]["aria-valuetext"] == "3"
    assert page.controls["2"][0][1]["data-late"] is None  # there, without a value
    for word in ("Every: <one> of each?", "the <b>", "slider", "low", "note", "b 3 0.5 x 4 5"):
        assert word in page.text
    for key, sent in {"0": "2", "1": "0", "2": "1", "3": "z", "4": "7", "6": "1"}.items():
        panel.controls()[int(key)].take(sent)
    assert panel.html == "c 1 1.0 z 7 7"
    panel.controls()[4].take("seven")
    panel.controls()[5].take("")
    assert panel.number.value == 8
    panel.text.hidden = panel.menu.disabled = True
    page = Reader(page_of(panel))
    assert "3" not in page.controls and "disabled" in page.controls["0"][0][1]


def test_what_is_stored_is_words_a_widget_and_for_a_photograph_the_page(
    panel: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PHOTOGRAPHS, raising=False)
    bundle = panel._repr_mimebundle_()
    assert bundle["text/plain"] == "Every()" and "text/html" not in bundle
    assert "application/vnd.jupyter.widget-view+json" in bundle
    monkeypatch.setenv(PHOTOGRAPHS, "1")
    assert panel._repr_mimebundle_()["text/html"] == page_of(panel)
    monkeypatch.delenv(PHOTOGRAPHS)
    monkeypatch.setitem(sys.modules, "amp_course.kit.panel_widgets", None)  # no ipywidgets
    assert panel._repr_mimebundle_() == {"text/plain": "Every()", "text/html": page_of(panel)}
