"""Write a panel as a web page: its controls, its message and its view as they are.

In the book this page is live (docs/book/_static/panel.js); a photograph of it is what a stored
notebook shows.
"""

from __future__ import annotations

from html import escape

from amp_course.kit.panel import Bits, Button, Control, Menu, Note, Number, Panel, Row, Slider


def page_of(panel: Panel) -> str:
    """Return a panel as HTML, in the frame and with the class names that it has in JupyterLab.

    A control's `data-key` is its place among `panel.controls()`.
    """
    keys = {id(control): str(place) for place, control in enumerate(panel.controls())}
    rows = "".join(_row(row, keys) for row in panel.rows)
    sides = " amp-side-by-side" if panel.side_by_side else ""
    return (
        f'<div class="amp-panel amp-page {panel.css_class}" role="group" '
        f'aria-label="{escape(panel.title)}"><style>{panel.style}</style>'
        f'<div class="amp-title"><b>{escape(panel.title, quote=False)}</b></div>'
        f'<div class="amp-body"><div class="amp-frame{sides}"><div class="amp-controls">{rows}'
        f'</div><div class="amp-message" role="status">{panel.message}</div>'
        f'<div class="amp-view" tabindex="0">{panel.html}</div></div></div></div>'
    )


def _row(row: Row, keys: dict[int, str]) -> str:
    if isinstance(row, tuple):
        return f'<div class="amp-row">{"".join(_row(one, keys) for one in row)}</div>'
    return "" if row.hidden else _control(row, f'data-key="{keys[id(row)]}"')


def _control(one: Control, key: str) -> str:
    attributes = f'{key} title="{escape(one.tip)}"{" disabled" if one.disabled else ""}'
    if isinstance(one, Note):
        return f'<span class="amp-hint">{one.value}</span>'
    if isinstance(one, Bits):
        return _field(one, key)
    if isinstance(one, Button):
        look = "amp-pick amp-primary" if one.primary else "amp-pick"
        return f'<button type="button" class="{look}" {attributes}>{escape(one.label)}</button>'
    if isinstance(one, Slider):
        text = escape(one.texts[one.place])
        late = " data-late" if one.late else ""
        made = (
            f'<input type="range" min="0" max="{len(one.texts) - 1}" value="{one.place}" '
            f'aria-valuetext="{text}" {attributes}{late}><output>{text}</output>'
        )
    elif isinstance(one, Menu):
        options = "".join(
            f'<option value="{place}"{" selected" if place == one.place else ""}>{escape(text)}'
            f"</option>"
            for place, text in enumerate(one.texts)
        )
        made = f"<select {attributes}>{options}</select>"
    else:
        kind = "number" if isinstance(one, Number) else "text"
        hint = escape(getattr(one, "hint", ""))
        value = escape(str(one.value))
        made = f'<input type="{kind}" value="{value}" placeholder="{hint}" {attributes}>'
    return (
        f'<label class="amp-control" style="width:{one.width}"><span>{escape(one.label)}</span>'
        f"{made}</label>"
    )


def _field(one: Bits, key: str) -> str:
    groups = ""
    for css_class, head, names in one.groups:
        fours = "".join(
            f'<div class="amp-nibble">{"".join(_bit(one, w, names[w], key) for w in four)}</div>'
            for four in Bits.nibbles(names)
        )
        groups += (
            f'<div class="amp-group {css_class}"><div class="amp-name">{head}</div>'
            f'<div class="amp-nibbles">{fours}</div></div>'
        )
    return f'<div class="amp-field">{groups}</div>'


def _bit(one: Bits, weight: int, name: str, key: str) -> str:
    is_set = bool(one.value >> weight & 1)
    state = f'aria-pressed="{str(is_set).lower()}" title="{escape(name)}"'
    classes = "jupyter-button amp-bit" + (" mod-active" if is_set else "")
    return (
        f'<button type="button" class="{classes}" {state} {key} value="{weight}">{escape(name)}'
        f"</button>"
    )
