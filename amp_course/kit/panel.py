"""The frame of every panel: a title, labelled controls, a view, and a line for errors.

A panel is an ipywidgets `VBox`. It redraws by setting a trait (an `HTML.value`, an `Image.value`),
never through an `Output`, so notebooks compare cleanly; and it carries a still picture for pages
without a kernel.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.kit.style import png, shown_as

WIDE = {"description_width": "8em"}  # one width for all labels, so that controls line up


_ARROW = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E"
    "%3Cpath fill='%23ddd' d='M5.2 5.9 9 9.7l3.8-3.8 1.2 1.2-5 5-5-5z'/%3E%3C/svg%3E"
)
# ipywidgets draws a menu's arrow in dark grey on every theme. Where there is room, controls stand
# to the left of the view, each with its label above it: then both fit on a screen.
_SHEET = f"""<style>
[data-jp-theme-light="false"] .amp-panel {{ --jp-widgets-dropdown-arrow: url("data:image/svg+xml,{_ARROW}") }}
.amp-body {{ container-type: inline-size }}
@container (min-width: 960px) {{
  .amp-side-by-side {{ display: grid; grid-template: auto 1fr / 21em minmax(0, 1fr); column-gap: 20px; align-items: start }}
  .amp-side-by-side > .amp-controls {{ grid-row: 1 / 3 }}
  .amp-controls .widget-inline-hbox {{
    flex-wrap: wrap; width: 100% !important; height: auto; margin: 2px 0 }}
  .amp-controls .widget-inline-hbox > .widget-label {{ width: 100% !important; text-align: left; line-height: 20px }}
  .amp-controls .widget-dropdown > select {{ height: 28px }}
  .amp-controls .slider-container {{ flex: 1 1 0; min-width: 0; margin-left: 13px }}
  .amp-controls .amp-long .slider-container {{ flex: 1 0 90% }}
  .amp-controls .widget-hbox {{ width: 100%; margin-left: 0 !important }}
  .amp-controls .jupyter-button {{ flex: 1 1 auto }}
}}
</style>"""


class Panel(widgets.VBox):
    """A titled box of controls and a view.

    A chapter's panel makes its controls, calls `super().__init__(title, controls, view)`, and gives
    `still()`.

    side_by_side: whether the controls may be left of the view on a wide page; if not, they stay
                  above it
    """

    def __init__(
        self,
        title: str,
        controls: Sequence[widgets.Widget],
        view: widgets.Widget,
        *,
        side_by_side: bool = True,
    ) -> None:
        self.view = view
        self.message = widgets.HTML(value="", layout=widgets.Layout(min_height="1.5em"))
        head = widgets.HTML(f"<b>{escape(title, quote=False)}</b>")
        head.add_class("amp-title")
        sheet = widgets.HTML(_SHEET, layout=widgets.Layout(display="none"))
        box = _classed("amp-controls", controls)
        body = _classed("amp-side-by-side", [box, self.message, view]) if side_by_side else None
        super().__init__(
            [
                sheet,
                head,
                _classed("amp-body", [body] if body else [*controls, self.message, view]),
            ],
            layout=widgets.Layout(
                border="1px solid var(--jp-border-color2, #ccc)",
                padding="8px 12px",
                max_width="84em",
            ),
        )
        self.add_class("amp-panel")  # by which the course's JupyterLab names it for screen readers

    def tell(self, text: str = "") -> None:
        """Write one line of HTML under the controls; a panel never throws into the notebook.

        Escape what is not ours in it: names of layers, what was typed, the text of an error.
        """
        self.message.value = f'<span role="status">{text}</span>' if text else ""

    def still(self) -> Figure:
        """Return a still picture of the panel as it stands, for a page without a kernel."""
        raise AssertionError("each panel draws its own")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        still = self.still()
        bundle["text/plain"] = repr(self)
        bundle["image/png"] = base64.b64encode(png(still)).decode()
        return bundle, {"image/png": shown_as(still)}


def _classed(name: str, children: Sequence[widgets.Widget]) -> widgets.VBox:
    box = widgets.VBox(children)
    box.add_class(name)
    return box
