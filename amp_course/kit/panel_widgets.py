"""Show a panel with ipywidgets.

It is redrawn by setting traits (an `HTML.value`), never by an `Output`, so that notebooks compare
equal.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from amp_course.kit.panel import Bits, Button, Control, Menu, Note, Number, Panel, Row, Slider, Text

_WIDE = {"description_width": "8em"}  # of all labels, so that controls line up
_ARROW = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E"
    "%3Cpath fill='%23ddd' d='M5.2 5.9 9 9.7l3.8-3.8 1.2 1.2-5 5-5-5z'/%3E%3C/svg%3E"
)
# ipywidgets' own menu arrow is dark grey in every theme. Where there is room, controls are left of
# the view, with their labels above them: then both fit on a screen.
_SHEET = f"""
[data-jp-theme-light="false"] .amp-panel {{
  --jp-widgets-dropdown-arrow: url("data:image/svg+xml,{_ARROW}") }}
.amp-body {{ container-type: inline-size }}
@container (min-width: 960px) {{
  .amp-side-by-side {{ display: grid; grid-template: auto 1fr / 21em minmax(0, 1fr);
    column-gap: 20px; align-items: start }}
  .amp-side-by-side > .amp-controls {{ grid-row: 1 / 3 }}
  .amp-controls .widget-inline-hbox {{
    flex-wrap: wrap; width: 100% !important; height: auto; margin: 2px 0 }}
  .amp-controls .widget-inline-hbox > .widget-label {{
    width: 100% !important; text-align: left; line-height: 20px }}
  .amp-controls .widget-dropdown > select {{ height: 28px }}
  .amp-controls .slider-container {{ flex: 1 1 0; min-width: 0; margin-left: 13px }}
  .amp-controls .amp-long .slider-container {{ flex: 1 0 90% }}
  .amp-controls .widget-hbox {{ width: 100%; margin-left: 0 !important }}
  .amp-controls .jupyter-button {{ flex: 1 1 auto }}
  .amp-controls .widget-hbox > .jupyter-button {{ width: auto }}
}}"""


def widget_of(panel: Panel) -> widgets.VBox:
    """Return a new widget of a panel; all widgets of one panel show the same state."""
    return _Front(panel).box


class _Front:
    """The widgets of one panel."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self.syncing = False
        self.parts: list[Callable[[], None]] = []
        self.message = widgets.HTML(layout=widgets.Layout(min_height="1.5em"))
        self.message.add_class("amp-message")
        self.view = widgets.HTML(layout=widgets.Layout(width="100%", overflow="auto"))
        sheet = f"<style>{_SHEET}{panel.style}</style>"
        head = _classed(widgets.HTML(f"<b>{escape(panel.title, quote=False)}</b>"), "amp-title")
        rows = [self._row(row) for row in panel.rows]
        shown: list[widgets.Widget] = [self.message, self.view]
        if panel.side_by_side:
            inner = [_classed(widgets.VBox(rows), "amp-controls"), *shown]
            shown = [_classed(widgets.VBox(inner), "amp-side-by-side")]
        else:
            shown = [*rows, *shown]
        hidden = widgets.HTML(sheet, layout=widgets.Layout(display="none"))
        self.box = widgets.VBox(
            [hidden, head, _classed(widgets.VBox(shown), "amp-body")],
            layout=widgets.Layout(
                border="1px solid var(--jp-border-color2, #ccc)",
                padding="8px 12px",
                max_width="84em",
            ),
        )
        self.box.add_class("amp-panel")  # our JupyterLab names it for screen readers by this class
        self.sync()
        panel.fronts.append(self.sync)

    def sync(self) -> None:
        """Show the panel's state; only what changed is sent to the browser."""
        self.syncing = True
        try:
            for part in self.parts:
                part()
            text = self.panel.message
            self.message.value = f'<span role="status">{text}</span>' if text else ""
            self.view.value = self.panel.html
            fixed = [name for name in self.box._dom_classes if name.startswith("amp-panel")]
            self.box._dom_classes = (*fixed, *self.panel.css_class.split())
        finally:
            self.syncing = False

    def _row(self, row: Row) -> widgets.Widget:
        if isinstance(row, tuple):
            children = [self._row(part) for part in row]
            return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap"))
        if isinstance(row, Bits):
            return _Field(self, row).box
        if isinstance(row, Note):
            return _classed(widgets.HTML(row.value), "amp-hint")
        widget, chosen = _made(row)
        if isinstance(row, Button):
            widget.on_click(lambda _: row.click())
        else:
            widget.observe(lambda change: self._take(row, change["new"]), chosen)
        self.parts.append(lambda: _sync(row, widget))
        return widget

    def _take(self, control: Control, new: Any) -> None:
        if self.syncing:
            return
        if isinstance(control, Menu) and not isinstance(control.options, range):
            new = control.options[new]
        control.value = new


def _made(control: Control) -> tuple[widgets.Widget, str]:
    """Return a control's widget, and the trait that the user sets."""
    layout = widgets.Layout(width=control.width, max_width="100%")
    shared = {"description": control.label, "tooltip": control.tip}
    styled = {**shared, "style": _WIDE, "layout": layout}
    if isinstance(control, Button):
        style = "primary" if control.primary else ""
        return _classed(widgets.Button(**shared, button_style=style), "amp-pick"), ""
    if isinstance(control, Text):
        field = widgets.Text(**styled, continuous_update=False, placeholder=control.hint)
        return field, "value"
    if isinstance(control, Number):
        return widgets.IntText(**styled), "value"
    if isinstance(control, Slider):
        styled["continuous_update"] = not control.late
        if isinstance(control.options, range):
            slider = widgets.IntSlider(**styled)
            return _classed(slider, "amp-long") if len(control.options) > 45 else slider, "value"
        return widgets.SelectionSlider(options=control.texts, **styled), "index"
    assert isinstance(control, Menu), control
    return widgets.Dropdown(options=control.texts, **styled), "index"


def _sync(control: Control, widget: widgets.Widget) -> None:
    widget.disabled = control.disabled
    widget.layout.display = "none" if control.hidden else None
    if isinstance(control, Menu) and isinstance(control.options, range):
        steps = control.options
        with widget.hold_trait_notifications():
            widget.min, widget.max, widget.step = steps[0], steps[-1], steps.step
            widget.value = control.value
    elif isinstance(control, Menu):
        if list(widget.options) != control.texts:
            widget.options = control.texts
        widget.index = control.place
    elif not isinstance(control, Button):
        widget.value = control.value


class _Field:
    """The buttons of a row of bits, each made when it is first needed."""

    def __init__(self, front: _Front, control: Bits) -> None:
        self.front, self.control = front, control
        self.buttons: list[widgets.ToggleButton] = []
        self.shapes: dict[tuple[tuple[str, int], ...], list[widgets.Widget]] = {}
        self.box = _classed(widgets.Box(), "amp-field")
        front.parts.append(self.sync)

    def sync(self) -> None:
        names = {
            weight: name for *_, group in self.control.groups for weight, name in group.items()
        }
        while len(self.buttons) < len(names):
            self.buttons.append(self._button(len(self.buttons)))
        for weight, name in names.items():
            button = self.buttons[weight]
            with button.hold_sync():
                button.description = button.tooltip = name
                button.value = bool(self.control.value >> weight & 1)
        shape = tuple((head, len(group)) for _, head, group in self.control.groups)
        if shape not in self.shapes:
            self.shapes[shape] = [self._group(*group) for group in self.control.groups]
        self.box.children = self.shapes[shape]

    def _button(self, weight: int) -> widgets.ToggleButton:
        first = self.buttons[0] if self.buttons else None
        shared = {"layout": first.layout, "style": first.style} if first else {}
        button = _classed(widgets.ToggleButton(**shared), "amp-bit")
        button.observe(lambda change: self._toggle(weight), "value")
        return button

    def _toggle(self, weight: int) -> None:
        if not self.front.syncing:
            self.control.toggle(weight)

    def _group(self, name: str, head: str, names: dict[int, str]) -> widgets.Widget:
        nibbles = [
            _classed(widgets.HBox([self.buttons[weight] for weight in four]), "amp-nibble")
            for four in Bits.nibbles(names)
        ]
        title = _classed(widgets.HTML(head), "amp-name")
        group = widgets.VBox([title, _classed(widgets.HBox(nibbles), "amp-nibbles")])
        return _classed(_classed(group, "amp-group"), name)


def _classed(widget: Any, name: str) -> Any:
    widget.add_class(name)
    return widget
