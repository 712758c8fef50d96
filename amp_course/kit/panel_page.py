"""Write a panel as a web page: its controls, its message and its view.

In the book this page is live (docs/book/_static/panel.js); stored notebooks show a photograph of
it.
"""

from __future__ import annotations

from html import escape

from amp_course.kit.panel import Bits, Button, Control, Menu, Note, Number, Panel, Row, Slider


def page_of(panel: Panel) -> str:
    """Return a panel as HTML, with the frame and the class names that it has in JupyterLab.

    A control's `data-key` is its index in `panel.controls()`.
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
        return f'<div class="amp-row">{"".join(_row(part, keys) for part in row)}</div>'
    return "" if row.hidden else _control(row, f'data-key="{keys[id(row)]}"')


def _control(control: Control, key: str) -> str:
    disabled = " disabled" if control.disabled else ""
    attributes = f'{key} title="{escape(control.tip)}"{disabled}'
    label = escape(control.label)
    if isinstance(control, Note):
        return f'<span class="amp-hint">{control.value}</span>'
    if isinstance(control, Bits):
        return _field(control, key)
    if isinstance(control, Button):
        classes = "amp-pick amp-primary" if control.primary else "amp-pick"
        return f'<button type="button" class="{classes}" {attributes}>{label}</button>'
    if isinstance(control, Slider):
        text = escape(control.texts[control.place])
        late = " data-late" if control.late else ""
        field = (
            f'<input type="range" min="0" max="{len(control.texts) - 1}" value="{control.place}" '
            f'aria-valuetext="{text}" {attributes}{late}><output>{text}</output>'
        )
    elif isinstance(control, Menu):
        options = ""
        for place, text in enumerate(control.texts):
            selected = " selected" if place == control.place else ""
            options += f'<option value="{place}"{selected}>{escape(text)}</option>'
        field = f"<select {attributes}>{options}</select>"
    else:
        kind = "number" if isinstance(control, Number) else "text"
        hint = escape(getattr(control, "hint", ""))
        value = escape(str(control.value))
        field = f'<input type="{kind}" value="{value}" placeholder="{hint}" {attributes}>'
    style = f"width:{control.width}"
    return f'<label class="amp-control" style="{style}"><span>{label}</span>{field}</label>'


def _field(bits: Bits, key: str) -> str:
    groups = ""
    for css_class, head, names in bits.groups:
        fours = "".join(
            f'<div class="amp-nibble">{"".join(_bit(bits, w, names[w], key) for w in four)}</div>'
            for four in Bits.nibbles(names)
        )
        groups += (
            f'<div class="amp-group {css_class}"><div class="amp-name">{head}</div>'
            f'<div class="amp-nibbles">{fours}</div></div>'
        )
    return f'<div class="amp-field">{groups}</div>'


def _bit(bits: Bits, weight: int, name: str, key: str) -> str:
    is_set = bool(bits.value >> weight & 1)
    name = escape(name)
    state = f'aria-pressed="{str(is_set).lower()}" title="{name}"'
    classes = "jupyter-button amp-bit" + (" mod-active" if is_set else "")
    return f'<button type="button" class="{classes}" {state} {key} value="{weight}">{name}</button>'
